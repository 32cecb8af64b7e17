"""Settings of the fleet: what there is, and where each value came from (flag, environment, file, default)."""

from meguri_common.config.loading import DEFAULT_FILE, FILE_VARIABLE, Loaded, Value, load_settings
from meguri_common.config.settings import FleetSettings, KafkaSettings, Settings, TopicSettings

__all__ = [
    "DEFAULT_FILE",
    "FILE_VARIABLE",
    "FleetSettings",
    "KafkaSettings",
    "Loaded",
    "Settings",
    "TopicSettings",
    "Value",
    "load_settings",
]
