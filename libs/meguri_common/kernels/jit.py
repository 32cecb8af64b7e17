"""How kernels are compiled: one decorator, so that options and typing are the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["inline_kernel", "kernel"]

F = TypeVar("F", bound="Callable[..., object]")


def kernel(function: F) -> F:
    """Compile for the types of the first call; compiled code is kept beside the source between runs."""
    return cast("F", numba.njit(cache=True, nogil=True, boundscheck=False)(function))


def inline_kernel(function: F) -> F:
    """A helper that is pasted into the kernels that call it."""
    return cast("F", numba.njit(cache=True, nogil=True, boundscheck=False, inline="always")(function))
