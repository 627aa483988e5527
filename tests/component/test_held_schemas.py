"""Answers that are held to a schema are valid JSON of that schema, whichever tokens a model prefers.

Every kind of schema is walked at random and each answer judged by `json` and `jsonschema`. Red when a keyword is let
go, or read wrongly.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from held_walks import of_schema, takes, walk

POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "true": True,
    "any object": {"type": "object"},
    "closed object": {**POINT, "additionalProperties": False},
    "open object": POINT,
    "typed others": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    },
    "required, not declared": {"type": "object", "required": ["q"], "additionalProperties": {"type": "boolean"}},
    "all optional": {
        "type": "object",
        "properties": {n: {"type": "boolean"} for n in "abcdefgh"},
        "additionalProperties": False,
    },
    "names that need escapes": {
        "type": "object",
        "properties": {'a"b': {}, "c\\d": {}, "é\n": {}, "/~": {}},
        "required": ['a"b', "é\n"],
    },
    "two of three": {
        "type": "object",
        "properties": {n: {"type": "null"} for n in "abc"},
        "minProperties": 2,
        "maxProperties": 2,
        "additionalProperties": False,
    },
    "few of a map": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "minProperties": 1,
        "maxProperties": 2,
    },
    "pattern of names": {
        "type": "object",
        "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 5}},
        "additionalProperties": False,
    },
    "declared and pattern": {
        "type": "object",
        "properties": {"x": {"maximum": 3}},
        "patternProperties": {"^x": {"type": "integer"}},
        "additionalProperties": {"type": "null"},
    },
    "names by schema": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{2}$"},
        "additionalProperties": {"type": "null"},
        "maxProperties": 3,
    },
    "names by list": {
        "type": "object",
        "propertyNames": {"enum": ["a", "b"]},
        "additionalProperties": {"type": "integer"},
    },
    "texts": {"type": "string"},
    "short texts": {"type": "string", "minLength": 2, "maxLength": 4},
    "long texts": {"type": "array", "items": {"type": "string", "maxLength": 4096}, "maxItems": 2},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,4}(?:/[a-f]+)?$"},
    "pattern found anywhere": {"type": "string", "pattern": "[0-9]"},
    "pattern and length": {"type": "string", "pattern": "^a*b*$", "minLength": 3, "maxLength": 5},
    "pattern with quotes": {"type": "string", "pattern": '^["\\\\\\n]+$', "maxLength": 6},
    "two patterns": {"allOf": [{"type": "string", "pattern": "^[a-m]+$"}, {"pattern": "^[g-z]+$"}]},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "email": {"type": "string", "format": "email"},
    "integers": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 5},
    "range": {"type": "integer", "minimum": -17, "exclusiveMaximum": 1234},
    "huge limits": {"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740999},
    "decimals": {"type": "number", "minimum": -0.125, "exclusiveMaximum": 3.25},
    "positive": {"type": "number", "exclusiveMinimum": 0},
    "draft 4 limits": {"type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 2},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 500},
    "quarters": {"type": "number", "multipleOf": 0.25},
    "tens": {"type": "integer", "multipleOf": 10, "minimum": 1},
    "enum": {"enum": ["a", 1, 2.5, None, True, {"b": [1, "x"]}, 'é"', []]},
    "const": {"const": {"k": [None, -1.5e-7]}},
    "enum within a type": {"type": "string", "enum": ["a", 1, "bb"], "minLength": 2},
    "many values": {"type": "string", "enum": [f"value {i * 7919 % 99991}" for i in range(20_000)]},
    "list of types": {"type": ["integer", "null", "string"], "maxLength": 3, "minimum": 5},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "null"}, {"type": "boolean"}],
        "items": {"type": "integer"},
        "maxItems": 4,
    },
    "old tuple": {"type": "array", "items": [{"type": "null"}, {"const": 1}], "additionalItems": False, "minItems": 1},
    "some items": {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 100_000},
    "any of": {"anyOf": [POINT, {"type": "array", "items": {"const": "q"}}, {"type": "integer", "minimum": 5}]},
    "one of, by a mark": {
        "oneOf": [{**POINT, "properties": {"x": {"const": k}, "y": {}}, "additionalProperties": False} for k in "ab"]
    },
    "one of, by type": {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
    "one of, but null of two": {"oneOf": [{"type": ["string", "null"]}, {"type": ["number", "null"]}]},
    "one of, by range": {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 4}]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 5}, "b": {"type": "null"}}, "required": ["b"]},
        ]
    },
    "all of, closed": {
        "allOf": [
            {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
            {"properties": {"b": {}, "a": {"type": "null"}}},
        ]
    },
    "recursion": TREE,
    "reference into properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
        "required": ["b"],
    },
    "reference with an escape": {
        "$defs": {"a/b": {"const": 3}},
        "type": "array",
        "items": {"$ref": "#/$defs/a~1b"},
        "minItems": 1,
        "maxItems": 2,
    },
    "reference beside others": {
        "definitions": {"n": {"type": "integer"}},
        "$ref": "#/definitions/n",
        "minimum": 3,
        "maximum": 9,
    },
    "recursion through a branch": {
        "anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}]
    },
    "a branch that cannot end": {
        "$defs": {"a": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/a"}}}},
        "anyOf": [{"$ref": "#/$defs/a"}, {"const": 0}],
    },
    "not of a type": {"not": {"type": ["object", "array"]}},
    "no extra by unevaluated": {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
    "words without effect": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:a",
        "title": "t",
        "description": "d",
        "default": None,
        "examples": [1],
        "x-order": 1,
        "type": "boolean",
    },
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_answer_is_of_its_schema(kind: str) -> None:
    schema = SCHEMAS[kind]
    found = of_schema(schema)
    assert not found.notes
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    if kind in ("old tuple", "draft 4 limits", "reference beside others"):
        judge = OLDER[kind]
    rng, num_whole = random.Random(kind), 0
    for _ in range(12):
        answer = walk(found.grammar, rng)
        if answer is not None:
            judge.validate(json.loads(answer))
            num_whole += 1
    assert num_whole >= 6, "most walks come to an end"


OLDER: dict[str, Any] = {
    "old tuple": jsonschema.Draft7Validator(SCHEMAS["old tuple"]),
    "draft 4 limits": jsonschema.Draft4Validator(SCHEMAS["draft 4 limits"]),
    "reference beside others": jsonschema.Draft202012Validator(SCHEMAS["reference beside others"]),
}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            "closed object",
            ['{"x":1,"y":-2.5}', '{ "x": 1,\n "y": 2\n}'],
            ['{"y":1,"x":1}', '{"x":1}', '{"x":1,"y":1,"z":1}'],
        ),
        (
            "typed others",
            ['{"b":1}', '{"a":null,"b":1}'],
            ['{"a":1}', '{"a":null,"a":1}', '{"\\u0061":1}', '{"b":null}'],
        ),
        ("huge limits", ["9007199254740993", "9007199254740999"], ["9007199254740992", "9007199254741000"]),
        ("anything", ["1e30", '"\\ud83d\\ude80"', "[]", "-0.5E-7"], ["1e999", '"\\ud83d"', "01", "[1,]", '"\t"']),
        ("tuple", ["[]", "[null]", "[null,true,3]"], ["[true]", "[null,true,null]", "[null,true,1,2,3]"]),
        ("many values", ['"value 0"', '"value 7919"'], ['"value 1x"', '"value"']),
        ("a branch that cannot end", ["0"], ["{}", '{"a":0}']),
        ("range", ["-17", "0", "1233"], ["-18", "1234", "1.0"]),
    ],
)
def test_what_is_of_a_schema_and_what_is_not(kind: str, good: list[str], bad: list[str]) -> None:
    grammar = of_schema(SCHEMAS[kind]).grammar
    assert [text for text in good if not takes(grammar, text)] == []
    assert [text for text in bad if takes(grammar, text)] == []


def test_blanks_are_bounded_in_every_place_and_are_never_tabs() -> None:
    """A model for which only blanks are left would write them up to its limit."""
    grammar = of_schema(SCHEMAS["closed object"]).grammar
    assert takes(grammar, '{\n                "x": 1,\n                "y": 2\n}')
    for text in (
        '{\t"x":1,"y":1}',
        '{\r\n"x":1,"y":1}',
        '{  "x":1,"y":1}',
        '{"x" :1,"y":1}',
        '{"x":1 ,"y":1}',
        ' {"x":1,"y":1}',
    ):
        assert not takes(grammar, text), text
    assert not takes(grammar, "{\n" + " " * 17 + '"x":1,"y":1}')


def test_blanks_are_as_the_client_wants_them() -> None:
    none = of_schema(SCHEMAS["closed object"], blanks="").grammar
    assert takes(none, '{"x":1,"y":1}') and not takes(none, '{ "x":1,"y":1}')
    dashes = of_schema(SCHEMAS["closed object"], blanks="[ \\t]{0,2}").grammar
    assert takes(dashes, '{\t"x" :  1,"y":1}') and not takes(dashes, '{\n"x":1,"y":1}')
