"""The Faust application: an agent that listens to telemetry, timers, and web views."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import faust

from meguri_monitor.broker import credentials
from meguri_monitor.monitor import Monitor, Stalled
from meguri_monitor.suspects import suspects_of
from meguri_monitor.web import add_views
from meguri_monitor.windows import SPAN_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from meguri_monitor.broker import TopicShape
    from meguri_monitor.monitor import MonitorSettings

__all__ = ["monitor_app"]

_LOOK_AT_STORE_EVERY = 30.0
_LOOK_AFTER_ITSELF_EVERY = 20.0


def monitor_app(settings: MonitorSettings, shape: TopicShape, scratch: Path) -> Any:
    """The application, not started.

    Args:
        settings: what to listen to, and where to serve.
        shape: of the topic; the table's changelog gets the same.
        scratch: a folder that Faust wants to have; the tables are in memory and in their changelog.
    """
    app = faust.App(
        settings.group,
        broker=[f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
        broker_credentials=credentials(settings.client or {}),
        # One that was killed is still a member for this long, and its successor waits.
        broker_session_timeout=6.0,
        broker_heartbeat_interval=2.0,
        broker_commit_interval=1.0,
        # The first start shows the past hour; what is older is passed over.
        consumer_auto_offset_reset="earliest",
        datadir=scratch,
        store="memory://",
        topic_disable_leader=True,
        topic_replication_factor=shape.replicas,
        web_bind=settings.host,
        web_host=settings.host,
        web_port=settings.port,
        web_graph_enabled=False,
        web_metrics_enabled=False,
        web_router_enabled=False,
        web_stats_enabled=False,
        web_tables_enabled=False,
    )
    monitor = Monitor(app, settings, shape.partitions)
    topic = app.topic(settings.topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    @app.agent(topic)
    async def listen(reports: Any) -> None:
        async for event in reports.events():
            try:
                place = event.message
                monitor.take(event.value, place.partition, place.offset, place.timestamp, time.time())
            except Exception as problem:
                # Faust would start the agent anew behind the message: a mistake of ours would be a silent hole.
                await app.crash(problem)
                raise

    async def look_at_store() -> None:
        monitor.suspects = await asyncio.to_thread(suspects_of, settings.data)

    async def forget() -> None:
        monitor.fleet.forget(time.time())

    async def look_after_itself() -> None:
        try:
            await monitor.look_after_itself()
        except Stalled as problem:
            await app.crash(problem)

    app.task(look_at_store)
    app.timer(_LOOK_AFTER_ITSELF_EVERY)(look_after_itself)
    app.timer(_LOOK_AT_STORE_EVERY)(look_at_store)
    app.timer(SPAN_SECONDS)(forget)
    add_views(app, monitor)
    return app
