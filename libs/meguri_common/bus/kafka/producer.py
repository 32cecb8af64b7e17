"""The transactional producer.

After any error or timeout of a transaction its outcome counts as unknown: the producer is used up, and a new one of
the same transactional id settles it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client
from confluent_kafka import TopicPartition as ClientPartition

from meguri_common.bus.kafka.failures import FENCING, error_of, log
from meguri_common.bus.kafka.member import KafkaMember
from meguri_common.bus.kafka.names import HEADERS_KEY
from meguri_common.bus.port import TopicPartition
from meguri_common.errors import BusError, Fenced, MessageTooLarge, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Buffer

    from meguri_common.bus.kafka.failures import Patience
    from meguri_common.bus.kafka.settings import KafkaSettings
    from meguri_common.bus.port import Commit, Member

__all__ = ["KafkaProducer"]

_MARGIN = 10.0
"""Seconds beyond the transaction's timeout that a commit waits for its answer."""
_LATE = 5.0
"""Seconds beyond its own limit after which a call that doesn't come back is given up."""
_SLICE = 1.0


class KafkaProducer:
    """See `bus.port.Producer`."""

    def __init__(
        self,
        name: str,
        settings: KafkaSettings,
        patience: Patience,
        *,
        now: Callable[[], float],
        check: Callable[[TopicPartition], Any],
    ) -> None:
        """Settle what an earlier producer of the name left, and fence it.

        Args:
            name: the transactional id, before the prefix.
            settings: of the bus.
            patience: of the bus.
            now: clock for append times, epoch seconds.
            check: refuses a partition that isn't there.

        Raises:
            BusError: the brokers don't answer.
        """
        self._name = name
        self._topic = settings.topic
        self._limit = settings.message_bytes
        self._patience = patience
        self._timeout = settings.transaction_timeout + _MARGIN
        self._now = now
        self._check_partition = check
        self._open = False
        self._used_up: BusError | None = None
        self._client: Client | None = Client(settings.producer(name), logger=log)
        client = self._client
        patience.ask(f"{name}: taking the transactional id over", client.init_transactions)

    def begin(self) -> None:
        """See `Producer`."""
        client = self._usable()
        if self._open:
            msg = f"{self._name}: a transaction is open already"
            raise BusError(msg)
        try:
            client.begin_transaction()
        except KafkaException as problem:
            raise self._failed(problem, "beginning") from problem
        self._open = True

    def publish(self, target: TopicPartition, payload: Buffer, *, headers: bytes = b"", at: int | None = None) -> None:
        """See `Producer`.

        Raises:
            MessageTooLarge: no broker would take it.
        """
        client = self._in_transaction()
        self._check_partition(target)
        content = payload if isinstance(payload, bytes) else bytes(payload)
        if len(content) > self._limit:
            msg = f"{target}: a message of {len(content)} bytes; it may have {self._limit}"
            raise MessageTooLarge(msg)
        deadline = self._patience.deadline()
        stamp = (int(self._now()) if at is None else at) * 1000
        try:
            while not self._offered(client, target, content, headers, stamp):
                if self._patience.over(deadline):
                    msg = f"{self._name}: publishing: the brokers take nothing, and too much waits for them"
                    raise self._failed(BufferError(msg), "publishing")
        except KafkaException as problem:
            # Also from serving the client's events: that is where it says that it has been fenced.
            raise self._failed(problem, "publishing") from problem

    def commit_offsets(self, member: Member, commits: Mapping[int, Commit]) -> None:
        """See `Producer`; a fenced member's transaction is given up."""
        client = self._in_transaction()
        assert isinstance(member, KafkaMember), "members and producers are of one bus"
        for partition, commit in commits.items():
            source = TopicPartition(member.topic, partition)
            self._check_partition(source)
            if commit.offset < 0:
                msg = f"{source}: {commit.offset} is no position"
                raise BusError(msg)
        try:
            metadata = member.metadata_for(commits)
        except Fenced:
            self.abort()
            raise
        positions = [
            ClientPartition(self._topic(member.topic), partition, commit.offset, commit.metadata)
            for partition, commit in commits.items()
        ]
        doing = f"committing offsets of {member.group}"
        try:
            # The client was seen to wait here for far longer than it was told, when a coordinator went.
            self._patience.bounded(
                f"{self._name}: {doing}",
                lambda: client.send_offsets_to_transaction(positions, metadata, self._timeout),
                seconds=self._timeout + _LATE,
            )
        except KafkaException as problem:
            raise self._failed(problem, doing) from problem
        except BusError as problem:
            self._used_up = problem
            self._open = False
            raise

    def commit(self) -> None:
        """See `Producer`: every failure leaves the outcome unknown."""
        client = self._in_transaction()
        self._open = False
        deadline = self._patience.deadline(self._timeout)
        while True:
            try:
                client.commit_transaction(min(_SLICE, self._patience.left(deadline)))
            except KafkaException as problem:
                error = error_of(problem)
                if error.retriable() and not self._patience.over(deadline):
                    continue
                self._used_up = OutcomeUnknown(f"{self._name}: committing: {error.str()} ({error.name()})")
                raise self._used_up from problem
            else:
                return

    def abort(self) -> None:
        """See `Producer`; a failure leaves it to the next producer of the name."""
        if not self._open or self._client is None or self._used_up is not None:
            self._open = False
            return
        self._open = False
        client = self._client
        try:
            self._patience.ask(f"{self._name}: aborting", client.abort_transaction)
        except BusError as problem:
            log.warning("%s; the next producer of the name settles it", problem)
            self._used_up = problem

    def close(self) -> None:
        """See `Producer`."""
        self.abort()
        self._client = None

    def supersede(self) -> None:
        """Let go without a word to the brokers: a newer producer of the name settles what is open."""
        self._client = None
        self._open = False
        if self._used_up is None:
            self._used_up = Fenced(f"{self._name}: a newer producer of this name has taken over")

    def _offered(self, client: Client, target: TopicPartition, content: bytes, headers: bytes, stamp: int) -> bool:
        """Hand a message to the client; False if its queue is full, after a moment in which it may have got room."""
        try:
            client.produce(
                self._topic(target.topic),
                content,
                partition=target.partition,
                timestamp=stamp,
                headers=[(HEADERS_KEY, headers)] if headers else None,
            )
        except BufferError:
            client.poll(0.05)
            return False
        client.poll(0)
        return True

    def _usable(self) -> Client:
        if self._used_up is not None:
            raise type(self._used_up)(str(self._used_up))
        if self._client is None:
            msg = f"{self._name}: the producer is closed"
            raise BusError(msg)
        return self._client

    def _in_transaction(self) -> Client:
        client = self._usable()
        if not self._open:
            msg = f"{self._name}: no transaction is open"
            raise BusError(msg)
        return client

    def _failed(self, problem: BaseException, doing: str) -> BusError:
        """The error for a call before the commit: nothing of the transaction has taken effect."""
        error = error_of(problem)
        kind = Fenced if error.code() in FENCING else BusError
        self._used_up = kind(f"{self._name}: {doing}: {error.str()} ({error.name()})")
        self._open = False
        return self._used_up
