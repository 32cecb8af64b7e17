"""The broker as the monitor reaches it: credentials in Faust's terms, and whether the topic is there."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from faust import SASLCredentials, SSLCredentials

from meguri_common.errors import BusError, ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["TopicShape", "credentials", "ends_of", "make_topic", "shape_of"]

_PATIENCE = 10.0
_LOOK_AGAIN_AFTER = 0.1

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_UNDERSTOOD = frozenset(
    [
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
    ]
)
_SECURITY = ("ssl.", "sasl.", "security.", "enable.ssl.")


def credentials(client: Mapping[str, str]) -> SASLCredentials | SSLCredentials | None:
    """Faust's credentials from librdkafka's settings; None for a plain connection.

    Args:
        client: librdkafka's settings; those that say nothing of security are of no concern here.

    Raises:
        ConfigError: a setting of security that Faust's client doesn't know, or a wrong value.
    """
    unknown = sorted(name for name in client if name.startswith(_SECURITY) and name not in _UNDERSTOOD)
    if unknown:
        msg = f"kafka.{unknown[0]}: the monitor's client doesn't know it; it knows {', '.join(sorted(_UNDERSTOOD))}"
        raise ConfigError(msg)
    protocol = client.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        msg = f"kafka.security.protocol is {protocol!r}: it can be {', '.join(_PROTOCOLS)}"
        raise ConfigError(msg)
    context = _ssl_context(client) if protocol.endswith("ssl") else None
    if protocol.startswith("sasl"):
        mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", "PLAIN")).upper()
        if mechanism not in _MECHANISMS:
            msg = f"kafka.sasl.mechanism is {mechanism!r}: the monitor's client knows {', '.join(_MECHANISMS)}"
            raise ConfigError(msg)
        return SASLCredentials(
            username=client.get("sasl.username"),
            password=client.get("sasl.password"),
            ssl_context=context,
            mechanism=mechanism,
        )
    return SSLCredentials(context) if context else None


@dataclass(frozen=True)
class TopicShape:
    """How a topic was made."""

    partitions: int
    replicas: int
    """Of each partition."""


async def shape_of(bootstrap: str, topic: str, client: Mapping[str, str]) -> TopicShape | None:
    """How a topic was made; None if there is no such topic.

    Args:
        bootstrap: HOST:PORT of brokers, separated by commas.
        topic: its name on the cluster.
        client: librdkafka's settings.

    Raises:
        BusError: no broker answers.
        ConfigError: see `credentials`.
    """
    async with _answering(bootstrap):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **_client_settings(client))
        try:
            await admin.start()
            # Asking for this topic alone could create it, where the broker does that.
            names = await admin.list_topics()
            if topic not in names:
                return None
            (found,) = await admin.describe_topics([topic])
            partitions = found["partitions"]
            return TopicShape(len(partitions), max((len(each["replicas"]) for each in partitions), default=1))
        finally:
            await admin.close()


async def make_topic(
    bootstrap: str, topic: str, shape: TopicShape, settings: Mapping[str, str], client: Mapping[str, str]
) -> None:
    """Create a topic where there is none, and wait until the brokers know its partitions.

    Args:
        bootstrap: HOST:PORT of brokers, separated by commas.
        topic: its name on the cluster.
        shape: what it is to have.
        settings: of the topic, by Kafka's names.
        client: librdkafka's settings.

    Raises:
        BusError: no broker answers, the topic is refused, or it doesn't come up in time.
        ConfigError: see `credentials`.
    """
    async with _answering(bootstrap):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **_client_settings(client))
        try:
            await admin.start()
            if topic in await admin.list_topics():
                return
            wanted = NewTopic(topic, shape.partitions, shape.replicas, topic_configs=dict(settings))
            answer = await admin.create_topics([wanted])
            for _, code, *detail in answer.topic_errors:
                if code not in (0, TopicAlreadyExistsError.errno):
                    raise for_code(code)(f"{topic}: {next(iter(detail), None)}")
            while not await _has_leaders(admin, topic, shape.partitions):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(_LOOK_AGAIN_AFTER)
        finally:
            await admin.close()


async def _has_leaders(admin: AIOKafkaAdminClient, topic: str, partitions: int) -> bool:
    (found,) = await admin.describe_topics([topic])
    return len(found["partitions"]) == partitions and all(each["leader"] >= 0 for each in found["partitions"])


async def ends_of(bootstrap: str, topic: str, partitions: int, client: Mapping[str, str]) -> dict[int, int]:
    """The next free offset of each partition of a topic.

    Args:
        bootstrap: HOST:PORT of brokers, separated by commas.
        topic: its name on the cluster.
        partitions: how many it has.
        client: librdkafka's settings.

    Raises:
        BusError: no broker answers.
        ConfigError: see `credentials`.
    """
    async with _answering(bootstrap):
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **_client_settings(client))
        try:
            await consumer.start()
            asked = [TopicPartition(topic, number) for number in range(partitions)]
            ends = await consumer.end_offsets(asked)
            return {place.partition: end for place, end in ends.items()}
        finally:
            await consumer.stop()


@asynccontextmanager
async def _answering(bootstrap: str) -> AsyncIterator[None]:
    """Bound the time of questions to the brokers, and call a failure by its name."""
    try:
        async with asyncio.timeout(_PATIENCE):
            yield
    except (KafkaError, OSError, TimeoutError) as problem:
        reason = "no answer in time" if isinstance(problem, TimeoutError) else problem
        msg = f"{bootstrap}: no broker answers there: {reason}"
        raise BusError(msg) from problem


def _client_settings(client: Mapping[str, str]) -> dict[str, Any]:
    found = credentials(client)
    if found is None:
        return {}
    settings: dict[str, Any] = {
        "security_protocol": client["security.protocol"].upper(),
        "ssl_context": found.ssl_context if isinstance(found, SASLCredentials) else found.context,
    }
    if isinstance(found, SASLCredentials):
        settings |= {
            "sasl_mechanism": client.get("sasl.mechanism", client.get("sasl.mechanisms", "PLAIN")).upper(),
            "sasl_plain_username": found.username,
            "sasl_plain_password": found.password,
        }
    return settings


def _ssl_context(client: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=client.get("ssl.ca.location"))
        if "ssl.certificate.location" in client:
            context.load_cert_chain(
                client["ssl.certificate.location"], client.get("ssl.key.location"), client.get("ssl.key.password")
            )
    except OSError as problem:
        msg = f"kafka.ssl.*: a certificate or key can't be read: {problem}"
        raise ConfigError(msg) from problem
    if client.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    return context
