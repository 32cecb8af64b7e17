"""The command line's root: names of the commands, each loaded when it is called.

`meguri --help` and commands about one URL must not pay for numba and pyarrow, so nothing here imports a command.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COMMANDS", "LazyCommand", "LazyGroup", "OutputClosed", "cli"]


class LazyCommand(NamedTuple):
    """Where a command is (`module:attribute`), and its line in the list of commands."""

    target: str
    summary: str


COMMANDS: Mapping[str, LazyCommand] = {
    "run": LazyCommand("meguri.commands.run:run", "Feed page events through the pipeline into a data folder."),
    "build": LazyCommand("meguri.commands.build:build", "Make a data folder of lists of URLs, at once."),
    "top": LazyCommand("meguri.commands.top:top", "List the most important URLs of a data folder."),
    "due": LazyCommand("meguri.commands.due:due", "List what to fetch next."),
    "explain": LazyCommand(
        "meguri.commands.explain:explain", "Say what is known about a URL, and why it stands there."
    ),
    "stats": LazyCommand("meguri.commands.stats:stats", "Sum up a data folder."),
    "export": LazyCommand("meguri.commands.export:export", "Write the frontier out, row for row."),
    "import": LazyCommand("meguri.commands.import_records:import_records", "Make a data folder of exported records."),
    "compact": LazyCommand("meguri.commands.compact:compact", "Give shards with changes a new generation."),
    "resize": LazyCommand("meguri.commands.resize:resize", "Move a campaign to another number of partitions."),
    "recrawl": LazyCommand("meguri.commands.recrawl:recrawl", "Try out a crawl of all that is due."),
    "verify": LazyCommand("meguri.commands.verify:verify", "Read all of a data folder against its checksums."),
    "inspect": LazyCommand("meguri.commands.inspect:inspect", "Look into the files of a data folder and verify them."),
    "canonicalize": LazyCommand(
        "meguri.commands.canonicalize:canonicalize", "Show the canonical form and the key of URLs."
    ),
    "canonicalizer": LazyCommand("meguri.commands.service:canonicalizer", "Run an instance of the canonicalizer."),
    "dedup": LazyCommand("meguri.commands.service:dedup", "Run an instance of dedup."),
    "prioritizer": LazyCommand("meguri.commands.service:prioritizer", "Run an instance of the prioritizer."),
    "store": LazyCommand("meguri.commands.service:store", "Run an instance of the store."),
    "publish": LazyCommand("meguri.commands.publish:publish", "Publish page events to a fleet on Kafka."),
    "topics": LazyCommand("meguri.commands.topics:topics", "Make a campaign's topics on Kafka, or check them."),
    "lag": LazyCommand("meguri.commands.lag:lag", "Say what the fleet has still to read."),
    "tail": LazyCommand("meguri.commands.tail:tail", "Show the last messages of a topic, decoded."),
    "skip": LazyCommand("meguri.commands.skip:skip", "Go on without a message that stops a partition."),
    "rejects": LazyCommand("meguri.commands.rejects:rejects", "List events that were rejected, or publish them anew."),
    "replay": LazyCommand("meguri.commands.replay:replay", "Publish events of a span of the past anew."),
    "monitor": LazyCommand("meguri.commands.monitor:monitor", "Show the fleet live on a web page."),
    "config": LazyCommand("meguri.commands.config:config", "Show the settings of the fleet."),
    "events": LazyCommand("meguri.commands.events:events", "Make page events out of what is at hand."),
}


class OutputClosed(Exception):
    """Whoever read the standard output has closed it."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and lists only commands that are installed."""

    def __init__(self, *, lazy: Mapping[str, LazyCommand], **settings: Any) -> None:
        super().__init__(**settings)
        self._lazy = {name: command for name, command in lazy.items() if _is_installed(command)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table: what is used most comes first."""
        return [*self._lazy, *(name for name in super().list_commands(ctx) if name not in self._lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        entry = self._lazy.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        rows = [(name, self._lazy[name].summary) for name in self.list_commands(ctx) if name in self._lazy]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a reader who went away is told apart from other errors before click can judge it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as problem:
            raise OutputClosed from problem


def _is_installed(command: LazyCommand) -> bool:
    return find_spec(command.target.partition(":")[0]) is not None


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="meguri", message="meguri %(version)s")
def cli() -> None:
    """Decide what a web crawl fetches next.

    Fetchers publish what they saw; meguri answers which URLs exist, which are the same, which matter, and which to
    fetch next. It never opens a connection to the web.

    \b
    Examples:
      meguri events from-html ./site --base-url https://www.example.org/ --output site.jsonl.zst
      meguri run site.jsonl.zst --data ./meguri-data
      meguri top --data ./meguri-data
      meguri COMMAND --help
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
