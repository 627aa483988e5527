"""Calls that are held: whatever a model writes, its family's own parser reads calls of the declared tools out of it.

Walked at random for every family, and at chosen places by hand. Red when a family's shape and its parser disagree.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import jsonschema
import pytest
from held_walks import EOS, MARKS, next_tokens, of_schema, takes, tokens_of, walk

from relevo.core.errors import InvalidRequest
from relevo.gateway.dialects.formats import CallShape, ToolFormat
from relevo.gateway.dialects.harmony import CONTROL
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS
from relevo.gateway.generation.spec import OutputFormat
from relevo.gateway.held.calls import Tool
from relevo.gateway.held.output import Held, Wanted, held
from relevo.gateway.held.reasoning import Thoughts
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part, TextPart, ToolCallPart
from relevo.vocabulary.grammars import GrammarVocabulary

FAMILIES: dict[str, ToolFormat] = TOOL_FORMATS
SHAPED = [name for name, each in FAMILIES.items() if each.shape is not None]
TIDE = {
    "type": "object",
    "properties": {
        "port": {"type": "string"},
        "day": {"type": "integer", "minimum": 1, "maximum": 31},
        "unit": {"enum": ["m", "ft"]},
        "exact": {"type": "boolean"},
        "at": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
    },
    "required": ["port", "day"],
    "additionalProperties": False,
}
NOTE = {
    "type": "object",
    "properties": {
        "either": {"type": ["string", "integer", "null"], "maxLength": 9},
        "about": {
            "type": "object",
            "properties": {
                "New York": {"type": "string", "maxLength": 4},
                "true": {"enum": ["a b", "", True, {"k": "v"}]},
            },
            "additionalProperties": {"type": "integer"},
        },
    },
    "additionalProperties": False,
}
TOOLS = (
    Tool("tide", TIDE, True),
    Tool("stop", {"type": "object", "properties": {}, "additionalProperties": False}, True),
    Tool("note", NOTE, True),
)
PARAMETERS = {tool.name: tool.parameters for tool in TOOLS}
DECLARED = [{"type": "function", "function": {"name": t.name, "parameters": t.parameters}} for t in TOOLS]
HERMES = CallShape(
    before_name='<call>{"name": "', before_arguments='", "arguments": ', after_arguments="}</call>", between=""
)
ONE = '<call>{"name": "tide", "arguments": {"port":"a","day":3}}</call>'
STOP = '<call>{"name": "stop", "arguments": {}}</call>'
FORMAT = OutputFormat(kind="json_schema", value={"const": {"k": 1}})


def calls_in(family: ToolFormat, text: str) -> tuple[list[tuple[str, Any]], str]:
    """Names with arguments, and what was read as text."""
    parser = family.parser(ParserInput(prompt_token_ids=(), tools=DECLARED))
    parts: list[Part] = [*parser.feed(text), *parser.flush(is_cut=False)]
    found: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, ToolCallPart):
            call = found.setdefault(part.index, ["", ""])
            call[0] += part.name
            call[1] += part.arguments
    told = "".join(part.text for part in parts if isinstance(part, TextPart))
    return [(name, json.loads(arguments)) for name, arguments in found.values()], told


def only(shape: CallShape, *, is_parallel: bool = True, tools: Sequence[Tool] = TOOLS, **wanted: Any) -> Held:
    return held(Wanted(calls="only", tools=tools, shape=shape, is_parallel=is_parallel, **wanted))


@pytest.mark.parametrize("is_parallel", [True, False])
@pytest.mark.parametrize("name", SHAPED)
def test_every_family_reads_what_it_is_held_to_as_calls(name: str, is_parallel: bool) -> None:
    family = FAMILIES[name]
    assert family.shape is not None
    grammar = only(family.shape, is_parallel=is_parallel).grammar
    rng, num_whole = random.Random(name), 0
    for _ in range(8):
        answer = walk(grammar, rng, nudge=family.shape.after_parameter.encode())
        if answer is None:
            continue
        num_whole += 1
        calls, told = calls_in(family, answer.decode())
        assert calls and not told.strip(), (answer, told)
        assert is_parallel or len(calls) == 1
        for called, arguments in calls:
            jsonschema.validate(arguments, PARAMETERS[called])
    assert num_whole >= 4


def test_forced_calls_begin_with_the_first_token_and_one_is_enough() -> None:
    grammar = only(HERMES).grammar
    assert next_tokens(grammar, "") == {ord("<")}
    assert takes(grammar, ONE) and takes(grammar, ONE + STOP) and not takes(grammar, "")
    assert not takes(grammar, ONE.replace("tide", "tido")) and not takes(grammar, ONE.replace('"day":3', '"day":0'))
    assert not takes(grammar, ONE + " and more")


def test_one_call_is_all_where_calls_may_not_be_parallel() -> None:
    grammar = only(HERMES, is_parallel=False).grammar
    assert next_tokens(grammar, ONE) == {EOS}


def test_marks_that_are_special_tokens_are_named_as_such() -> None:
    """Red when they are written as text: a model was never trained on the mark's letters."""
    grammar = only(HERMES, specials=MARKS).grammar
    assert next_tokens(grammar, "") == {MARKS["<call>"]}
    assert takes(grammar, ONE, MARKS) and not takes(grammar, ONE)


