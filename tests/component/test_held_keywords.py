"""What of a schema cannot be held: refused with its place and name in a strict schema, noted and let go elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from held_walks import of_schema, takes

from relevo.core.errors import InvalidRequest
from relevo.gateway.held import problems
from relevo.gateway.held.formats import FORMATS
from relevo.gateway.held.problems import MAX_NOTES
from relevo.gateway.held.schema.keywords import KEYWORDS


def inside(part: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b": part}, "required": ["a/b"]}


UNHELD: dict[str, tuple[Any, str]] = {
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "contains": ({"type": "array", "contains": {}}, "contains"),
    "minContains": ({"type": "array", "minContains": 2}, "minContains"),
    "if": ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "if"),
    "not": ({"not": {"const": 1}}, "not"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "dependentSchemas": ({"dependentSchemas": {"a": {}}}, "dependentSchemas"),
    "unevaluatedProperties": (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        "unevaluatedProperties",
    ),
    "dynamicRef": ({"$dynamicRef": "#a"}, "$dynamicRef"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    "format": ({"type": "string", "format": "path"}, "format"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
    "look-behind": ({"type": "string", "pattern": "(?<!a)b"}, "pattern"),
    "backreference": ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
    "word boundary": ({"type": "string", "pattern": "\\bfoo\\b"}, "pattern"),
    "Unicode property": ({"type": "string", "pattern": "^\\p{L}$"}, "pattern"),
    "anchor inside": ({"type": "string", "pattern": "a$b"}, "pattern"),
    "nested counts": ({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}, "pattern"),
    "broken pattern": ({"type": "string", "pattern": "(a"}, "pattern"),
    "broken pattern of names": ({"type": "object", "patternProperties": {"(a": {}}}, "patternProperties"),
    "members of a map": ({"type": "object", "minProperties": 3}, "minProperties"),
    "multiples of huge ones": ({"type": "integer", "multipleOf": 3, "minimum": 2**53 + 1}, "multipleOf"),
    "null": ({"type": "object", "properties": None}, "properties"),
    "required as in draft 3": ({"type": "object", "required": True}, "required"),
    "misspelled": ({"type": "string", "minLenght": 3}, "minLenght"),
    "a reference to elsewhere": ({"$ref": "https://example.org/x.json"}, "$ref"),
}


@pytest.mark.parametrize("kind", UNHELD)
def test_a_strict_schema_is_refused_with_the_place_and_the_keyword(kind: str) -> None:
    part, keyword = UNHELD[kind]
    with pytest.raises(InvalidRequest) as refused:
        of_schema(inside(part))
    assert f"'{keyword}' at /properties/a~1b" in refused.value.message
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("kind", UNHELD)
def test_a_schema_that_is_not_strict_is_held_without_it_and_says_so(kind: str) -> None:
    part, keyword = UNHELD[kind]
    found = of_schema(inside(part), is_strict=False)
    assert any(f"'{keyword}' at /properties/a~1b" in note for note in found.notes)
    if kind != "a reference to elsewhere":
        assert not takes(found.grammar, "[]"), "the rest of the schema is held"


IMPOSSIBLE: dict[str, tuple[Any, str]] = {
    "refers to itself": ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "refers to itself"),
    "refers to itself by branches": ({"anyOf": [{"$ref": "#"}]}, "refers to itself"),
    "never ends": (
        {
            "$defs": {"a": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/a"}}}},
            "$ref": "#/$defs/a",
        },
        "ever end",
    ),
    "false": (False, "no value"),
    "contradiction": ({"type": "integer", "minimum": 3, "maximum": 2}, "no value"),
    "contradiction in a member": (inside({"allOf": [{"type": "string"}, {"type": "null"}]}), "no value"),
    "empty intersection": ({"type": "string", "pattern": "^a$", "minLength": 5}, "ever end"),
    "more required than allowed": ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, "no value"),
    "reference to nothing": ({"$ref": "#/$defs/b"}, "names nothing"),
    "no type": ({"type": "text"}, "no type"),
    "limit that is a text": ({"type": "integer", "minimum": "3"}, "must be a number"),
    "negative length": ({"type": "string", "minLength": -1}, "not negative"),
    "empty enum": ({"enum": []}, "not empty"),
    "properties as a list": ({"properties": [1]}, "object of schemas"),
    "a schema that is a number": (inside(3), "must be a schema"),
    "too many branches at once": (
        {"allOf": [{"anyOf": [{"type": "object", "required": [f"{i}{j}"]} for i in range(10)]} for j in range(10)]},
        "too large",
    ),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize("is_strict", [True, False])
def test_what_is_no_schema_or_has_no_value_is_refused_either_way(kind: str, is_strict: bool) -> None:
    schema, said = IMPOSSIBLE[kind]
    with pytest.raises(InvalidRequest) as refused:
        of_schema(schema, is_strict=is_strict)
    assert said in refused.value.message


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_sixty_levels_are_held_and_more_are_refused_with_their_place() -> None:
    grammar = of_schema(nested(60)).grammar
    assert takes(grammar, '{"a":' * 60 + "1" + "}" * 60)
    assert not takes(grammar, '{"a":' * 60 + "null" + "}" * 60)
    for depth in (70, 100_000):
        with pytest.raises(InvalidRequest, match=r"at (/properties/a){60,70}[a-z/]*: nested deeper"):
            of_schema(nested(depth))


def test_long_chains_of_references_are_refused() -> None:
    """Red when they are followed by recursion without a bound."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)} | {"d5000": {"type": "null"}}
    with pytest.raises(InvalidRequest, match="in each other"):
        of_schema({"$defs": chain, "$ref": "#/$defs/d0"})


def test_a_schema_of_many_values_is_refused_by_its_size() -> None:
    with pytest.raises(InvalidRequest, match="make it smaller"):
        of_schema({"enum": [["a" * 100]] * 200_000})


def test_no_schema_takes_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a schema whose combinations explode is worked on to its end: minutes of a thread, for one request."""
    monkeypatch.setattr(problems, "MAX_THREAD_S", -1.0)
    for is_strict in (True, False):
        with pytest.raises(InvalidRequest, match="too large"):
            of_schema({"anyOf": [{"type": "integer", "maximum": 17}, {"type": "string"}]}, is_strict=is_strict)


def test_many_optional_members_are_held_and_too_many_are_refused() -> None:
    few = {
        "type": "object",
        "properties": {f"p{i}": {"type": "null"} for i in range(400)},
        "additionalProperties": False,
    }
    assert takes(of_schema(few).grammar, '{"p0":null,"p399":null}')
    many = {"type": "object", "properties": {f"p{i}": {} for i in range(401)}}
    with pytest.raises(InvalidRequest, match="more than 400"):
        of_schema(many)
    assert "any JSON" in of_schema(many, is_strict=False).notes[0]


def test_there_are_never_more_notes_than_a_header_holds() -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"format": "path"} for i in range(200)}}
    assert len(of_schema(schema, is_strict=False).notes) == MAX_NOTES


def test_the_guide_lists_every_keyword_and_every_format() -> None:
    """Red when a rule changes and the guide does not."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "structured-output.md").read_text(encoding="utf-8")
    assert [k.name for k in KEYWORDS if f"| `{k.name}` | {k.rule} | {k.says} |" not in guide] == []
    assert [name for name in FORMATS if f"`{name}`" not in guide] == []
