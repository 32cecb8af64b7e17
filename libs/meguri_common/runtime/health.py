"""Whether a process is alive and ready, over HTTP for whoever watches it, from a thread of its own."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.runtime.worker import Worker

__all__ = ["Health", "HealthServer"]

_ALIVE_WITHIN = 120.0


class Health:
    """What the loop has last said of itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said = clock()
        self._state: dict[str, Any] = {"loaded": 0, "restoring": 0, "stopped": {}, "failures": 0}

    def note(self, worker: Worker) -> None:
        """Take over a worker's state, between two pieces of work."""
        self._said = self._clock()
        self._state = {
            "loaded": len(worker.loaded),
            "restoring": len(worker.restoring),
            "stopped": {
                str(still.source): {"offset": still.offset, "problem": str(still.problem)}
                for still in worker.stopped.values()
            },
            "failures": worker.failures,
        }

    def document(self, question: str) -> tuple[bool, dict[str, Any]]:
        """Answer to `live` (the loop turns) or `ready` (it also works on all its partitions), with the state."""
        state = self._state
        alive = self._clock() - self._said < _ALIVE_WITHIN
        good = alive and (question == "live" or not (state["restoring"] or state["stopped"] or state["failures"]))
        return good, {"ok": good, **state}


class HealthServer:
    """Answers `/live` and `/ready` with 200 or 503 and a JSON object."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            OSError: the address can't be used.
        """

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                question = self.path.strip("/")
                if question not in {"live", "ready"}:
                    self.send_error(404)
                    return
                good, document = health.document(question)
                body = msgspec.json.encode(document)
                self.send_response(200 if good else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing: a question a second isn't worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
