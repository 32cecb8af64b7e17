"""The parameters of folding and scheduling, as a service or a command is given them by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from meguri_store.fold import FoldRules
from meguri_store.freshness import MOST_HOURS, Freshness

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULTS", "fold_rules"]

_FOLD = FoldRules()

DEFAULTS: Mapping[str, Any] = {
    "flat_gap": _FOLD.flat_gap,
    "max_retries": _FOLD.max_retries,
    "reschedule": _FOLD.reschedule,
    "budget": _FOLD.budget,
    **Freshness()._asdict(),
}
"""All parameters by name, see `FoldRules` and `Freshness`, with the values they have if nobody says otherwise."""

_MOST_RETRIES = 0xFF
_WHOLE = {
    "flat_gap": (1, MOST_HOURS, "hours from 1 on"),
    "max_retries": (1, _MOST_RETRIES, "1 to 255"),
    "min_reprobe_gap": (1, MOST_HOURS, "hours from 1 on"),
    "host_spread_window": (1, MOST_HOURS, "hours from 1 on"),
}
_POSITIVE = ("alpha", "min_rate", "max_rate", "ref_rate", "reprobe_rate")
_NOT_NEGATIVE = ("budget", "recency_half_life")


def fold_rules(parameters: Mapping[str, Any]) -> FoldRules:
    """The rules that parameters state; those that aren't given have their defaults.

    Raises:
        ValueError: a parameter is unknown or out of range; the message names it and what it may be.
    """
    unknown = parameters.keys() - DEFAULTS.keys()
    if unknown:
        msg = f"the store knows no parameters {sorted(unknown)}"
        raise ValueError(msg)
    given = {**DEFAULTS, **parameters}
    for name, (least, most, what) in _WHOLE.items():
        if not isinstance(given[name], int) or isinstance(given[name], bool) or not least <= given[name] <= most:
            msg = f"{name} is {given[name]}: {what}"
            raise ValueError(msg)
    for name in (*_POSITIVE, *_NOT_NEGATIVE):
        value = given[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and name in _POSITIVE):
            msg = f"{name} is {value}: a number{'' if name in _POSITIVE else ' from 0 on, or'} above 0"
            raise ValueError(msg)
        given[name] = float(value)
    if not isinstance(given["reschedule"], bool):
        msg = f"reschedule is {given['reschedule']}: true or false"
        raise ValueError(msg)  # noqa: TRY004 - whoever sets parameters by name meets one kind of error
    if given["min_rate"] >= given["max_rate"]:
        msg = f"min_rate is {given['min_rate']}, max_rate {given['max_rate']}: the first must be below the second"
        raise ValueError(msg)
    freshness = Freshness(**{name: given.pop(name) for name in Freshness._fields})
    return FoldRules(**given, freshness=freshness)
