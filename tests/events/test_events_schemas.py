"""The checked-in schemas are those of the code, agree with the decoder, and old events stay valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.events import EventRejected, decode_event
from meguri_common.events.schemas import documents, write_documents
from meguri_common.topics import PAGES, REJECTS, TELEMETRY

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
OLD_EVENTS = (Path(__file__).parent / "old_events.jsonl").read_bytes().splitlines()
KINDS = ("page", "seed", "sitemap", "signal", "control")


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


VALIDATORS = {name: validator(name) for name in KINDS}


def test_checked_in_documents_are_up_to_date() -> None:
    made = documents()
    stale = {
        name for name, text in made.items() if not (SCHEMAS / name).is_file() or (SCHEMAS / name).read_text() != text
    }
    assert not stale, "run: python -m meguri_common.events.schemas docs/schemas"
    assert {path.name for path in SCHEMAS.iterdir()} == set(made)


def test_documents_are_written(tmp_path: Path) -> None:
    write_documents(tmp_path / "new")
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == documents()


def test_schemas_are_schemas() -> None:
    for name in (*KINDS, "reject"):
        jsonschema.Draft202012Validator.check_schema(json.loads((SCHEMAS / f"{name}.json").read_text()))


@pytest.mark.parametrize("line", OLD_EVENTS)
def test_old_events_stay_valid(line: bytes) -> None:
    value = json.loads(line)
    event = decode_event(line)
    kind = value.get("type", "page")
    assert event.__struct_config__.tag == kind
    VALIDATORS[kind].validate(value)
    for name, given_value in value.items():
        if name in event.__struct_fields__ and not isinstance(given_value, list):
            assert getattr(event, name) == given_value


def test_old_events_cover_every_field_and_kind() -> None:
    """A field that no old event states could be dropped unseen."""
    stated: dict[str, set[str]] = {kind: {"type", "schema"} for kind in KINDS}
    for line in OLD_EVENTS:
        value = json.loads(line)
        stated[value.get("type", "page")] |= value.keys()
    for kind in KINDS:
        assert set(json.loads((SCHEMAS / f"{kind}.json").read_text())["properties"]) <= stated[kind], kind


def test_only_what_always_was_is_required() -> None:
    required = {kind: set(json.loads((SCHEMAS / f"{kind}.json").read_text())["required"]) for kind in KINDS}
    assert required == {
        "page": {"url", "fetched_at"},
        "seed": {"type", "urls", "observed_at"},
        "sitemap": {"type", "url", "observed_at", "entries"},
        "signal": {"type", "epoch"},
        "control": {"type", "at", "action"},
    }


def test_asyncapi_names_the_topics_and_its_references_resolve() -> None:
    document = json.loads((SCHEMAS / "asyncapi.json").read_text())
    assert document["asyncapi"].startswith("3.")
    assert {channel["address"] for channel in document["channels"].values()} == {PAGES, REJECTS, TELEMETRY}
    references = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            references.extend([value["$ref"]] if "$ref" in value else [])
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect(document)
    assert references
    for reference in references:
        file, _, pointer = reference.partition("#")
        place: Any = json.loads((SCHEMAS / file).read_text()) if file else document
        for part in pointer.strip("/").split("/") if pointer else []:
            place = place[part]
        assert place


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70_000),
    st.sampled_from([0.5, -0.5, 1e31, 1 << 64]),
    st.text(max_size=3),
    st.sampled_from(["page", "seed", "dns", "vouch", "ff", "http://h/"]),
    st.lists(
        st.one_of(st.text(max_size=2), st.integers(), st.fixed_dictionaries({"href": st.text(max_size=2)})), max_size=2
    ),
)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(OLD_EVENTS), st.data())
def test_schema_and_decoder_agree(line: bytes, data: st.DataObject) -> None:
    """Change a field of a valid event at random: both accept the result, or both refuse it."""
    value = json.loads(line)
    kind = value.get("type", "page")
    properties = list(json.loads((SCHEMAS / f"{kind}.json").read_text())["properties"])
    name = data.draw(st.sampled_from([name for name in properties if name != "type"]))
    if data.draw(st.booleans()):
        value[name] = data.draw(SCALARS)
    else:
        value.pop(name, None)
    # No value above is 1.0, which JSON Schema takes for an integer and the decoder doesn't.
    try:
        decode_event(json.dumps(value).encode())
        accepted = True
    except EventRejected:
        accepted = False
    assert accepted == VALIDATORS[kind].is_valid(value), value