@pytest.mark.parametrize("specials", [{}, MARKS])
@pytest.mark.parametrize("is_open", [True, False])
def test_what_is_held_begins_behind_the_thoughts(specials: dict[str, int], is_open: bool) -> None:
    """Red when the mask begins with the first token of an answer that thinks first: JSON as reasoning, no content."""
    thoughts = Thoughts("<think>", "</think>", is_open)
    lead = "" if is_open else "<think>"
    for found, good in ((held(Wanted(output_format=FORMAT, thoughts=thoughts, specials=specials)), '{"k":1}'),
                        (only(HERMES, thoughts=thoughts, specials=specials), ONE)):  # fmt: skip
        assert takes(found.grammar, f'{lead}Is it {{"k":2}}? \n Yes.</think>\n\n{good}', specials)
        assert takes(found.grammar, f"{lead}</think>{good}", specials)
        assert takes(found.grammar, good, specials) is not is_open, "thoughts that are not open may be left out"
        assert EOS not in next_tokens(found.grammar, f"{lead}thinking", specials), "no answer ends in its thoughts"
        assert not takes(found.grammar, f"{lead}x</think>\n\n\n{good}", specials)
        assert not takes(found.grammar, f"{lead}x</think>other", specials)


def test_content_of_a_form_or_calls_as_the_first_tokens_decide() -> None:
    """Agents send both on every turn: red when either is dropped."""
    grammar = held(Wanted(output_format=FORMAT, calls="some", tools=TOOLS, shape=HERMES)).grammar
    assert next_tokens(grammar, "") == {ord("<"), ord("{")}
    assert takes(grammar, ONE) and takes(grammar, '{"k":1}')
    assert not takes(grammar, '{"k":1}' + ONE) and not takes(grammar, ONE + '{"k":1}') and not takes(grammar, "text")


def test_an_output_format_gives_way_to_a_forced_call() -> None:
    grammar = only(HERMES, output_format=FORMAT).grammar
    assert takes(grammar, ONE) and not takes(grammar, '{"k":1}')


@pytest.mark.parametrize("specials", [{}, MARKS])
def test_text_is_free_and_a_call_in_it_is_held(specials: dict[str, int]) -> None:
    grammar = held(Wanted(calls="some", tools=TOOLS, shape=HERMES, specials=specials)).grammar
    for good in ("", "text", f"Let me see. {ONE}", f"{ONE}{STOP}", f"{ONE} and {STOP} done", "a < b", "<cal"):
        assert takes(grammar, good, specials), good
    for bad in ("<call>", ONE[:-8], ONE.replace("tide", "x"), f"{ONE} and <call>", ONE.replace('"a"', "1")):
        assert not takes(grammar, bad, specials), bad


