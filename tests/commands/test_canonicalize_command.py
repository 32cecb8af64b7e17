"""`meguri canonicalize`: all right answers through one process a file, and what is asked wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ANSWER_FIELDS = ("ok", "canon", "host_group", "host_key", "path_key", "reject_reason")

TELLING = [
    ({"raw": "HTTP://u:p@Example.COM:80/%7e/../a?utm_source=x&b=2&a#f"}, "http://example.com/a?a&b=2"),
    ({"raw": "http://example.com/\ud800"}, "http://example.com/%EF%BF%BD"),
    ({"raw_hex": b"http://example.com/\xe9".hex()}, "http://example.com/%E9"),
    ({"raw": "b", "base_hex": b"http://h/\xe9/a".hex()}, "http://h/%E9/b"),
    ({"raw": "/A/", "base": "http://h/", "policy": {"fold_case": True, "fold_trailing_slash": True}}, "http://h/a"),
    ({"raw": "mailto:a@example.com"}, "scheme"),
    ({"raw": "a"}, "no_base"),
    ({"raw": "http://h:99999/"}, "bad_port"),
]


def ask(*arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "meguri", "canonicalize", *arguments],
        input=data,
        capture_output=True,
        check=False,
        timeout=300,
    )


def lines(rows: list[dict[str, Any]]) -> bytes:
    """JSON Lines in ASCII, so that lone surrogates are written as escapes."""
    return b"".join(json.dumps(row).encode("ascii") + b"\n" for row in rows)


def answers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = ask("--json", data=lines(rows))
    assert (done.returncode, done.stderr) == (0, b"")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(rows)
    return found


def expect(rows: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    found = answers(rows)
    wrong = [(row, have, want) for row, have, want in zip(rows, found, wanted, strict=True) if have != want]
    assert not wrong, f"{len(wrong)} of {len(rows)} differ, first: {wrong[0]}"


@pytest.mark.parametrize("name", ["canon_own", "canon_public", "canon_golden"])
def test_every_right_answer(name: str, golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = golden_rows(f"conformance/{name}.jsonl")
    expect(rows, [{key: row[key] for key in ANSWER_FIELDS if key in row} for row in rows])


def test_every_pair(golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = golden_rows("conformance/canon_pairs.jsonl")
    asked = [
        {"raw": row.get(side), "raw_hex": row.get(f"{side}_hex"), "policy": row.get("policy")}
        for row in rows
        for side in ("a", "b")
    ]
    found = [answer["canon"] for answer in answers(asked)]
    for row, a, b in zip(rows, found[::2], found[1::2], strict=True):
        assert (a == b) == (row["kind"] == "merge"), row


def test_every_key_and_group(golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    keys = golden_rows("conformance/canon_keys.jsonl")
    names = ("canon", "host_group", "host_key", "path_key")
    expect(
        [{"raw": row["canon"]} for row in keys], [{"ok": True} | {name: row[name] for name in names} for row in keys]
    )
    groups = golden_rows("conformance/canon_registrable.jsonl")
    found = answers([{"raw": f"http://{row['host_raw']}/"} for row in groups])
    for row, answer in zip(groups, found, strict=True):
        assert answer["ok"] == row["ok"], row
        if row["ok"]:
            assert (answer["host_group"], answer["host_key"]) == (row["group"], row["host_key"]), row


def test_policies_that_must_not_build(golden_rows: Callable[[str], list[dict[str, Any]]], tmp_path: Path) -> None:
    rows = golden_rows("conformance/canon_policy_errors.jsonl")
    done = ask("--json", data=lines([{"raw": "http://h/", "policy": row["policy"]} for row in rows]))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [set(answer) for answer in found] == [{"ok", "error"}] * len(rows)
    assert all(answer["error"] and answer["ok"] is False for answer in found)
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"default": {"no_such_field": True}}))
    done = ask("--policy", str(file), data=b"http://h/\n")
    assert done.returncode == 2
    assert b"no_such_field" in done.stderr
    assert done.stdout == b""


@pytest.mark.parametrize(("row", "wanted"), TELLING)
def test_telling_ones(row: dict[str, Any], wanted: str) -> None:
    (answer,) = answers([row])
    assert answer["canon" if answer["ok"] else "reject_reason"] == wanted


def test_plain_lines_keep_their_bytes_and_order() -> None:
    done = ask("--base", "http://h/d/", data=b"HTTP://A.example/%7e\n\xe9\n\n mailto:\xff\nhttp://h:x/\r\nlast")
    assert done.stdout.split(b"\n") == [
        b"http://a.example/~",
        b"http://h/d/%E9",
        b"http://h/d/",
        b"!scheme  mailto:\xff",
        b"!bad_port http://h:x/\r",
        b"http://h/d/last",
        b"",
    ]
    assert (done.returncode, done.stderr) == (0, b"")


def test_plain_lines_among_json() -> None:
    done = ask("--json", "--base", "http://h/", data=b'a\n{"raw": "a", "base": null}\n{"raw": "a"}\n["b"]\n')
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.get("canon", answer.get("reject_reason")) for answer in found] == [
        "http://h/a",
        "no_base",
        "http://h/a",
        "http://h/[%22b%22]",
    ]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"raw": "http://h/"', "no JSON"),
        (b'{"raw": "\xff"}', "no JSON"),
        (b'{"raw":' + b"[" * 100_000, "no JSON"),
        (b"{}", "raw"),
        (b'{"raw": 1}', "raw is no text"),
        (b'{"raw": "a", "raw_hex": "61"}', "both"),
        (b'{"raw_hex": "6"}', "raw_hex"),
        (b'{"raw_hex": 6}', "raw_hex"),
        (b'{"raw": "a", "base": []}', "base is no text"),
        (b'{"raw": "a", "policy": []}', "policy is no object"),
        (b'{"raw": "a", "policy": {"fold_case": 1}}', "fold_case"),
        (b'{"raw": "a", "policy": {"\\ud800": 1}}', "unknown field"),
    ],
)
def test_a_bad_question_is_answered_and_counts(line: bytes, said: str) -> None:
    done = ask("--json", data=b"http://h/\n" + line + b"\nhttp://i/\n")
    assert done.returncode == 1
    first, bad, last = (json.loads(answer) for answer in done.stdout.splitlines())
    assert (first["canon"], last["canon"]) == ("http://h/", "http://i/")
    assert bad["ok"] is False
    assert said in bad["error"]


def test_a_policy_file_with_its_hosts(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"version": 1, "hosts": {"a.example": {"fold_case": True}}}))
    done = ask("--policy", str(file), data=b"http://a.example/X\nhttp://b.example/X\n")
    assert done.stdout == b"http://a.example/x\nhttp://b.example/X\n"


def test_answers_come_while_the_input_is_open() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "meguri", "canonicalize"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for path in (b"a", b"b"):
            process.stdin.write(b"HTTP://h/" + path + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"http://h/" + path + b"\n"
        process.stdin.write(b"http://h/c")
        process.stdin.close()
        assert process.stdout.read() == b"http://h/c\n"
        assert process.wait(timeout=60) == 0


def test_neither_numba_nor_pyarrow_is_imported() -> None:
    program = (
        "import sys\n"
        "from meguri.__main__ import main\n"
        "code = main(['canonicalize', '--json'])\n"
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'numba', 'pyarrow'}\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=b"http://h/\n", capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["canon"] == "http://h/"
