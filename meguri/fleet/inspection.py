"""What a fleet's state root is made of, and whether all of it is as its writers left it; no broker is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meguri.embedded.overview import counts_of
from meguri.inspecting import describe_snapshots, generations_of, identity_of, seen_sets_of
from meguri.verifying import verify_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri.fleet.view import FleetView
    from meguri_common.runtime.service import ServiceSpec

__all__ = ["inspect_root", "sum_up_root", "verify_root"]


def inspect_root(view: FleetView) -> dict[str, Any]:
    """Identity, snapshots, generations and seen-sets; offsets and topics are the brokers' (`meguri lag`)."""
    services = {
        spec.name: [
            {"partition": number, "snapshots": describe_snapshots(view, spec, number)}
            for number in range(view.count(spec.name))
        ]
        for spec in view.specs
        if spec.stateful
    }
    return {
        "identity": identity_of(view),
        "services": services,
        "generations": list(generations_of(view)),
        "seen_set": seen_sets_of(view),
    }


def sum_up_root(view: FleetView) -> dict[str, Any]:
    """Totals, and records by status, reason and source, as the newest snapshots have them.

    Rejects are counted by the brokers, so that `events_rejected` isn't among them.
    """
    counts = counts_of(view, 0)
    del counts["events_rejected"]
    return counts


def verify_root(view: FleetView, said: Callable[[str], None]) -> dict[str, int]:
    """Read everything that has a checksum.

    Returns:
        How many manifests, files, generations and records were read, and the partitions that have no snapshot (which
        must be right where a service has read nothing yet: only the brokers know).

    Raises:
        CorruptSnapshot, CorruptGeneration, ManifestError, CampaignMismatch: at the first lie; names the file.
    """
    without: list[tuple[str, int]] = []

    def lacking(spec: ServiceSpec, number: int) -> None:
        without.append((spec.name, number))

    return {**verify_files(view, said, lacking), "without_snapshot": len(without)}
