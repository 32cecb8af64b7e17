"""JSON Schemas and an AsyncAPI 3 document, generated from the typed definitions.

`python -m meguri_common.events.schemas docs/schemas` writes them; a test fails when the files differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from meguri_common.events.model import (
    SCHEMA_VERSION,
    ControlEvent,
    PageEvent,
    SeedEvent,
    SignalEvent,
    SitemapEvent,
)
from meguri_common.events.rejects import RejectRecord
from meguri_common.sdk.vectors import partition_vectors
from meguri_common.telemetry.model import InstanceSample, PartitionSample
from meguri_common.topics import PAGES, PAGES_MESSAGE_BYTES, REJECTS, TELEMETRY

__all__ = ["documents", "write_documents"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_EVENTS: dict[str, type[msgspec.Struct]] = {
    "page": PageEvent,
    "seed": SeedEvent,
    "sitemap": SitemapEvent,
    "signal": SignalEvent,
    "control": ControlEvent,
}
_SAMPLES: dict[str, type[msgspec.Struct]] = {
    "instance-sample": InstanceSample,
    "partition-sample": PartitionSample,
}


def documents() -> dict[str, str]:
    """File name to text of every generated document."""
    kinds: dict[str, type[msgspec.Struct]] = {**_EVENTS, "reject": RejectRecord, **_SAMPLES}
    schemas = {name: _schema(kind) for name, kind in kinds.items()}
    # A tag is always required for the generator; a page's has a default.
    schemas["page"]["required"].remove("type")
    schemas["page"]["properties"]["type"]["default"] = "page"
    schemas["control"]["oneOf"] = [
        {"required": [name], "properties": {name: {"type": "string"}}} for name in ("host", "url")
    ]
    texts = {f"{name}.json": _text(schema) for name, schema in schemas.items()}
    texts["asyncapi.json"] = _text(_asyncapi())
    texts["pages-partitions.json"] = _text(partition_vectors())
    return texts


def write_documents(folder: Path) -> None:
    """Write all documents into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in documents().items():
        (folder / name).write_text(text, encoding="utf-8")


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=True) + "\n"


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """One self-contained schema: the definition itself at the top, the ones it uses below `$defs`."""
    schema = msgspec.json.schema(kind)
    definitions: dict[str, Any] = schema["$defs"]
    top: dict[str, Any] = definitions.pop(kind.__name__)
    top = {"$schema": _DIALECT, **top}
    if definitions:
        top["$defs"] = definitions
    return top


def _asyncapi() -> dict[str, Any]:
    """The JSON topics: what is sent to each, and how it is keyed."""
    names = [*_EVENTS, "reject", *_SAMPLES]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "meguri public events",
            "version": f"{SCHEMA_VERSION}.0.0",
            "description": (
                "JSON, one event a line; a message holds one line, or several of one partition. "
                "Unknown fields are ignored."
            ),
        },
        "defaultContentType": "application/json",
        "channels": {
            "pages": {
                "address": PAGES,
                "description": (
                    "By host, so that the events of a host stay in order: the key of an event is the registrable "
                    "domain of its URL, and its partition is (xxh64(key) * partitions) >> 64. Publishers must set the "
                    "partition themselves; pages-partitions.json holds test vectors."
                ),
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _EVENTS},
                "bindings": {
                    "kafka": {
                        "topicConfiguration": {
                            "cleanup.policy": ["delete"],
                            "max.message.bytes": PAGES_MESSAGE_BYTES,
                        },
                        "bindingVersion": "0.5.0",
                    }
                },
            },
            "rejects": {
                "address": REJECTS,
                "description": "Events that can't be used, with the reason.",
                "messages": {"reject": {"$ref": "#/components/messages/reject"}},
            },
            "telemetry": {
                "address": TELEMETRY,
                "description": (
                    "Keyed by service. A message is what one instance says at one moment, about once a second: "
                    "a line for itself and one for each of its partitions. Samples may be lost."
                ),
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _SAMPLES},
            },
        },
        "operations": {
            "takeEvents": {
                "action": "receive",
                "channel": {"$ref": "#/channels/pages"},
                "messages": [{"$ref": f"#/channels/pages/messages/{name}"} for name in _EVENTS],
            },
            "sendRejects": {
                "action": "send",
                "channel": {"$ref": "#/channels/rejects"},
                "messages": [{"$ref": "#/channels/rejects/messages/reject"}],
            },
            "sendTelemetry": {
                "action": "send",
                "channel": {"$ref": "#/channels/telemetry"},
                "messages": [{"$ref": f"#/channels/telemetry/messages/{name}"} for name in _SAMPLES],
            },
        },
        "components": {
            "messages": {
                name: {"name": name, "contentType": "application/json", "payload": {"$ref": f"./{name}.json"}}
                for name in names
            }
        },
    }


if __name__ == "__main__":
    write_documents(Path(sys.argv[1]))
