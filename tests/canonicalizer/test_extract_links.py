"""The byte kernel and the JSON parser must see the same links in any line, valid or not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meguri_canonicalizer.extract import Extracted, Extractor, fold_hrefs
from meguri_common.events.model import PageEvent

KERNEL = Extractor(keep_fragments=False)
PARSER = Extractor(keep_fragments=False, use_kernel=False)
KERNEL_HASHBANG = Extractor(keep_fragments=True)
PARSER_HASHBANG = Extractor(keep_fragments=True, use_kernel=False)


def seen(found: Extracted) -> list[Any]:
    """Everything that counts, independent of the rows' physical order."""
    events = []
    for position, (event, line) in enumerate(zip(found.events, found.line_of, strict=True)):
        facts = {name: getattr(event, name) for name in event.__struct_fields__ if name != "links"}
        events.append((line, type(event), repr(facts), found.hrefs(position), int(found.authored[position])))
    return [events, found.rejects, found.starts, found.ends, found.message_of]


def agree(*payloads: bytes) -> Extracted:
    """Extract both ways, with and without fragments; the result without."""
    assert seen(KERNEL_HASHBANG.extract(payloads)) == seen(PARSER_HASHBANG.extract(payloads))
    with_kernel = KERNEL.extract(payloads)
    assert seen(with_kernel) == seen(PARSER.extract(payloads))
    return with_kernel


def page(links: str, rest: str = "") -> bytes:
    return f'{{"url":"http://h/","fetched_at":1,"links":{links}{rest}}}'.encode()


def test_repeats_fold_and_fragments_go() -> None:
    found = agree(page('["a","b#x","a#","#","","b","c #f","a"]'))
    assert found.hrefs(0) == [(b"a", 3), (b"b", 2), (b"", 2), (b"c #f", 1)]
    assert found.authored.tolist() == [8]


def test_fragments_stay_where_hashbangs_count() -> None:
    found = KERNEL_HASHBANG.extract([page('["a#!x","a#!y","a#!x"]')])
    assert found.hrefs(0) == [(b"a#!x", 2), (b"a#!y", 1)]


def test_pages_do_not_share_rows() -> None:
    found = agree(page('["a","a"]') + b"\n" + page('["a"]'), page('["a"]'))
    assert [found.hrefs(position) for position in range(3)] == [[(b"a", 2)], [(b"a", 1)], [(b"a", 1)]]
    assert found.message_of == [0, 0, 1]


def test_lines_end_at_line_feed_alone() -> None:
    line = page('["a"]')
    found = agree(b"\n\r\n  \n" + line + b"\r\n\n" + line + b"\r" + line + b"\n", b"", line)
    assert [event.url for event in found.events if isinstance(event, PageEvent)] == ["http://h/"] * 2
    assert [(reject.line, reject.reason) for reject in found.rejects] == [(1, "invalid_json")]
    assert found.positions_in_messages([0, 1, 2]) == [3, 5, 0]


class CountedBuffer(bytearray):
    """A buffer that knows how many of its bytes were gone through in search of line feeds."""

    scanned = 0

    def count(self, value: Any, start: Any = 0, end: Any = None) -> int:
        self.scanned += end - start
        return super().count(value, start, end)


def test_positions_are_found_in_one_pass() -> None:
    """A message of nothing but garbage must not be gone through once for each of its lines."""
    found = KERNEL.extract([b"\n" + b"x\n" * 1000, b"y\n" * 1000])
    found.buffer = counted = CountedBuffer(found.buffer)
    lines = list(range(2000))
    assert found.positions_in_messages(lines) == [*range(1, 1001), *range(1000)]
    assert found.positions_in_messages(lines[5::7]) == [*range(1, 1001), *range(1000)][5::7]
    assert counted.scanned <= 2 * 4002


ODD_LINES = [
    page("[]"),
    page("[ \t]"),
    page('[ "a" , "b" ]'),
    page('["a",]'),
    page('[,"a"]'),
    page('["a" "b"]'),
    page('["a"'),
    page('["a'),
    page('["a"]') + b"x",
    page('["a"]]'),
    page("null"),
    page('{"href":"a"}'),
    page('"a"'),
    page('["a",null]'),
    page('["a",["b"]]'),
    page('["a",3]'),
    page('["a",{"href":"b","text":"t","rel":"nofollow"},"a"]'),
    page('["a",{"text":"t"}]'),
    page(r'["a\/b","a/b","\u0061/b"]'),
    page(r'["\ud83d\ude00"]'),
    page(r'["a","\ud83d","b"]'),
    page(r'["a",{"href":"\udc00"},{"href":"b","text":"\udc00"}]'),
    page('["a"]', r',"x":"\ud800"'),
    page('["a"]', r',"x":"\\ud800"'),
    page('["a"]', r',"x":"\\\ud800"'),
    page('["a"]', r',"text":"say \"links\":[1]"'),
    page('["a"]', ',"links":["b"]'),
    page('["a"]', r',"l\u0069nks":["b"]'),
    page('["a"]', r',"x":"l\u0069nks"'),
    page('["a"]', ',"x":{"links":["b"]}'),
    page('["a"]', ',"x":["links",["b"]]'),
    page('["a"]', ',"x":"links","y":"links"'),
    page('["é","\x7f","日本"]'),
    page('["a\tb"]'),
    page('["a"]', ',"x":"\x01"'),
    page('["a"]', ',"x":tru'),
    page('["a"]', ',"status":50'),
    page('["a"]', ',"schema":2'),
    page('["a"]', ',"type":"seed"'),
    page('["a"]', ',"type":"seed","urls":["http://h/"],"observed_at":1'),
    page('["a"]', ',"type":"page"'),
    page('["a"]', ',"type":7'),
    page('["a"]', "}"),
    page('["a"]', ',"x":' + "[" * 5000),
    b'{"url":"http://h/","fetched_at":1,"x":{"links":["nested"]}}',
    b'{"x":[{"links":["nested"]}],"url":"http://h/","fetched_at":1}',
    b'{"links":["a"]}',
    b'{"links":["a","b"],"url":"http://h/","fetched_at":1}',
    b' {"links" : ["a"] , "url":"http://h/","fetched_at":1} ',
    b'{"x":]"links":["a"],"url":"http://h/","fetched_at":1}',
    b'["links",["a"]]',
    b'"links"',
    b'{"links":',
    b'{"links"',
    b'{"\\',
    b'{"\\u',
    b"{",
    b'"',
    b"\xef\xbb\xbf" + page('["a"]'),
    page('["a"]').replace(b"h/", b"h/\xff"),
    page('["\\u0061"]').replace(b"h/", b"\xed\xa0\x80"),
    page('["a"]').replace(b"a", b"a\x00"),
]


