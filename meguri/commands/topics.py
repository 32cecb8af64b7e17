"""`meguri topics`: make a campaign's topics, or say what of them doesn't fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import columns, json_option, print_json
from meguri.fleet.options import data_of, fleet_options, state_root_option
from meguri_common.errors import CampaignMismatch, TopicMismatch
from meguri_common.topics import DELTAS, FRONTIER, LINKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meguri.fleet.campaign import FleetCampaign
    from meguri.fleet.cluster import Cluster
    from meguri.fleet.topics import FoundTopic, Mismatch, TopicPlan
    from meguri_common.config import Loaded

__all__ = ["topics"]


@click.group()
def topics() -> None:
    """Make a campaign's topics, or check them."""


@topics.command()
@state_root_option
@fleet_options
@click.option(
    "--partitions",
    metavar="N",
    type=click.IntRange(1, 4096),
    help="Partitions of links, frontier, deltas and store of a new campaign (default 64); fixed from then on.",
)
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="URL policy of a new campaign (JSON); fixed from then on.",
)
@json_option
def create(loaded: Loaded, partitions: int | None, policy: Path | None, *, as_json: bool) -> None:
    """Make the topics of a campaign, and the campaign if the state root has none yet.

    What is there already is left as it is, if it fits. If anything doesn't, nothing is made. Numbers of partitions,
    replication and times come from the settings (see: meguri config show).

    \b
    Exit codes: 0 all topics are there and fit; 2 wrong use; 4 no broker answers, one is older than 4.0, a topic or
    the state root doesn't fit.

    \b
    Examples:
      meguri topics create --bootstrap localhost:9092 --data /srv/meguri
      MEGURI_TOPICS_REPLICATION=3 meguri topics create --bootstrap a:9092,b:9092 --data /srv/meguri --partitions 128
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.campaign import DEFAULT_PARTITIONS, create_campaign, find_campaign  # noqa: PLC0415 - see above
    from meguri.fleet.cluster import Cluster  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.topics import FoundTopic, mismatches, plan_topics  # noqa: PLC0415 - see above

    data, cluster = data_of(loaded), Cluster(loaded.settings.kafka)
    cluster.check_version()
    known = find_campaign(data)
    asked = partitions or loaded.settings.topics.partitions
    count = known.identity.partitions if known else asked or DEFAULT_PARTITIONS
    plans = plan_topics(loaded.settings, count, cluster.brokers())
    found = cluster.topics([plan.topic for plan in plans])
    _refuse([each for each in mismatches(plans, found) if each.setting != "topic"], "Nothing was made")
    if known is None:
        _refuse_used(loaded, cluster, found)
    campaign = create_campaign(data, partitions=asked, policy=policy)
    made = set(cluster.create([plan for plan in plans if plan.topic not in found]))
    cluster.await_topics(plans)
    # Another may have made one meanwhile; and one that was made now counts as planned: metadata come late.
    now = {
        plan.topic: FoundTopic(plan.partitions, plan.replication, plan.config) for plan in plans if plan.topic in made
    }
    now |= cluster.topics([plan.topic for plan in plans if plan.topic not in made])
    _refuse(mismatches(plans, now), "Made meanwhile by another")
    if as_json:
        print_json(_document(campaign, plans, made))
        return
    for line in columns([(plan.topic, *_shape(plan), "made" if plan.topic in made else "fits") for plan in plans]):
        click.echo(line)


@topics.command()
@state_root_option
@fleet_options
@json_option
def check(loaded: Loaded, *, as_json: bool) -> int:
    """Say what of a campaign's topics is missing or isn't as it must be.

    \b
    Exit codes: 0 all fit; 1 something doesn't; 2 wrong use; 4 no broker answers, or one is older than 4.0, or the
    state root has no campaign.

    \b
    Examples:
      meguri topics check --bootstrap localhost:9092 --data /srv/meguri
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.campaign import open_campaign  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.cluster import Cluster  # noqa: PLC0415 - see above
    from meguri.fleet.topics import mismatches, plan_topics  # noqa: PLC0415 - see above

    campaign = open_campaign(data_of(loaded))
    cluster = Cluster(loaded.settings.kafka)
    cluster.check_version()
    _same_partitions(loaded, campaign)
    plans = plan_topics(loaded.settings, campaign.identity.partitions, cluster.brokers())
    wrong = mismatches(plans, cluster.topics([plan.topic for plan in plans]))
    if as_json:
        rows = [
            {"topic": each.topic, "setting": each.setting, "found": each.found, "wanted": each.wanted} for each in wrong
        ]
        print_json({**_document(campaign, plans, set()), "mismatches": rows})
    elif wrong:
        for each in wrong:
            click.echo(str(each))
    else:
        for line in columns([(plan.topic, *_shape(plan), "fits") for plan in plans]):
            click.echo(line)
    return 1 if wrong else 0


def _same_partitions(loaded: Loaded, campaign: FleetCampaign) -> None:
    stated = loaded.settings.topics.partitions
    if stated is not None and stated != campaign.identity.partitions:
        msg = (
            f"{campaign.data} was made with {campaign.identity.partitions} partitions, the setting topics.partitions "
            f"says {stated}. The number is fixed for a campaign: take the setting out."
        )
        raise CampaignMismatch(msg)


def _refuse_used(loaded: Loaded, cluster: Cluster, found: Mapping[str, FoundTopic]) -> None:
    """Refuse to start a campaign on another one's inboxes: their keys are of its policy, its state is elsewhere."""
    for name in map(loaded.settings.kafka.topic, (LINKS, FRONTIER, DELTAS)):
        if name in found and any(end for _, end in cluster.ends(name)):
            msg = (
                f"{name} holds or held messages of a campaign that {loaded.settings.data} knows nothing of. Give that "
                "campaign's state root with --data, or start a new one under another kafka.prefix."
            )
            raise TopicMismatch(msg)


def _refuse(wrong: Sequence[Mismatch], so: str) -> None:
    if wrong:
        listed = "; ".join(str(each) for each in wrong)
        msg = f"{listed}. {so}. Change the topic (kafka-configs) or the settings, or give another kafka.prefix."
        raise TopicMismatch(msg)


def _shape(plan: TopicPlan) -> tuple[str, str, str]:
    milliseconds = int(plan.config["retention.ms"])
    kept = "kept until deleted" if milliseconds < 0 else f"kept for {milliseconds // 3_600_000} h"
    return f"{plan.partitions} partitions", f"{plan.replication} replicas", kept


def _document(campaign: FleetCampaign, plans: Sequence[TopicPlan], made: set[str]) -> dict[str, Any]:
    rows = [
        {
            "topic": plan.topic,
            "partitions": plan.partitions,
            "replication": plan.replication,
            "config": dict(plan.config),
            "made": plan.topic in made,
        }
        for plan in plans
    ]
    return {"campaign": campaign.identity.campaign, "partitions": campaign.identity.partitions, "topics": rows}
