"""The settings as typed definitions. Names, types, defaults, variables and the table in the docs follow from these.

A setting `topics.pages_partitions` is `pages_partitions` under `[topics]` in the file, and
`MEGURI_TOPICS_PAGES_PARTITIONS` in the environment.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meguri_common.errors import ConfigError

__all__ = ["PASSED_ON", "PREFIX", "FleetSettings", "KafkaSettings", "Settings", "TopicSettings", "is_secret"]

Partitions = Annotated[int, Meta(ge=1, le=4096)]
Hours = Annotated[int, Meta(ge=1, le=24 * 3660)]

PREFIX = "meguri."
"""What the names of topics begin with in the program."""

PASSED_ON = frozenset(
    [
        "security.protocol",
        "enable.ssl.certificate.verification",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.ca.certificate.stores",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.curves.list",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.sigalgs.list",
        "https.ca.location",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal",
        "sasl.kerberos.service.name",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "debug",
        "log_level",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.timeout.ms",
    ]
)
"""Settings of librdkafka that are handed to it as they are: how to reach a broker, and as whom. What decides whether
anything is lost or doubled (acks, isolation, groups, transactions) is the program's own and can't be set."""

_SECRETS = frozenset(
    [
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
    ]
)


def is_secret(name: str) -> bool:
    """Whether a setting's value must not be shown; `name` is the full one, such as `kafka.sasl.password`."""
    return name.removeprefix("kafka.") in _SECRETS


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the brokers. Beside these, `PASSED_ON` stand in the same table."""

    bootstrap: Annotated[str, Meta(description="brokers to ask first, HOST:PORT, with commas between several")] = ""
    prefix: Annotated[
        str,
        Meta(
            pattern="^[a-zA-Z0-9._-]{1,100}$",
            description="what the names of topics and groups begin with: another one for each campaign on a cluster",
        ),
    ] = PREFIX
    client: dict[str, str] = {}
    """Settings of librdkafka, by its own names."""

    def topic(self, name: str) -> str:
        """Name on the cluster of a topic, such as `topics.PAGES`."""
        return self.prefix + name.removeprefix(PREFIX)

    def group(self, service: str) -> str:
        """Name on the cluster of a service's consumer group."""
        return self.prefix + service

    def client_config(self, **own: str | float | bool) -> dict[str, str | int | float | bool]:
        """Configuration of a librdkafka client.

        Args:
            own: what the program decides, underscores for dots.

        Raises:
            ConfigError: no broker is given.
        """
        if not self.bootstrap:
            msg = (
                "no broker is given: use --bootstrap HOST:PORT, the variable MEGURI_KAFKA_BOOTSTRAP, or bootstrap "
                "under [kafka] in meguri.toml"
            )
            raise ConfigError(msg)
        ours = {name.replace("_", "."): value for name, value in own.items()}
        return {"bootstrap.servers": self.bootstrap, **self.client, **ours}


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How topics are made, and what they must be."""

    partitions: (
        Annotated[Partitions, Meta(description="of links, frontier and deltas; fixed for a campaign (64)")] | None
    ) = None
    pages_partitions: Annotated[Partitions, Meta(description="of the pages")] = 16
    due_partitions: Annotated[Partitions, Meta(description="of the fetch requests")] = 16
    rejects_partitions: Annotated[Partitions, Meta(description="of the rejects")] = 1
    telemetry_partitions: Annotated[Partitions, Meta(description="of the telemetry")] = 1
    replication: (
        Annotated[int, Meta(ge=1, le=15, description="replicas of each partition (3, or as many as there are brokers)")]
        | None
    ) = None
    min_insync_replicas: (
        Annotated[int, Meta(ge=1, le=15, description="replicas that must hold a message (one less than there are)")]
        | None
    ) = None
    pages_retention_hours: Annotated[Hours, Meta(description="events are kept this long, to be replayed")] = 14 * 24
    due_retention_hours: Annotated[Hours, Meta(description="fetch requests are kept this long")] = 24
    rejects_retention_hours: Annotated[Hours, Meta(description="rejects are kept this long")] = 30 * 24
    telemetry_retention_hours: Annotated[Hours, Meta(description="telemetry is kept this long")] = 24


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How instances of the services work."""

    commit_interval: Annotated[
        float, Meta(ge=0, le=10, description="seconds that messages may wait for others before a step takes them")
    ] = 0.2
    step_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 28, description="bytes of inbox that a step takes at most")] = (
        8 << 20
    )
    snapshot_bytes: Annotated[
        int, Meta(ge=1 << 20, le=1 << 36, description="bytes of inbox after which a partition is snapshotted")
    ] = 64 << 20
    transaction_timeout: Annotated[
        float, Meta(ge=1, le=900, description="seconds after which the broker gives up a silent instance's step")
    ] = 15.0
    session_timeout: Annotated[
        float, Meta(ge=1, le=300, description="seconds after which a silent instance's partitions go to others")
    ] = 10.0
    give_up_timeout: Annotated[
        float, Meta(ge=1, le=3600, description="seconds to finish and to snapshot partitions that are asked for")
    ] = 120.0
    protocol: Annotated[
        str, Meta(pattern="^(classic|consumer)$", description="rebalance protocol of the groups: classic or consumer")
    ] = "classic"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings."""

    data: Annotated[str, Meta(description="the state root, which all instances share")] = ""
    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    fleet: FleetSettings = FleetSettings()
    parameters: dict[str, dict[str, Any]] = {}
    """Parameters of services, by service: `[parameters.prioritizer]` in the file."""