def test_an_answer_has_sixteen_calls_at_most_and_may_end_behind_each() -> None:
    """Small models repeat a call to their limit of tokens: red when nothing stops them, or an end is forced late."""
    framed = FAMILIES["minimax_m2"].shape
    assert framed is not None
    for wanted in (Wanted(calls="only", tools=TOOLS, shape=HERMES), Wanted(calls="some", tools=TOOLS, shape=HERMES)):
        grammar = held(wanted).grammar
        assert EOS in next_tokens(grammar, ONE) and EOS in next_tokens(grammar, STOP * 7)
        assert takes(grammar, STOP * 16) and not takes(grammar, STOP * 17)
    call = '<invoke name="stop">\n</invoke>\n'
    for grammar in (only(framed).grammar, held(Wanted(calls="some", tools=TOOLS, shape=framed)).grammar):
        for num, is_taken in ((1, True), (16, True), (17, False)):
            assert takes(grammar, f"<minimax:tool_call>\n{call * num}</minimax:tool_call>") is is_taken


GPT = REASONING_FORMATS["openai_gptoss"]
FINAL, CALLED = (
    "<|channel|>final<|message|>",
    "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}<|call|>",
)
THOUGHT, PREAMBLE = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
    "<|channel|>commentary<|message|>I stop.<|end|><|start|>assistant",
)


@pytest.mark.parametrize("is_special", [True, False])
def test_messages_of_harmony_are_written_as_its_models_do(is_special: bool) -> None:
    """The prompt ends in `<|start|>assistant`. Red when content lacks its channel, or a message behind another its
    start, or the start of one lets nothing but a call through."""
    specials = {mark: 300 + place for place, mark in enumerate(CONTROL)} if is_special else {}
    shape, thoughts = FAMILIES["openai"].shape, Thoughts(GPT.start, GPT.end, False, GPT.messages)
    tell = partial(takes_of_harmony, specials)
    content = held(Wanted(output_format=FORMAT, thoughts=thoughts, specials=specials)).grammar
    both = held(
        Wanted(output_format=FORMAT, calls="some", tools=TOOLS, shape=shape, thoughts=thoughts, specials=specials)
    )
    text = held(Wanted(calls="some", tools=TOOLS, shape=shape, thoughts=thoughts, specials=specials)).grammar
    forced = held(Wanted(calls="only", tools=TOOLS, shape=shape, thoughts=thoughts, specials=specials)).grammar
    for lead in ("", THOUGHT):
        value, words, call = f'{lead}{FINAL}{{"k":1}}', f"{lead}{FINAL}a < b", lead + CALLED
        assert [tell(content, one) for one in (value, words, call)] == [True, False, False]
        assert [tell(both.grammar, one) for one in (value, words, call)] == [True, False, True]
        assert [tell(text, one) for one in (value, words, call)] == [True, True, True]
        assert [tell(forced, one) for one in (value, words, call)] == [False, False, True]
        assert tell(forced, f"{call}<|start|>assistant{CALLED}") and not tell(forced, call + CALLED)
        assert tell(text, lead + PREAMBLE + CALLED) and not tell(text, lead + CALLED.replace("{}", '{"a":1}'))
        assert not tell(content, f'{lead}{{"k":1}}')


def takes_of_harmony(specials: dict[str, int], grammar: str, text: str) -> bool:
    spellings = [bytes((byte,)) for byte in range(256)] + [b"<end>"] + [b""] * 43 + [mark.encode() for mark in CONTROL]
    vocabulary = GrammarVocabulary(spellings, (EOS, *range(300, 307)), (EOS,))
    matcher = vocabulary.compile(grammar).start()
    matcher.follow(tokens_of(text, specials))
    return not matcher.failure and matcher.may_end


