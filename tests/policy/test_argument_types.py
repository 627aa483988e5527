"""Bare text becomes the value that the tool's schema declares, and stays text where it cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.gateway.dialects.argument_types import ArgumentTypes

PLACE = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "place": PLACE,
        "a/b c": {"type": "integer"},
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "boolean"}]},
        "many": {"anyOf": [{"$ref": "#/$defs/many"}, {"$ref": "#/$defs/many"}, {"$ref": "#/$defs/many"}]},
        "two": {"oneOf": [{"$ref": "#/$defs/place"}, {"type": "array"}]},
    },
    "properties": {
        "zip": {"type": "string"},
        "n": {"type": ["integer", "null"]},
        "ok": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "d": {"$ref": "#/$defs/place"},
        "escaped": {"$ref": "#/$defs/a~1b%20c"},
        "loop": {"$ref": "#/$defs/loop"},
        "many": {"$ref": "#/$defs/many"},
        "two": {"$ref": "#/$defs/two"},
        "all": {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "object"]}]},
        "maybe": {"type": "number", "nullable": True},
        "level": {"enum": [1, 2, 3]},
        "word": {"enum": ["1", "2"]},
        "fixed": {"const": True},
        "list": {"type": "array", "items": {"type": "string"}},
        "either": {"type": ["string", "integer", "null"]},
        "number": {"type": "number"},
        "untyped": {"description": "anything", "default": None},
        "any": True,
        "by_hand": {"type": "INT"},
        "keys": {"properties": {"x": {}}},
        "lost": {"$ref": "#/$defs/nowhere"},
        "far": {"$ref": "https://example.com/schema"},
    },
}


def tools(schema: Any = SCHEMA) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


CASES = [
    ("zip", "02134", "02134"),
    ("zip", "true", "true"),
    ("zip", ' "quoted" ', ' "quoted" '),
    ("n", "7", 7),
    ("n", "\n7 ", 7),
    ("n", "null", None),
    ("n", "None", None),
    ("n", "2026-01", "2026-01"),
    ("n", "1e3", "1e3"),
    ("n", "7.0", 7),
    ("n", "007", 7),
    ("n", "-0", 0),
    ("n", "9007199254740993", 9007199254740993),
    ("ok", "false", False),
    ("ok", "True", True),
    ("ok", "null", None),
    ("ok", "1", "1"),
    ("d", '{"a":1}', {"a": 1}),
    ("d", ' {"a": 1}\n', {"a": 1}),
    ("d", '{"a": "x\ny"}', {"a": "x\ny"}),
    ("d", '{"a": 1', '{"a": 1'),
    ("d", "[1]", "[1]"),
    ("d", '{"a": NaN}', '{"a": NaN}'),
    ("escaped", "5", 5),
    ("loop", "true", True),
    ("many", "5", "5"),
    ("two", "[1, 2]", [1, 2]),
    ("two", '{"a":1}', {"a": 1}),
    ("all", "12", 12),
    ("maybe", "null", None),
    ("maybe", "2.50", 2.5),
    ("level", "2", 2),
    ("word", "2", "2"),
    ("fixed", "true", True),
    ("list", '["a","b"]', ["a", "b"]),
    ("list", "a, b", "a, b"),
    ("either", "02134", "02134"),
    ("either", "12", 12),
    ("either", " 12", " 12"),
    ("either", "null", None),
    ("number", "5", 5),
    ("number", ".5", 0.5),
    ("number", "+5", 5),
    ("number", "1e999", "1e999"),
    ("number", "NaN", "NaN"),
    ("number", "1_000", "1_000"),
    ("untyped", "7", "7"),
    ("any", "true", "true"),
    ("by_hand", "7", 7),
    ("keys", '{"x": 1}', {"x": 1}),
    ("lost", "7", "7"),
    ("far", "7", "7"),
    ("undeclared", "7", "7"),
]


@pytest.mark.parametrize(("parameter", "written", "value"), CASES)
def test_an_argument_has_the_type_of_its_schema(parameter: str, written: str, value: Any) -> None:
    """Red when a type is guessed from the looks of a text, or when what cannot be converted is changed or lost."""
    found = ArgumentTypes(tools()).of("f", parameter).json_of(written)
    assert json.loads(found) == value and type(json.loads(found)) is type(value)


def test_digits_of_numbers_are_kept_as_they_were_written() -> None:
    """Red when a number goes through a float on its way."""
    types = ArgumentTypes(tools())
    assert types.of("f", "number").json_of("0.10000000000000000001") == "0.10000000000000000001"
    assert types.of("f", "number").json_of("123456789012345678901234567890") == "123456789012345678901234567890"


def test_undeclared_parameters_take_the_type_that_additional_ones_have() -> None:
    """Red when `additionalProperties` is not asked."""
    typed = ArgumentTypes(tools({"type": "object", "additionalProperties": {"type": "integer"}}))
    assert typed.of("f", "x").json_of("7") == "7"
    free = ArgumentTypes(tools({"type": "object", "additionalProperties": True}))
    assert free.of("f", "x").json_of("7") == '"7"'


def test_properties_are_found_behind_references_and_alternatives() -> None:
    """Red when only the properties at the top are looked at."""
    behind = {"$ref": "#/$defs/in", "$defs": {"in": {"allOf": [{"properties": {"x": {"type": "integer"}}}]}}}
    assert ArgumentTypes(tools(behind)).of("f", "x").json_of("7") == "7"


def test_only_strings_may_be_told_before_they_end() -> None:
    """Red when a value is streamed whose type is not certain."""
    types = ArgumentTypes(tools())
    assert types.of("f", "zip").is_text and types.of("f", "word").is_text and types.of("nosuch", "x").is_text
    assert not types.of("f", "n").is_text and not types.of("f", "either").is_text


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "$ref", "anyOf", "allOf", "enum", "const", "properties", "x", "items", "nullable"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(ANYTHING, st.text(max_size=12))
def test_any_schema_and_any_text_give_a_json_value(schema: Any, written: str) -> None:
    """Red when an odd schema raises, or when what comes out is no JSON."""
    json.loads(ArgumentTypes(tools(schema)).of("f", "x").json_of(written))