@pytest.mark.parametrize("line", ODD_LINES)
def test_odd_lines_mean_the_same_both_ways(line: bytes) -> None:
    alone = agree(line)
    amid = agree(page('["before"]') + b"\n" + line + b"\n" + page('["behind"]'))
    assert len(alone.events) + len(alone.rejects) == 1
    assert len(amid.events) + len(amid.rejects) == 3
    assert amid.hrefs(len(amid.events) - 1) == [(b"behind", 1)]


def test_too_many_links_are_refused() -> None:
    most = page("[" + ",".join(['"a"'] * 50_000) + "]")
    found = agree(most)
    assert found.hrefs(0) == [(b"a", 50_000)]
    found = agree(most.replace(b'["a",', b'["a","b",'))
    assert [reject.reason for reject in found.rejects] == ["too_many_links"]


def test_many_distinct_links_fit_the_table() -> None:
    links = [f"{number:x}" for number in range(50_000)]
    found = agree(page(json.dumps(links)) + b"\n" + page(json.dumps(links[::-1])))
    assert [href.decode() for href, _ in found.hrefs(0)] == links
    assert [href.decode() for href, _ in found.hrefs(1)] == links[::-1]


def test_too_large_lines_are_refused() -> None:
    found = agree(page('["a"]', f',"text":"{"x" * (8 << 20)}"') + b"\n" + page('["a"]'))
    assert [(reject.line, reject.reason) for reject in found.rejects] == [(0, "too_large")]
    assert found.hrefs(0) == [(b"a", 1)]


def test_buffers_are_reused_without_traces() -> None:
    """A line that is given up leaves nothing behind for the next one."""
    given_up = page('["a","b","c",null]')
    found = agree(*[given_up + b"\n" + page('["c","b","a","c"]')] * 50)
    assert {tuple(found.hrefs(position)) for position in range(50)} == {((b"c", 2), (b"b", 1), (b"a", 1))}


HREF_TEXT = st.text(
    st.one_of(
        st.sampled_from("ab/#.?&=%! \\\"'{}[]:,\x7f\x1f\x00é日\U0001f600\ud800\udc00"), st.characters(max_codepoint=300)
    ),
    max_size=20,
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), HREF_TEXT, st.sampled_from(["links", "href", "url"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["links", "href", "x\\"]), inner, max_size=3)
    ),
    max_leaves=6,
)
LINKS = st.one_of(
    st.lists(st.one_of(HREF_TEXT, st.sampled_from(["a", "a#b", "", "https://www.example.org/path"])), max_size=8),
    st.lists(st.one_of(HREF_TEXT, st.fixed_dictionaries({"href": HREF_TEXT}), VALUES), max_size=4),
    VALUES,
)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A page, or nearly one, in some of JSON's spellings; now and then with a wrong byte."""
    members = [("url", "http://h/"), ("fetched_at", 1)]
    members += [("links", draw(LINKS))] * draw(st.sampled_from([1, 1, 1, 0, 2]))
    members += draw(
        st.lists(st.tuples(st.sampled_from(["x", "links", "type", "text", "li\u0000"]), VALUES), max_size=2)
    )
    ascii_only = draw(st.booleans())
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r: ")]))
    spelled = [
        json.dumps(name) + separators[1] + json.dumps(value, ensure_ascii=ascii_only, separators=separators)
        for name, value in draw(st.permutations(members))
    ]
    line = ("{" + separators[0].join(spelled) + "}").encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(line)))
        wrong = draw(
            st.one_of(st.sampled_from([b'"', b"\\", b",", b"]", b"[", b"{", b"}", b"\n"]), st.binary(max_size=2))
        )
        line = line[:at] + wrong + line[at + draw(st.integers(0, 1)) :]
    return line


@settings(max_examples=600, deadline=None)
@given(st.lists(lines(), min_size=1, max_size=4))
@example([b'{"url":"http://h/","fetched_at":1,"x":"\\ud800\\","links":["a"]}'])
def test_kernel_and_parser_agree_on_random_lines(found: list[bytes]) -> None:
    agree(*found)
    agree(b"\n".join(found))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_kernel_and_parser_agree_on_bytes(blob: bytes) -> None:
    agree(blob)
    agree(b'{"url":"http://h/","fetched_at":1,"links":[' + blob + b"]}")


@given(st.lists(st.text(st.sampled_from("ab# \t"), max_size=6), max_size=12))
def test_folding_keeps_order_and_counts(links: list[str]) -> None:
    folded = fold_hrefs(links, keep_fragments=False)
    assert sum(folded.values()) == len(links)
    short = [
        link if at < 0 or (at > 0 and link[at - 1] <= " ") else link[:at] for link in links for at in [link.find("#")]
    ]
    assert list(folded) == [href.encode() for href in dict.fromkeys(short)]
