"""Every field in which clients say what the text has to be: read, held by the engine's grammar, refused by its name."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from held_walks import takes
from scripted_gateway import rig, says

from relevo.gateway.generation.grammar import text_cost
from relevo.gateway.text.text_work import INLINE_BYTES

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
ODD = {**SCHEMA, "properties": {"a": {"type": "integer"}, "tags": {"type": "array", "uniqueItems": True}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
GBNF = 'root ::= "{\\"a\\":" [0-9]+ "}"'
LARK = 'start: "{\\"a\\":" /[0-9]+/ "}"'

FORMS: dict[str, dict[str, Any]] = {
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {"response_format": FORMAT},
    "llama.cpp's json_object": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "structured json": {"structured_outputs": {"json": SCHEMA, "regex": None, "backend": "x"}},
    "structured json as text": {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    "structured regex": {"structured_outputs": {"regex": r'\{"a":\d+\}'}},
    "structured choice": {"structured_outputs": {"choice": ['{"a":7}', "b"]}},
    "structured grammar": {"structured_outputs": {"grammar": LARK}},
    "structured json_object": {"structured_outputs": {"json_object": True}},
    "structured, no blanks": {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    "guided_json": {"guided_json": SCHEMA},
    "guided_regex": {"guided_regex": r'\{"a":\d+\}'},
    "guided_choice": {"guided_choice": ['{"a":7}']},
    "guided_grammar": {"guided_grammar": GBNF},
    "guided blanks": {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
    "regex": {"regex": r'\{"a":\d+\}'},
    "ebnf": {"ebnf": GBNF},
    "grammar": {"grammar": GBNF},
    "llama.cpp's json_schema": {"json_schema": SCHEMA},
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("is_chat", [True, False])
async def test_every_form_holds_the_answer_from_its_first_token(kind: str, is_chat: bool) -> None:
    r = rig(says('{"a":7}'))
    answer = await (r.chat(**FORMS[kind]) if is_chat else r.complete(**FORMS[kind]))
    assert answer.status_code == 200, answer.text
    grammar = r.generator.requests[0].sampling.grammar
    assert grammar is not None
    assert takes(grammar, '{"a":7}')
    assert not takes(grammar, '{"a":x}') and not takes(grammar, 'no {"a":7}')


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"response_format": None}, {"structured_outputs": {}}, {"grammar": ""},
     {"guided_choice": []}, {"structured_outputs": {"json": None}}, {"guided_whitespace_pattern": " ?"}],
)  # fmt: skip
async def test_what_asks_for_nothing_holds_nothing(fields: dict[str, Any]) -> None:
    r = rig(says("x"))
    assert (await r.chat(**fields)).status_code == 200
    assert r.generator.requests[0].sampling.grammar is None


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "two at once": ({"response_format": FORMAT, "regex": "a"}, "regex", "send one of them"),
    "two in one": (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs.choice",
        "send one of them",
    ),
    "structural tag": (
        {"structured_outputs": {"structural_tag": "{}"}},
        "structured_outputs.structural_tag",
        "not supported",
    ),
    "unknown type": ({"response_format": {"type": "xml"}}, "response_format.type", "must be one of"),
    "format as a text": ({"response_format": "json"}, "response_format", "an object with a 'type'"),
    "no schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema.schema",
        "JSON schema",
    ),
    "strict as a text": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}},
        "response_format.json_schema.strict",
        "true or false",
    ),
    "strict and odd": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ODD, "strict": True}}},
        "response_format",
        "'uniqueItems' at /properties/tags",
    ),
    "no JSON": ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    "no texts": ({"guided_choice": ["a", ""]}, "guided_choice", "none of them empty"),
    "regex that cannot be held": ({"regex": "(?=a)"}, "regex", "look-ahead"),
    "regex as a number": ({"regex": 3}, "regex", "must be a text"),
    "broken grammar": ({"grammar": "root ::= foo"}, "grammar", "cannot be held"),
    "no grammar": ({"ebnf": "hello"}, "ebnf", "neither Lark"),
    "schema in a grammar": ({"guided_grammar": 'start: %json {"type": "object"}'}, "guided_grammar", "%json"),
    "grammar of nothing": ({"grammar": "start: start"}, "grammar", "no text is of it"),
    "blanks that are none": (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": 3},
        "guided_whitespace_pattern",
        "must be a text",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_cannot_be_held_is_refused_with_its_field(kind: str) -> None:
    fields, param, said = REFUSED[kind]
    r = rig(says("x"))
    for answer in (await r.chat(**fields), await r.complete(**fields)):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == param and said in error["message"]
    assert not r.generator.requests


async def test_what_is_not_held_is_told_in_a_header_and_the_rest_is_held() -> None:
    r = rig(says('{"a":7}'))
    answer = await r.chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": ODD}})
    assert answer.status_code == 200
    assert "'uniqueItems' at /properties/tags" in answer.headers["x-relevo-notes"]
    grammar = r.generator.requests[0].sampling.grammar
    assert grammar is not None and not takes(grammar, '{"a":null}')


async def test_every_choice_and_prompt_is_held() -> None:
    r = rig(says('{"a":7}'))
    answer = await r.complete(prompt=["a", "b"], response_format=FORMAT)
    assert answer.status_code == 200, answer.text
    assert [request.sampling.grammar is not None for request in r.generator.requests] == [True, True]


async def test_grammars_are_made_away_from_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a short body with a schema is worked on in the loop: every other stream would wait for it."""
    from relevo.gateway.held import output

    threads: list[threading.Thread] = []
    make = output._made

    def noted(wanted: output.Wanted) -> output.Held:
        threads.append(threading.current_thread())
        return make(wanted)

    monkeypatch.setattr(output, "_made", noted)
    monkeypatch.setattr(output, "_KEPT", output._KeptGrammars())
    r = rig(says('{"a":7}'))
    for _ in range(2):
        assert (await r.chat(response_format=FORMAT)).status_code == 200
    assert len(threads) == 1, "a schema that comes again was kept"
    assert threads[0] is not threading.main_thread()


def test_a_field_that_is_spelled_in_escapes_is_worked_on_in_a_thread_too() -> None:
    """Red when a client can choose that its schema is compiled in the loop."""
    plain = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert text_cost(plain) == len(plain)
    assert text_cost(plain.replace(b'{"messages"', b'{"response\\u005fformat": {}, "messages"')) > INLINE_BYTES
