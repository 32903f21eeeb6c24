"""Generates rlperf-run.schema.json: fields and types from the code, descriptions from the file as it is.

    python docs/schema/generate.py

A field that is new in the code gets an empty description: write it in the file, and generate it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlperf.model.facts import Fact
from pytest_rlperf.model.reasons import WrittenReason
from pytest_rlperf.report.run_json import SCHEMA, RunFile, SelfcheckFile

FILE = Path(__file__).with_name("rlperf-run.schema.json")
# Fields of a document beside the model's, which save its readers arithmetic and sentences.
NUMBER, TEXT = {"type": "number"}, {"type": "string"}
NUMBER_OR_NULL = {"anyOf": [NUMBER, {"type": "null"}]}
ADDED: dict[str, dict[str, Any]] = {
    "Run": {"schema": {"const": SCHEMA}, "kind": {"const": "run"}},
    "SelfcheckRun": {"schema": {"const": SCHEMA}, "kind": {"const": "selfcheck"}},
    "Outcome": dict.fromkeys(("call_s", "mean_call_s", "base_call_s", "base_mean_call_s"), NUMBER_OR_NULL),
    "Fitness": {"reasons": {"type": "array", "items": TEXT}},
    "Live": {"blame": TEXT, "clock": {"enum": ["cpu", "wall"]}, "setup_s": NUMBER, "measured_s": NUMBER},
    "Selfcheck": {"smallest_found": NUMBER_OR_NULL},
}
NAMED = {
    "RunFile": "Run",
    "SelfcheckFile": "SelfcheckRun",
    "WrittenReason": "Reason",
    "ShardPart": "Part",
    "SlowdownTrial": "Trial",
}


def generate(old: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of today's code, with the descriptions that ``old`` has."""
    refs = {name: {"$ref": f"#/$defs/{name}"} for name in ("Run", "SelfcheckRun", "Reason")}
    _, found = msgspec.json.schema_components(
        [RunFile, SelfcheckFile], schema_hook=lambda type_: {**TEXT} if type_ is Fact else refs["Reason"]
    )
    found |= msgspec.json.schema_components([WrittenReason])[1]
    del found["Verdict"]["properties"]["also"]  # the message of a reason has all reasons
    definitions = {NAMED.get(name, name): definition for name, definition in found.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"pytest-rlperf: --rlperf-json, schema version {SCHEMA}",
        "description": old["description"],
        "oneOf": [refs["Run"], refs["SelfcheckRun"]],
        "$defs": {
            name: _definition(name, definitions[name], old["$defs"].get(name, {})) for name in sorted(definitions)
        },
    }


def _definition(name: str, found: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return a definition: every field is written, so every one is required."""
    described = {"description": old.get("description", "")}
    if "properties" not in found:
        return described | {"enum": found["enum"]}
    added, words = ADDED.get(name, {}), old.get("properties", {})
    first = {field: added[field] for field in ("schema", "kind") if field in added}
    fields = first | {field: _without_words(part) for field, part in found["properties"].items()} | added
    properties = {
        field: {"description": words.get(field, {}).get("description", "")} | part for field, part in fields.items()
    }
    return described | {"type": "object", "properties": properties, "required": list(properties)}


def _named(ref: str) -> str:
    """Return a reference by the name that the schema has for what it leads to."""
    start, slash, name = ref.rpartition("/")
    return f"{start}{slash}{NAMED.get(name, name)}"


def _without_words(part: Any) -> Any:
    """Return a part of msgspec's schema without its titles and defaults."""
    if isinstance(part, dict):
        kept = {key: value for key, value in part.items() if key not in ("description", "default", "title")}
        return {key: _without_words(_named(value) if key == "$ref" else value) for key, value in kept.items()}
    return [_without_words(one) for one in part] if isinstance(part, list) else part


if __name__ == "__main__":
    made = generate(json.loads(FILE.read_text(encoding="utf-8")))
    FILE.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
