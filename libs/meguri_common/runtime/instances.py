"""Names of instances: stable over restarts on a host, and never two at once.

A transactional id must be the same after a restart, so that what a killed instance left open is settled at once, and
must not be shared by two that run. So each instance holds a lock on a small file for as long as it lives, the lowest
that is free on its host.
"""

from __future__ import annotations

import fcntl
import os
import re
from typing import TYPE_CHECKING

from meguri_common.errors import DataFolderError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

__all__ = ["InstanceSlot"]

_MOST = 1024
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


class InstanceSlot:
    """A name that is this process's while the object is open."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor = descriptor

    @classmethod
    def take(cls, data: Path, service: str, host: str, *, name: str | None = None) -> Self:
        """Take the given name, or the lowest of this host that is free.

        Args:
            data: the state root.
            service: name of the service.
            host: name of the host: instances on other hosts have names of their own.
            name: to take this one.

        Raises:
            DataFolderError: the name is taken, or the folder can't be used.
        """
        folder = data / "state" / service / "instances"
        wanted = [name] if name else [f"{host}-{number}" for number in range(_MOST)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for candidate in wanted:
                fit = _UNFIT.sub("_", candidate)
                descriptor = os.open(folder / f"{fit}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                    continue
                return cls(fit, descriptor)
        except OSError as problem:
            msg = f"{folder}: can't hold an instance's lock: {problem.strerror or problem}. Name it with --instance."
            raise DataFolderError(msg) from problem
        msg = f"{folder}: another process is the {service} instance {wanted[0]}: give each a name of its own"
        raise DataFolderError(msg)

    def close(self) -> None:
        """Give the name back."""
        os.close(self._descriptor)
