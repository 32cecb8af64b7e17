"""The cluster as the commands see it: brokers, topics, positions. Errors of the client become ours here."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from meguri.fleet.topics import FoundTopic
from meguri_common.bus.kafka.renewing import Renewed
from meguri_common.errors import BrokerUnreachable, BusError, TopicMismatch
from meguri_common.kafka import kafka_module

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri.fleet.topics import TopicPlan
    from meguri_common.config import KafkaSettings

__all__ = ["Cluster", "quiet_logger"]

_Result = TypeVar("_Result")

_LOOK_SECONDS = 0.1
_OLD_BROKER_SETTINGS = ("inter.broker.protocol.version", "zookeeper.connect")
"""Settings that every broker before 4.0 has, and none since."""


def quiet_logger() -> logging.Logger:
    """Where a client's own log goes: to `logging`, not to standard error. Its errors are raised."""
    logger = logging.getLogger("meguri.kafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


class Cluster:
    """A connection to ask and to change what the cluster is."""

    def __init__(self, kafka: KafkaSettings, *, timeout: float = 15.0) -> None:
        """Take the settings; the first question connects.

        Args:
            kafka: where the brokers are.
            timeout: seconds that a question may take.

        Raises:
            ConfigError: no broker is given.
            MissingExtra: there is no Kafka client.
            BusError: the client doesn't take a setting.
        """
        self.settings = kafka
        self._timeout = timeout
        self._admin_module = kafka_module("confluent_kafka.admin")
        self._kafka = kafka_module()
        self._problems: list[str] = []
        config = kafka.client_config()
        from meguri_common.bus.kafka.failures import Patience  # noqa: PLC0415 - it needs the client

        self._patience = Patience(timeout)
        try:
            self._admins: Renewed[Any] = Renewed(
                lambda: self._admin_module.AdminClient(
                    {**config, "error_cb": lambda error: self._problems.append(error.str())}, logger=quiet_logger()
                )
            )
        except self._kafka.KafkaException as problem:
            msg = f"the settings for Kafka: {problem.args[0].str()}"
            raise BusError(msg) from problem

    @property
    def _admin(self) -> Any:
        return self._admins.client

    def brokers(self) -> int:
        """How many there are.

        Raises:
            BrokerUnreachable: none answers.
        """
        return len(self._metadata().brokers)

    def check_version(self) -> None:
        """Refuse brokers before 4.0: the transactions here rest on what 4.0 brought.

        Raises:
            BusError: a broker is older.
            BrokerUnreachable: none answers.
        """
        resources = self._admin_module.ConfigResource
        for number in sorted(self._metadata().brokers):
            asked = resources(resources.Type.BROKER, str(number))
            config = self._ask(f"the settings of broker {number}", partial(self._config, asked))
            old = next((name for name in _OLD_BROKER_SETTINGS if name in config), None)
            if old is not None:
                version = config[old].value if old == _OLD_BROKER_SETTINGS[0] else "before 4.0"
                msg = f"broker {number} is Kafka {version}; 4.0 or newer is needed"
                raise BusError(msg)

    def topics(self, names: Sequence[str]) -> dict[str, FoundTopic]:
        """Those of some topics that are there, with all their settings."""
        metadata = self._metadata().topics
        there = [name for name in names if name in metadata]
        resources = self._admin_module.ConfigResource
        asked = [resources(resources.Type.TOPIC, name) for name in there]

        def ask(left: float) -> dict[str, FoundTopic]:
            found = {}
            for resource, answer in self._admin.describe_configs(asked, request_timeout=left).items():
                config = {name: entry.value for name, entry in answer.result().items()}
                partitions = metadata[resource.name].partitions
                replicas = max(len(each.replicas) for each in partitions.values())
                found[resource.name] = FoundTopic(len(partitions), replicas, config)
            return found

        return self._ask("the settings of topics", ask) if asked else {}

    def create(self, plans: Sequence[TopicPlan]) -> list[str]:
        """Make topics.

        Returns:
            Names of those that were made; one that another has made meanwhile isn't among them.
        """
        new = [
            self._admin_module.NewTopic(plan.topic, plan.partitions, plan.replication, config=dict(plan.config))
            for plan in plans
        ]
        made = []
        answers = self._admin.create_topics(new, operation_timeout=self._timeout) if new else {}
        for name, answer in answers.items():
            try:
                answer.result()
                made.append(name)
            except self._kafka.KafkaException as problem:
                if problem.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    msg = f"{name} can't be made: {problem.args[0].str()}"
                    raise BusError(msg) from problem
        return made

    def await_topics(self, plans: Sequence[TopicPlan]) -> None:
        """Return when topics that were made just now can be used: each of their partitions has a leader.

        Raises:
            BusError: they aren't, in time.
        """
        deadline = self._patience.deadline()
        missing = [plan.topic for plan in plans]
        while True:
            metadata = self._metadata().topics
            missing = [name for name in missing if not _is_led(metadata.get(name))]
            if not missing:
                return
            if self._patience.over(deadline):
                msg = f"{', '.join(missing)}: made, but not ready within {self._timeout:g} s"
                raise BusError(msg)
            time.sleep(_LOOK_SECONDS)

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic.

        Raises:
            TopicMismatch: there is no such topic.
        """
        found = self._metadata().topics.get(topic)
        if found is None:
            msg = f"{topic}: there is no such topic. Make the campaign's topics with: meguri topics create"
            raise TopicMismatch(msg)
        return len(found.partitions)

    def ends(self, topic: str) -> list[tuple[int, int]]:
        """First offset kept and the one behind the last, transaction markers included, of each partition."""
        count = self.partitions(topic)
        spec = self._admin_module.OffsetSpec
        first, last = (self._offsets(topic, count, where) for where in (spec.earliest(), spec.latest()))
        return list(zip(first, last, strict=True))

    def offsets_at(self, topic: str, seconds: int) -> list[int]:
        """First offset of each partition that was appended at this time (epoch seconds) or later."""
        count = self.partitions(topic)
        found = self._offsets(topic, count, self._admin_module.OffsetSpec.for_timestamp(seconds * 1000))
        return [end if at < 0 else at for at, (_, end) in zip(found, self.ends(topic), strict=True)]

    def committed(self, group: str, topic: str, count: int) -> list[int | None]:
        """The group's stable positions; None where it never committed."""
        places = [self._kafka.TopicPartition(topic, number) for number in range(count)]
        asked = self._kafka.ConsumerGroupTopicPartitions(group, places)

        def ask(left: float) -> Any:
            answers = self._admin.list_consumer_group_offsets([asked], require_stable=True, request_timeout=left)
            try:
                return self._result(answers).topic_partitions
            except self._kafka.KafkaException as problem:
                if problem.args[0].name() == "GROUP_ID_NOT_FOUND":
                    return []
                raise

        answer = self._ask(f"the positions of {group}", ask)
        found = {place.partition: place.offset for place in answer}
        return [found[number] if found.get(number, -1) >= 0 else None for number in range(count)]

    def members(self, group: str) -> int:
        """How many instances are in a group."""

        def ask(left: float) -> int:
            try:
                return len(self._result(self._admin.describe_consumer_groups([group], request_timeout=left)).members)
            except self._kafka.KafkaException as problem:
                if problem.args[0].name() == "GROUP_ID_NOT_FOUND":
                    return 0
                raise

        return self._ask(f"the group {group}", ask)

    def _ask(self, what: str, call: Callable[[float], _Result]) -> _Result:
        """Ask again while what fails may pass; who waits for long (`lag --wait`) may outlive brokers."""
        return self._patience.ask(what, call, again=self._admins.renew)

    def _config(self, asked: Any, left: float) -> Any:
        return self._result(self._admin.describe_configs([asked], request_timeout=left))

    def _offsets(self, topic: str, count: int, where: Any) -> list[int]:
        asked = {self._kafka.TopicPartition(topic, number): where for number in range(count)}
        level = self._kafka.IsolationLevel.READ_UNCOMMITTED

        def ask(left: float) -> dict[int, int]:
            answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=left)
            return {place.partition: answer.result().offset for place, answer in answers.items()}

        found = self._ask(f"the offsets of {topic}", ask)
        return [found[number] for number in range(count)]

    def _metadata(self) -> Any:
        try:
            return self._admin.list_topics(timeout=self._timeout)
        except self._kafka.KafkaException as problem:
            self._admin.poll(0.1)
            self._admins.renew()
            why = self._problems[-1] if self._problems else problem.args[0].str()
            msg = f"no broker answers at {self.settings.bootstrap} within {self._timeout:g} s: {why}"
            raise BrokerUnreachable(msg) from problem

    @staticmethod
    def _result(answers: dict[Any, Any]) -> Any:
        (answer,) = answers.values()
        return answer.result()


def _is_led(topic: Any) -> bool:
    return topic is not None and bool(topic.partitions) and all(part.leader >= 0 for part in topic.partitions.values())
