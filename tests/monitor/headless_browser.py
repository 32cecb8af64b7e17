"""A page in headless Chromium, driven over its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["Page", "browser_path", "open_page", "running_browser"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE = 40.0


def browser_path() -> str | None:
    """Chromium: the one that MEGURI_TEST_CHROMIUM names, an installed one, or Playwright's."""
    named = os.environ.get("MEGURI_TEST_CHROMIUM")
    if named:
        return named
    installed = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if installed:
        return installed
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ms-playwright"
    return next((str(path) for path in sorted(cache.glob("chromium-*/chrome-linux*/chrome"))), None)


class Page:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        """Exceptions, and what the browser refused or complained of."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            said = await self._socket.receive_json(timeout=_PATIENCE)
            if said.get("id") == number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result
            if said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])

    async def value(self, expression: str) -> Any:
        """What an expression gives on the page."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def wait_for(self, expression: str) -> None:
        """Until an expression holds."""
        ends = time.monotonic() + _PATIENCE
        while not await self.value(expression):
            assert time.monotonic() < ends, (expression, await self.value("document.body.innerText"), self.complaints)
            await asyncio.sleep(0.1)

    async def picture(self, *, dark: bool = False) -> bytes:
        """A PNG of the whole page."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])


@contextlib.contextmanager
def running_browser(browser: str, folder: Path) -> Iterator[int]:
    """A browser of its own; gives the port of its debugging protocol."""
    command = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        file, ends = folder / "DevToolsActivePort", time.monotonic() + _PATIENCE
        while not file.exists() or not file.read_text():
            assert process.poll() is None, "the browser ended at once"
            assert time.monotonic() < ends, "the browser doesn't start"
            time.sleep(0.05)
        yield int(file.read_text().split()[0])
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def open_page(port: int, address: str, *, width: int, height: int) -> AsyncIterator[Page]:
    """Open an address in the page that a fresh browser shows."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            targets = await answer.json()
        (target,) = [one for one in targets if one["type"] == "page"]
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=1 << 26) as socket:
            page = Page(socket)
            for domain in ("Runtime", "Log", "Page"):
                await page.call(f"{domain}.enable")
            await page.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
            )
            await page.call("Page.navigate", url=address)
            yield page
