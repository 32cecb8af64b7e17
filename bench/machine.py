"""How fast the machine is just now, apart from anything that is measured on it.

    python bench/machine.py

Machines that others share change their speed by half within minutes. Each benchmark notes these figures before and
after its own, so that figures of two runs can be put beside each other.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from run_figures import Figures

__all__ = ["add_machine", "measure_machine"]

_TURNS = 1_000_000
_READS = 1_000_000
_AT_ONCE = 10_000
_ROUNDS = 5


def _cpu(work: Callable[[], object]) -> float:
    """CPU seconds, the median of some rounds."""
    spent = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return statistics.median(spent)


def _loop() -> int:
    total = 0
    for number in range(_TURNS):
        total += number
    return total


def _reads(mebibytes: int) -> float:
    """Time, in ns, of a read of 8 bytes at random out of so much memory, many in flight at once (`numpy.take`)."""
    random = np.random.default_rng(1)
    words = random.integers(0, 1 << 62, mebibytes << 17)
    places = [random.integers(0, words.size, _AT_ONCE) for _ in range(_READS // _AT_ONCE)]
    return _cpu(lambda: [words.take(some) for some in places]) * 1e9 / _READS


def measure_machine() -> dict[str, tuple[float, str]]:
    """CPU of a turn of a Python loop, and of reads at random out of 8 and 256 MiB."""
    return {
        "a turn of a Python loop": (_cpu(_loop) * 1e9 / _TURNS, "ns"),
        "a read at random, out of 8 MiB": (_reads(8), "ns"),
        "a read at random, out of 256 MiB": (_reads(256), "ns"),
    }


def add_machine(figures: Figures, when: str) -> None:
    """Note them."""
    for name, (value, unit) in measure_machine().items():
        figures.add(f"machine, {when}: {name}", value, unit)


if __name__ == "__main__":
    for name, (value, unit) in measure_machine().items():
        print(f"{name}: {value:.3g} {unit}")
