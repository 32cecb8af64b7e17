"""The fleet's bus from the settings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from meguri_common.kafka import kafka_module

if TYPE_CHECKING:
    from meguri_common.bus.kafka.bus import KafkaBus
    from meguri_common.config import Settings

__all__ = ["open_bus"]


def open_bus(settings: Settings) -> KafkaBus:
    """The bus over Kafka.

    Raises:
        ConfigError: no broker is given.
        MissingExtra: there is no Kafka client.
    """
    config = settings.kafka.client_config()
    kafka_module()
    from meguri_common.bus.kafka.bus import KafkaBus  # noqa: PLC0415 - it needs the client
    from meguri_common.bus.kafka.settings import KafkaSettings  # noqa: PLC0415 - see above

    # The client's own lines are for services' logs; a command raises what matters, and says when it waits.
    logging.getLogger("meguri_common.bus.kafka").addHandler(logging.NullHandler())
    return KafkaBus(KafkaSettings(client=config, prefix=settings.kafka.prefix))
