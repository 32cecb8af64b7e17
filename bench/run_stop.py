"""How soon `meguri run` ends when it is told to, amid a large input, and that it then goes on to the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["stop_and_go_on"]

_POLL = 0.05


def stop_and_go_on(source: Path, data: Path, fraction: float, environment: dict[str, str]) -> dict[str, Any]:
    """Run, send SIGTERM when this fraction of the input has been read, run again.

    Returns:
        `seconds` from the signal to the end, `exit_code` then, `totals` after the second run.

    Raises:
        RuntimeError: the run ended before the signal, or the second one failed.
    """
    command = [sys.executable, "-m", "meguri", "run", str(source), "--data", str(data), "--json"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while _read_so_far(process.pid, source) < fraction * source.stat().st_size:
            if process.poll() is not None:
                msg = f"meguri run ended with {process.returncode} before it was told to: {process.communicate()[1]!r}"
                raise RuntimeError(msg)
            time.sleep(_POLL)
        process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        process.communicate()
        seconds = time.monotonic() - sent
    finally:
        process.kill()
        process.wait()
    again = subprocess.run(command, env=environment, capture_output=True, check=False)
    if again.returncode:
        msg = f"the run that went on ended with {again.returncode}: {again.stderr.decode(errors='replace')}"
        raise RuntimeError(msg)
    return {"seconds": seconds, "exit_code": process.returncode, "totals": json.loads(again.stdout)}


def _read_so_far(pid: int, source: Path) -> int:
    """How far a process has read a file, from what the kernel says of its descriptors; 0 if it hasn't opened it."""
    process = Path(f"/proc/{pid}")
    try:
        for descriptor in (process / "fd").iterdir():
            if descriptor.readlink() == source:
                return int((process / "fdinfo" / descriptor.name).read_text().split()[1])
    except FileNotFoundError:
        return 0  # a descriptor, or the process, has just gone: the next look tells
    return 0