def test_text_with_one_call_ends_behind_it() -> None:
    grammar = held(Wanted(calls="some", tools=TOOLS, shape=HERMES, is_parallel=False)).grammar
    assert takes(grammar, f"so: {ONE}") and next_tokens(grammar, f"so: {ONE}") == {EOS}


def test_a_call_in_a_thought_is_a_thought() -> None:
    thoughts = Thoughts("<think>", "</think>", False)
    grammar = held(Wanted(calls="some", tools=TOOLS, shape=HERMES, thoughts=thoughts)).grammar
    assert takes(grammar, f"<think>maybe <call>? no</think>well {ONE}")


ODD_TOOLS: dict[str, Any] = {
    "null default": {"properties": {"a": {"default": None}}},
    "object alone": {"type": "object"},
    "pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "\\S"}}},
    "format": {"type": "object", "properties": {"a": {"type": "string", "format": "path"}}},
    "properties null": {"type": "object", "properties": None},
    "broken": {"type": "object", "properties": {"a": 3}},
    "endless": {"$ref": "#"},
    "deep": {"type": "array"},
    "no schema of JSON": {"type": "any"},
    "not an object": {"type": "string"},
    "too many": {"type": "object", "properties": {f"p{i}": {} for i in range(500)}},
}
NOTED = {"format", "properties null", "broken", "endless", "deep", "no schema of JSON", "not an object", "too many"}


@pytest.mark.parametrize("shape", [HERMES, FAMILIES["qwen3_coder"].shape], ids=["json", "parameters"])
@pytest.mark.parametrize("kind", ODD_TOOLS)
def test_one_odd_tool_among_thirty_refuses_nothing_and_is_named(kind: str, shape: CallShape) -> None:
    tools = [*(Tool(f"t{i}", TIDE, False) for i in range(29)), Tool("odd", ODD_TOOLS[kind], False)]
    found = only(shape, tools=tools)
    is_noted = kind in NOTED and (kind != "too many" or shape is HERMES)  # tags have no such bound
    assert any("tool 'odd'" in note for note in found.notes) is is_noted
    assert not any("tool 't" in note for note in found.notes)
    if shape is HERMES:
        assert takes(found.grammar, '<call>{"name": "odd", "arguments": {}}</call>')
        assert not takes(found.grammar, '<call>{"name": "t7", "arguments": {}}</call>'), "the others are held"


def test_a_strict_tool_that_cannot_be_held_is_refused_with_its_name_and_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "path"}}}
    with pytest.raises(InvalidRequest, match="'odd' cannot be held: 'format' at /properties/a") as refused:
        only(HERMES, tools=[*TOOLS, Tool("odd", schema, True)])
    assert refused.value.param == "tools"


def test_texts_between_tags_end_at_their_tag_only() -> None:
    shape = FAMILIES["qwen3_coder"].shape
    assert shape is not None
    grammar = only(
        shape, tools=[Tool("put", {"type": "object", "properties": {"doc": {"type": "string"}}}, True)]
    ).grammar
    call = "<tool_call>\n<function=put>\n<parameter=doc>\n{}\n</parameter>\n</function>\n</tool_call>"
    for good in ("", 'a "quoted" <b>\n\nline', "</param", "é🚀"):
        assert takes(grammar, call.format(good)), good
    assert not takes(grammar, call.format("x</parameter> y")), "a reader would end it there"


def test_equal_wishes_are_worked_out_once() -> None:
    """Red when what is kept is found by less than all that the grammar is made of."""
    assert of_schema({"const": 1}) is of_schema({"const": 1})
    assert of_schema({"const": 1}).grammar != of_schema({"const": 2}).grammar
    assert only(HERMES).grammar != only(HERMES, is_parallel=False).grammar
