"""The web views: the page, the state as JSON, Prometheus's text, health."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from faust.web import View

from meguri_monitor.prometheus import CONTENT_TYPE, exposition
from meguri_monitor.report import fleet_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meguri_monitor.monitor import Monitor

__all__ = ["add_views", "page_headers"]

_HEADERS: Mapping[str, str] = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_STATE_SECONDS = 1.0
_encode = msgspec.json.Encoder().encode


def add_views(app: Any, monitor: Monitor) -> None:
    """Serve the views with the application's web server."""
    page = (files("meguri_monitor") / "page" / "index.html").read_text(encoding="utf-8")
    headers = page_headers(page)

    def index() -> Answer:
        return Answer(page.encode(), "text/html; charset=utf-8", headers=headers)

    made: tuple[float, Answer] | None = None

    def state() -> Answer:
        nonlocal made
        now = time.time()
        # It takes some milliseconds: however many look on, it is made about once a second.
        if made is None or not 0 <= now - made[0] < _STATE_SECONDS:
            document = _encode(fleet_state(monitor.fleet, monitor.history(now), now, monitor.suspects))
            made = (now, Answer(document, _JSON))
        return made[1]

    def metrics() -> Answer:
        return Answer(exposition(monitor.fleet, time.time()).encode(), CONTENT_TYPE)

    def health() -> Answer:
        listening = monitor.listening
        document = _encode({"listening": listening, "samples": monitor.fleet.hearing.samples})
        return Answer(document, _JSON, status=200 if listening else 503)

    for path, answer in (("/", index), ("/api/state", state), ("/metrics", metrics), ("/health", health)):
        app.page(path)(_view(answer))


@dataclass(frozen=True)
class Answer:
    """What a view answers."""

    body: bytes
    content_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: _HEADERS)


def _view(answer: Callable[[], Answer]) -> type[View]:
    class Answering(View):
        async def get(self, request: Any, **options: Any) -> Any:
            del request, options
            given = answer()
            headers = {**given.headers, "Content-Type": given.content_type}
            return self.bytes(given.body, headers=headers, status=given.status)

        head = get

    return Answering


_JSON = "application/json"


def page_headers(page: str) -> dict[str, str]:
    """Headers that let the page run its own script and style, talk to its own server, and nothing else."""
    scripts, styles = (
        " ".join(f"'sha256-{_digest(block)}'" for block in re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
        for tag in ("script", "style")
    )
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {**_HEADERS, "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}


def _digest(block: str) -> str:
    return base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
