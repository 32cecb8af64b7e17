"""`meguri canonicalize`: the canonical form and the key of links, one by one, without a data folder."""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from meguri_common.errors import InputUnreadable, MeguriError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from meguri_canonicalizer.policy import Policy

__all__ = ["canonicalize", "lines_of"]

_EXIT_BAD_LINES = 1
_CHUNK = 64 << 10


class _Question(NamedTuple):
    """A link and what it is read under."""

    raw: str | bytes
    base: str | bytes | None
    policy: Policy


class _BadQuestion(MeguriError):
    """A line that asks nothing that can be answered; says why."""


@click.command()
@click.option("--base", metavar="URL", help="What links resolve against, for lines that state none.")
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="URL policy (JSON), for lines that state none; by default nothing is folded.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer one JSON object a line, and take such objects too.")
def canonicalize(base: str | None, policy_file: Path | None, *, as_json: bool) -> int:
    """Show the canonical form of links, in order, one answer a line.

    Links come from standard input, one a line; lines end at LF alone, and bytes that are no UTF-8 are kept apart.
    The answer is the canonical URL, or ! with the reason, a space and the link. A link that is refused has been
    answered: it is no failure.

    With --json an answer is an object: {"ok": true, "canon", "host_group", "host_key", "path_key"} (keys in 16 hex
    digits) or {"ok": false, "reject_reason"}. A line that begins with { is then a question of its own: {"raw" or
    "raw_hex", "base" or "base_hex", "policy"}; its base and its policy (the fields that differ from the built-in
    ones) stand in place of those given as options, other fields are ignored. One that can't be used is answered
    {"ok": false, "error"}.

    \b
    Exit codes: 0 done; 1 done, but some lines had an "error"; 2 wrong use or a wrong policy;
    3 the input can't be read.

    \b
    Examples:
      echo 'HTTP://Example.ORG:80/%7Ea?utm_source=x' | meguri canonicalize
      meguri canonicalize --base https://www.example.org/docs/ --json < links.txt
      echo '{"raw": "/A/", "base": "http://a.example", "policy": {"fold_case": true}}' |
          meguri canonicalize --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri_canonicalizer.policy import DEFAULT, load_policy  # noqa: PLC0415 - --help must not pay for the lists

    policy = load_policy(policy_file) if policy_file is not None else DEFAULT
    given = None if base is None else os.fsencode(base)
    write = sys.stdout.buffer.write
    failed = False
    for batch in lines_of(sys.stdin.buffer):
        for line in batch:
            if as_json:
                answer = _json_answer(line, given, policy)
                failed |= "error" in answer
                write(json.dumps(answer, separators=(",", ":")).encode("ascii") + b"\n")
            else:
                write(_plain_answer(_Question(line, given, policy)) + b"\n")
        # A program that asks line by line waits for its answers.
        sys.stdout.buffer.flush()
    return _EXIT_BAD_LINES if failed else 0


def lines_of(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Lines as they come, without their LF; those that came together in one list.

    Raises:
        InputUnreadable: the stream can't be read.
    """
    begun: list[bytes] = []
    try:
        while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined] # a buffered stream has it
            first, *others = chunk.split(b"\n")
            begun.append(first)
            if others:
                yield [b"".join(begun), *others[:-1]]
                begun = [others[-1]]
    except OSError as problem:
        raise InputUnreadable(f"standard input: can't be read: {problem.strerror or problem}") from problem
    rest = b"".join(begun)
    if rest:
        yield [rest]


def _plain_answer(question: _Question) -> bytes:
    from meguri_canonicalizer.canonical import Rejected, canonicalize  # noqa: PLC0415 - --help must not pay for it

    found = canonicalize(*question)
    if isinstance(found, Rejected):
        assert isinstance(question.raw, bytes), "plain lines are bytes"
        return b"!%s %s" % (found.reason.encode("ascii"), question.raw)
    return found.url.encode("ascii")


def _json_answer(line: bytes, base: bytes | None, policy: Policy) -> dict[str, Any]:
    from meguri_canonicalizer.canonical import Rejected, canonicalize  # noqa: PLC0415 - --help must not pay for it

    question = _Question(line, base, policy)
    if line.lstrip().startswith(b"{"):
        try:
            question = _question(line, base, policy)
        except (_BadQuestion, PolicyError) as problem:
            return {"ok": False, "error": str(problem)}
    found = canonicalize(*question)
    if isinstance(found, Rejected):
        return {"ok": False, "reject_reason": str(found.reason)}
    return {
        "ok": True,
        "canon": found.url,
        "host_group": found.host_group,
        "host_key": f"{found.host_key:016x}",
        "path_key": f"{found.path_key:016x}",
    }


def _question(line: bytes, base: bytes | None, policy: Policy) -> _Question:
    try:
        fields = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise _BadQuestion(f"no JSON: {problem}") from problem
    raw = _text(fields, "raw")
    if raw is None:
        raise _BadQuestion("neither raw nor raw_hex is there")
    if "base" in fields or "base_hex" in fields:
        return _Question(raw, _text(fields, "base"), _policy(fields, policy))
    return _Question(raw, base, _policy(fields, policy))


def _text(fields: dict[str, Any], name: str) -> str | bytes | None:
    """A text, given as such or as bytes in hex; None where there is neither, or null."""
    plain, in_hex = fields.get(name), fields.get(f"{name}_hex")
    if plain is not None and in_hex is not None:
        raise _BadQuestion(f"{name} and {name}_hex are both there")
    if plain is not None:
        if not isinstance(plain, str):
            raise _BadQuestion(f"{name} is no text")
        return plain
    if in_hex is None:
        return None
    try:
        return bytes.fromhex(in_hex)
    except (TypeError, ValueError):
        raise _BadQuestion(f"{name}_hex is no text of hex digits") from None


def _policy(fields: dict[str, Any], policy: Policy) -> Policy:
    stated = fields.get("policy")
    if stated is None:
        return policy
    if not isinstance(stated, dict):
        raise _BadQuestion("policy is no object")
    return _compiled(json.dumps(stated))


@lru_cache(maxsize=256)
def _compiled(fields: str) -> Policy:
    from meguri_canonicalizer.policy import Policy  # noqa: PLC0415 - --help must not pay for the lists

    return Policy.from_fields(json.loads(fields))
