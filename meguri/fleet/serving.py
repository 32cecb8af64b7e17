"""One instance of a service on Kafka: from the settings to the end of its loop."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri.embedded.campaign import service_specs
from meguri.fleet.campaign import open_campaign
from meguri_common.bus.port import TopicPartition
from meguri_common.errors import CampaignMismatch, ConfigError
from meguri_common.kafka import kafka_module
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.fleet import FleetProcess
from meguri_common.runtime.health import Health, HealthServer
from meguri_common.runtime.instances import InstanceSlot
from meguri_common.runtime.partition import Surroundings
from meguri_common.runtime.skips import FleetSkips
from meguri_common.runtime.worker import Worker, WorkerLimits
from meguri_common.telemetry.kafka import KafkaEmitter
from meguri_common.telemetry.reporter import Reporter, SystemProcess
from meguri_common.telemetry.sampling import InstanceName
from meguri_common.topics import DELTAS, FRONTIER, LINKS, TELEMETRY
from meguri_store.background import Compactor
from meguri_store.manifest import write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meguri.fleet.campaign import FleetCampaign
    from meguri_common.bus.kafka.bus import KafkaBus
    from meguri_common.config import Settings
    from meguri_common.runtime.service import ServiceSpec
    from meguri_common.runtime.worker import Step

__all__ = ["ServeOptions", "serve"]

_log = logging.getLogger(__name__)

_KEYED = (LINKS, FRONTIER, DELTAS)
_WAIT = 0.2
_STEPS_A_TIMEOUT = 3


@dataclass(frozen=True)
class ServeOptions:
    """What an instance is told beside the settings."""

    instance: str | None = None
    """Its name; by default the lowest of this host that is free."""
    health: tuple[str, int] | None = None
    """Host and port at which it says how it is."""


def serve(
    service: str,
    settings: Settings,
    data: Path,
    options: ServeOptions,
    *,
    stopping: Callable[[], bool],
) -> bool:
    """Run an instance of a service until it is asked to stop; whether it left in order.

    Args:
        service: canonicalizer, dedup, prioritizer or store.
        settings: of the fleet.
        data: the state root.
        options: of this instance.
        stopping: asked between two pieces of work, and while the brokers are waited for.

    Raises:
        ConfigError, DataFolderError, CampaignMismatch, ParameterError, TopicMissing: it can't be started like this.
    """
    campaign = open_campaign(data)
    files = LocalFiles(data)
    compactor = Compactor()
    spec = _spec(service, campaign, files, settings, compactor)
    slot = InstanceSlot.take(data, service, socket.gethostname(), name=options.instance)
    bus = _open_bus(settings, stopping)
    health = Health()
    server = _listen(health, options)
    try:
        if service == "store":
            write_manifest(files, campaign.identity, secrets.token_hex(6))
        around = Surroundings(
            bus=bus,
            files=files,
            identity=campaign.identity,
            now=time.time,
            token=lambda: secrets.token_hex(6),
            skips=FleetSkips(files, bus, lambda: secrets.token_hex(6)),
        )
        reporter = _reporter(slot.name, service, campaign, settings)
        limits = WorkerLimits(
            step_bytes=settings.fleet.step_bytes,
            step_seconds=settings.fleet.transaction_timeout / _STEPS_A_TIMEOUT,
            snapshot_after=settings.fleet.snapshot_bytes,
            wait=_WAIT,
        )

        def make() -> Worker:
            _check_partitions(bus, campaign)
            return Worker(spec, around, f"{service}.{slot.name}", limits=limits, on_step=_told(reporter))

        def tick(worker: Worker) -> None:
            health.note(worker)
            reporter.tick(
                worker.loaded.values(),
                restoring=worker.restoring,
                stopped=worker.stopped,
                end_of=lambda number: bus.last_end(TopicPartition(spec.input_topic, number)),
            )

        _log.info("%s: instance %s of campaign %s", service, slot.name, campaign.identity.campaign)
        done = FleetProcess(make, stopping=stopping, tick=tick).run()
        reporter.leave()
        return done
    finally:
        compactor.close()
        bus.close()
        if server is not None:
            server.close()
        slot.close()


def _open_bus(settings: Settings, stopping: Callable[[], bool]) -> KafkaBus:
    """The bus as services use it: by the program's own names of topics."""
    config = settings.kafka.client_config()
    kafka_module()
    from meguri_common.bus.kafka.bus import KafkaBus  # noqa: PLC0415 - it needs the client
    from meguri_common.bus.kafka.settings import KafkaSettings  # noqa: PLC0415 - see above

    fleet, prefix = settings.fleet, settings.kafka.prefix
    return KafkaBus(
        KafkaSettings(
            client=config,
            prefix=prefix,
            topic_prefix=prefix,
            transaction_timeout=fleet.transaction_timeout,
            session_timeout=fleet.session_timeout,
            give_up_timeout=fleet.give_up_timeout,
            protocol=fleet.protocol,
            linger=fleet.commit_interval,
        ),
        stopping=stopping,
    )


def _spec(
    service: str, campaign: FleetCampaign, files: LocalFiles, settings: Settings, compactor: Compactor
) -> ServiceSpec:
    specs = service_specs(
        campaign.identity, campaign.policy, files, lambda: secrets.token_hex(6), settings.parameters, compactor
    )
    return next(spec for spec in specs if spec.name == service)


def _check_partitions(bus: KafkaBus, campaign: FleetCampaign) -> None:
    """Refuse topics that were cut otherwise than the campaign's keys are.

    Raises:
        CampaignMismatch: naming the topic and both numbers.
        TopicMissing: there is no such topic.
    """
    for topic in _KEYED:
        count = bus.partitions(topic)
        if count != campaign.identity.partitions:
            msg = (
                f"{bus.settings.topic(topic)} has {count} partitions, the campaign in {campaign.data} has "
                f"{campaign.identity.partitions}. Make the topics anew, or use another prefix and folder."
            )
            raise CampaignMismatch(msg)


def _reporter(instance: str, service: str, campaign: FleetCampaign, settings: Settings) -> Reporter:
    name = InstanceName(service, instance, campaign.identity.campaign, time.time())
    kafka = settings.kafka
    return Reporter(name, KafkaEmitter(kafka.client_config(), kafka.topic(TELEMETRY)), SystemProcess())


def _told(reporter: Reporter) -> Callable[[Step], None]:
    def on_step(step: Step) -> None:
        if step.failed:
            reporter.failed(seconds=step.seconds)
        else:
            reporter.worked(messages=step.messages, nbytes=step.bytes, seconds=step.seconds)

    return on_step


def _listen(health: Health, options: ServeOptions) -> HealthServer | None:
    if options.health is None:
        return None
    host, port = options.health
    try:
        server = HealthServer(health, host, port)
    except OSError as problem:
        msg = f"--health {host}:{port}: can't listen there: {problem.strerror or problem}"
        raise ConfigError(msg) from problem
    _log.info("health at %s", server.address)
    return server
