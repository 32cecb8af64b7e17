"""`meguri explain`: one URL's story."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import columns, data_option, hour_text, json_option, print_json, safe_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["explain", "page_lines"]

_EXIT_UNKNOWN = 1
_Rows = list[tuple[str, str]]

_SOURCES = {
    "seed": "it was given as a seed, or a start page",
    "link": "a page links to it",
    "sitemap": "a sitemap lists it",
    "redirect": "a page redirects to it",
    "manual": "it was fetched or listed, though nothing that was seen before led there",
}


@click.command()
@click.argument("url", metavar="URL")
@data_option
@click.option("--base", metavar="URL", help="What a relative URL resolves against.")
@json_option
def explain(url: str, data: Path, base: str | None, *, as_json: bool) -> int:
    """Say what is known about a URL, and why it stands there.

    How it is made canonical, step by step; whether it was seen; why it was admitted or parked, and what would release
    it; each part of its priority; when it is due; and its host.

    \b
    Exit codes: 0 the frontier knows the URL; 1 it doesn't, or the URL can't be used; 2 wrong use;
    4 the data folder can't be used.

    \b
    Examples:
      meguri explain https://www.example.org/ --data ./meguri-data
      meguri explain ../a --base https://www.example.org/b/c --data ./meguri-data --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.embedded.explain import explain_url  # noqa: PLC0415 - --help must not pay for numba
    from meguri.looking import open_view  # noqa: PLC0415 - see above

    with open_view(data) as view:
        story = explain_url(view, os.fsencode(url), None if base is None else os.fsencode(base))
    if as_json:
        print_json(story)
    else:
        for line in page_lines(story, url):
            click.echo(line)
    return 0 if story["known"] else _EXIT_UNKNOWN


def page_lines(story: dict[str, Any], asked: str) -> list[str]:
    """What `explain_url` gives, as a page for people."""
    sections: list[tuple[str, _Rows]] = [(safe_text(asked), _verdict(story))]
    sections.append(("canonical form", _steps(story["steps"])))
    if story["ok"]:
        sections.append(("key", _key(story)))
    if story.get("record") is not None:
        sections.append(("record", _record(story)))
    if story.get("priority") is not None:
        sections.append(("priority", _priority(story["priority"])))
    if story.get("host") is not None:
        sections.append((f"host {story['host_group']}", _host(story["host"])))
    lines: list[str] = []
    for title, rows in sections:
        lines += ["", title] if lines else [title]
        lines += [f"  {line}" for line in columns([tuple(row) for row in rows])]
    return lines


def _verdict(story: dict[str, Any]) -> _Rows:
    if story["reject_reason"] is not None:
        return [("unusable", f"it is rejected: {story['reject_reason']}")]
    rows: _Rows = [("canonical", story["canon"])]
    if not story["known"]:
        return [*rows, ("unknown", "the frontier doesn't know this URL: no page, link, seed or sitemap led to it")]
    if story["record"] is None:
        return [*rows, ("known", "it was seen; its record is on its way to the store")]
    admitted = story["admitted"]
    rows.append(("known", f"since {hour_text(admitted['first_seen'])}: {_SOURCES[admitted['source']]}"))
    parked = story["parked"]
    if parked is not None:
        rows += [("parked", parked["reason"].replace("_", " ")), ("released by", parked["would_release"])]
    due = story["due"]
    rows.append(("due", hour_text(due["hour"]) if due["hour"] else f"never: {due['why_not'].replace('_', ' ')}"))
    return rows


def _steps(steps: list[dict[str, Any]]) -> _Rows:
    """What each step made of the URL; steps that changed nothing share a line."""
    idle = [step["name"] for step in steps if not step["changed"]]
    rows = [(step["name"], safe_text(step["value"])) for step in steps if step["changed"]]
    return [*rows, ("nothing to do", ", ".join(idle))] if idle else rows


