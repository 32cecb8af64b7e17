"""The Kafka client library, loaded when it is needed: commands that don't speak to a broker do without it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from meguri_common.errors import MissingExtra

__all__ = ["kafka_module"]


def kafka_module(name: str = "confluent_kafka") -> Any:
    """The module `confluent_kafka`, or a part of it such as `confluent_kafka.admin`.

    Raises:
        MissingExtra: it isn't installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != "confluent_kafka":
            raise
        msg = "speaking to Kafka needs the package confluent-kafka; install it with: pip install 'meguri[kafka]'"
        raise MissingExtra(msg) from None
