"""Every line of an input is published once, whatever ran before and whatever was killed when."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri.embedded import bundles as module
from meguri.embedded.bundles import Bundle, Ledger, bundles
from meguri_common.errors import InputUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Rows(dict[str, bytes]):
    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        return sorted((key, value) for key, value in self.items() if key.startswith(prefix))


def pieces(content: bytes, size: int = 7) -> Iterator[bytes]:
    stream = io.BytesIO(content)
    while piece := stream.read(size):
        yield piece


def publish(content: bytes, rows: Rows, limit: int | None = None) -> list[Bundle]:
    """What a run publishes that is killed after `limit` bundles."""
    out = []
    for bundle in bundles(pieces(content), Ledger(rows)):
        if limit is not None and len(out) == limit:
            break
        rows[bundle.row[0]] = bundle.row[1]
        out.append(bundle)
    return out


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUNDLE_BYTES", 16)
    monkeypatch.setattr(module, "LINE_LIMIT", 40)
    monkeypatch.setattr(module, "_KEPT_OF_LONG_LINE", 8)


lines = st.lists(st.binary(min_size=0, max_size=70).map(lambda line: line.replace(b"\n", b"x")), max_size=12)


@given(lines, st.booleans(), st.lists(st.integers(0, 6), max_size=5))
def test_killed_runs_publish_each_line_once(rows_of_file: list[bytes], ends: bool, kills: list[int]) -> None:
    content = b"\n".join(rows_of_file) + (b"\n" if ends and rows_of_file else b"")
    undisturbed = publish(content, Rows())
    rows = Rows()
    got = [bundle for limit in [*kills, None] for bundle in publish(content, rows, limit)]
    assert [(b.data, b.first_line, b.too_long) for b in got] == [
        (b.data, b.first_line, b.too_long) for b in undisturbed
    ]
    assert publish(content, rows) == []
    whole = b"".join(bundle.data for bundle in undisturbed if not bundle.too_long)
    short = [line for line in content.split(b"\n") if len(line) <= 40]
    assert [line for line in whole.split(b"\n") if line] == [line for line in short if line]
    long = [line for line in content.split(b"\n") if len(line) > 40]
    assert [
        bundle.too_long - (bundle.too_long > len(line))
        for bundle, line in zip([bundle for bundle in undisturbed if bundle.too_long], long, strict=True)
    ] == [len(line) for line in long]


@given(lines, lines, st.booleans())
def test_an_input_that_goes_on_is_published_behind_what_is_known(
    first: list[bytes], more: list[bytes], ends: bool
) -> None:
    content = b"\n".join(first) + (b"\n" if ends and first else b"")
    grown = content + (b"" if ends or not content else b"\n") + b"\n".join(more)
    rows = Rows()
    got = publish(content, rows) + publish(grown, rows)
    data = [line for bundle in got for line in (bundle.data.split(b"\n") if not bundle.too_long else [bundle.data[:8]])]
    expected = [line if len(line) <= 40 else line[:8] for line in grown.split(b"\n")]
    assert [line for line in data if line] == [line for line in expected if line]


def test_a_last_line_without_an_end_that_goes_on_is_another_line() -> None:
    rows = Rows()
    publish(b"one\ntwo", rows)
    assert [bundle.data for bundle in publish(b"one\ntwo and more\n", rows)] == [b"two and more\n"]


def test_line_numbers_and_the_last_bundle() -> None:
    got = publish(b"aaaaaaa\nbbbbbbb\nccccccc\n\nddd\n", Rows())
    assert [(bundle.data, bundle.first_line, bundle.last) for bundle in got] == [
        (b"aaaaaaa\nbbbbbbb\n", 1, False),
        (b"ccccccc\n\nddd\n", 3, True),
    ]


@given(lines, st.integers(0, 500))
def test_an_input_that_broke_off_gives_its_whole_lines_and_later_the_rest(rows_of_file: list[bytes], cut: int) -> None:
    content = b"".join(line + b"\n" for line in rows_of_file)
    rows = Rows()
    got = []

    def broken() -> Iterator[bytes]:
        yield from pieces(content[:cut])
        raise InputUnreadable("broke off")

    def publish_broken() -> None:
        for bundle in bundles(broken(), Ledger(rows)):
            rows[bundle.row[0]] = bundle.row[1]
            got.append(bundle)

    with pytest.raises(InputUnreadable):
        publish_broken()
    taken = sum(bundle.too_long or len(bundle.data) for bundle in got)
    assert taken == content.rfind(b"\n", 0, cut) + 1
    got += publish(content, rows)
    assert sum(bundle.too_long or len(bundle.data) for bundle in got) == len(content)
    whole = b"".join(bundle.data for bundle in got if not bundle.too_long)
    assert whole.splitlines() == b"".join(line + b"\n" for line in rows_of_file if len(line) <= 40).splitlines()