def _key(story: dict[str, Any]) -> _Rows:
    seen = story["seen"]
    exact = "there" if seen["exact"] else "not there"
    by_filter = "perhaps there" if seen["filter"] else "certainly not there"
    return [
        ("host group", story["host_group"]),
        ("key", f"{story['host_key']} {story['path_key']} (host, path)"),
        ("partition", str(story["partition"])),
        ("seen-set", f"{exact} (the filter alone: {by_filter})"),
    ]


def _record(story: dict[str, Any]) -> _Rows:
    record, visits = story["record"], story["visits"]
    rows = [("status", record["status"].replace("_", " "))]
    if visits["last_visit"] is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(visits["last_visit"]))
        rows.append(("last visit", f"{at}, HTTP status {visits['http_status'] or 'none: no response'}"))
    else:
        rows.append(("last visit", "never"))
    rows += [
        ("fetches", f"{visits['crawl_count']} that brought something, last {hour_text(visits['last_crawled'])}"),
        ("changes", f"{visits['change_count']}, last {hour_text(visits['last_changed'])}"),
        ("failures", f"{visits['error_count']}, {visits['retry_count']} in a row"),
        ("change rate", f"{record['lambda']:.3g} an hour" if record["lambda"] else "not estimated"),
    ]
    if record["redirect"] is not None:
        rows.append(("redirects to", record["redirect"]))
    return rows


def _priority(terms: dict[str, Any]) -> _Rows:
    rank, cash, suspect = terms["page_rank"], terms["in_cash"], terms["trap_penalty"]
    seed = terms["last_seed"]
    return [
        ("depth", "not stated" if terms["depth"] is None else str(terms["depth"])),
        ("last seeded", "never" if seed is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seed))),
        ("cash", f"{cash['cash']:.6g} held, {cash['history']:.6g} earned before, {cash['floor']:.6g} of the pool"),
        ("score", f"{terms['score']:.6g} (of the cash)"),
        ("page rank", "none imported" if rank is None else f"{rank:.6g}, epoch {terms['page_rank_epoch']}"),
        ("host score", f"{terms['host_score']:.6g}"),
        ("blended", f"{terms['blended']:.6g}"),
        ("trap penalty", "none" if suspect is None else f"x {suspect:g} -> {terms['after_trap_penalty']:.6g}"),
        ("depth penalty", f"-> {terms['priority']:.6g}: the priority"),
        ("level", str(terms["level"])),
        ("in the store", "none yet" if terms["in_store"] is None else f"{terms['in_store']:.6g}"),
    ]


def _host(host: dict[str, Any]) -> _Rows:
    budget = "unlimited" if host["url_budget"] is None else f"{host['url_budget']:,}"
    rows = [
        ("budget", f"{host['url_count']:,} used of {budget}{_note(host.get('budget_set_by_operator'), 'set')}"),
        ("depth cap", "none" if host["depth_cap"] is None else str(host["depth_cap"])),
        ("in-degree", _in_degree(host)),
        ("vouched for", "yes" if host["vouched_for"] else "no"),
        *([("parked", _parked_here(host["parked"]))] if "parked" in host else []),
        ("trap suspect", "yes" if host["trap_suspect"] else "no"),
        ("score", f"{host['host_score']:.6g}"),
    ]
    if "crawl_delay_ds" in host:
        rows += [
            (
                "crawl delay",
                f"{host['crawl_delay_ds'] / 10:g} s{_note(host['crawl_delay_set_by_operator'], 'set')}",
            ),
            ("fetches", f"{host['crawl_total']:,}, {host['error_total']:,} failures"),
            ("latency", "not known" if host["avg_latency_ms"] is None else f"{host['avg_latency_ms']} ms"),
        ]
    return rows


def _parked_here(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} for {reason}" for reason, count in counts.items() if count) or "none"


def _in_degree(host: dict[str, Any]) -> str:
    if host["in_degree"] is None:
        return "not known here"
    return f"{'' if host['in_degree_exact'] else 'about '}{host['in_degree']:,} hosts link to it"


def _note(by_operator: bool | None, verb: str) -> str:
    return f" ({verb} by an operator)" if by_operator else ""
