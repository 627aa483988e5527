"""Whatever family wrote an output and however it is cut, the same parts come of it, and nothing is lost."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from code_dialects import CODE_FAMILIES
from family_outputs import Family, Output, parser_of, read
from harmony_dialect import HARMONY
from json_dialects import JSON_FAMILIES
from tagged_dialects import TAGGED_FAMILIES

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.dialects.formats import ReasoningFormat
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS, reasoning_format_for, tool_format_for

FAMILIES = (*JSON_FAMILIES, *TAGGED_FAMILIES, *CODE_FAMILIES, HARMONY)  # other modules of rows are added here
ROWS = [
    pytest.param(family, output, id=f"{family.tools}-{number}")
    for family in FAMILIES
    for number, output in enumerate(family.outputs)
]
NUM_CUTS = 50


def cuts_of(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.sample(range(1, len(text)), rng.randint(0, len(text) - 1)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(("family", "output"), ROWS)
def test_an_output_means_what_its_family_means_by_it(family: Family, output: Output) -> None:
    """Red for any family whose marks, names or arguments are read in another way."""
    found = read(parser_of(family.tools, family.reasoning), [output.written])
    assert found.calls == list(output.calls)
    assert (found.content, found.reasoning) == (output.content, output.reasoning)
    assert not found.is_broken_off and not found.is_complete


@pytest.mark.parametrize(("family", "output"), ROWS)
def test_the_same_parts_come_however_an_output_is_cut(family: Family, output: Output) -> None:
    """Red for a parser that looks at pieces instead of the text: at marks in one piece, at one call per piece."""
    whole = read(parser_of(family.tools, family.reasoning), [output.written])
    rng = random.Random(7)
    for pieces in (list(output.written), *(cuts_of(output.written, rng) for _ in range(NUM_CUTS))):
        found = read(parser_of(family.tools, family.reasoning), pieces)
        assert found.parts == whole.parts, pieces


def test_every_tool_format_has_outputs_here() -> None:
    assert {family.tools for family in FAMILIES} == set(TOOL_FORMATS)


@pytest.mark.parametrize("family", [pytest.param(each, id=each.tools) for each in FAMILIES if each.template])
def test_a_template_with_a_familys_marks_chooses_its_formats(family: Family) -> None:
    tools, reasoning = tool_format_for(family.template), reasoning_format_for(family.template)
    assert tools is not None and tools.name == family.tools
    assert (reasoning.name if reasoning else "none") == family.reasoning


def test_a_template_without_marks_chooses_none() -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    assert tool_format_for(plain) is None and reasoning_format_for(plain) is None


def test_without_tools_that_may_be_called_calls_are_text() -> None:
    found = read(parser_of("hermes", "qwen3", asked_tools=()), list("<think>hm</think>Hi.<tool_call>{}</tool_call>"))
    assert (found.reasoning, found.content) == ("hm", "Hi.<tool_call>{}</tool_call>")


@pytest.mark.parametrize("name", [name for name, each in TOOL_FORMATS.items() if each.shape is not None])
def test_calls_that_are_held_to_a_familys_shape_are_read_as_those_calls(name: str) -> None:
    """Red if a forced call were written in a form that its own parser does not take."""
    shape = TOOL_FORMATS[name].shape
    assert shape is not None
    if shape.arguments != "json":
        pytest.skip("arguments that are no JSON have tests of their own")
    calls = [("tide", '{"port": "Brest"}'), ("ping", "{}")]
    written = [
        (shape.before_name + called + shape.before_arguments + text + shape.after_arguments)
        .replace("{index}", str(index))
        .replace("{name}", called)
        for index, (called, text) in enumerate(calls)
    ]
    for number in (1, 2):
        text = shape.begin + shape.between.join(written[:number]) + shape.end
        assert text.startswith(shape.trigger)
        found = read(parser_of(name), list(text))
        assert (found.calls, found.content, found.is_broken_off) == (calls[:number], "", False)


THOUGHTS = [  # but harmony's, whose messages have no blanks beside marks: see `test_harmony`
    pytest.param(each, id=each.name) for each in REASONING_FORMATS.values() if each.name != "openai_gptoss"
]


@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize("opened", [True, False])
def test_every_kind_of_reasoning_is_told_apart_from_content(thought: ReasoningFormat, opened: bool) -> None:
    """Where its prompt opened it and where the model does; its tokens are those up to the end mark."""
    written = ("" if opened else thought.start) + f"\nI weigh it.\n{thought.end}"
    tail = f"<user>what?<assistant>{thought.start}\n" if opened else "<user>what?<assistant>"
    assert thought.is_open_after(tail) is opened
    parser = parser_of("hermes", thought.name, prompt_tail=tail)
    found = read(parser, list(f"{written}\n\nIt is {thought.start[0]}so.\n"))
    assert (found.reasoning, found.content) == ("I weigh it.", f"It is {thought.start[0]}so.\n")
    assert found.num_reasoning_tokens == len(written)


def test_several_tokens_at_a_time_are_counted_each() -> None:
    """As after a handoff, where one output brings many. Red if a piece counted as one, or wholly as either kind."""
    parser = parser_of("hermes", "qwen3", prompt_tail="<think>")
    tokens = (SampledToken(TokenId(0)),)
    parser.feed("0123456789", tokens * 5)
    parser.feed("01</think>0123456789", tokens * 10)
    parser.feed("01", tokens)
    parser.flush(is_cut=False)
    assert parser.num_reasoning_tokens == 5 + 5


def test_only_the_first_call_of_a_thought_is_shown_where_one_is_wanted() -> None:
    """Red if the second, which is not shown, were told of as broken off."""
    call, cut = '<tool_call>{"name":"ping","arguments":{}}</tool_call>', '<tool_call>{"name":"tide","arguments":{"port'
    found = read(parser_of("hermes", "qwen3", is_parallel=False), ["<think>so ", call, cut])
    assert (found.reasoning, found.calls, found.is_broken_off) == ("so", [("ping", "{}")], False)


def test_every_parser_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "tools.md").read_text(encoding="utf-8")
    lost = [name for name in (*TOOL_FORMATS, *REASONING_FORMATS) if f"`{name}`" not in guide]
    assert not lost


# ---- outputs that no family writes -----------------------------------------------------------------------------------

NUM_MUTATED, NUM_PARTS = 10_000, 10
NOISE = ("{", "}", "[", "]", '"', ",", ":", ";", "\\", " ", "\n", "<", "n", "{}", '{"name": "ping", "arguments": {}}')
HEADER = ("<｜tool▁sep｜>",)  # what stands between a call's mark and its name
FRAME = {"name", "arguments", "parameters", "function", "functions", "json", "call_id", "args", "null", "type", "id"}
FRAME |= {"invoke", "parameter", "string", "true", "none", "steptml", "dsml", "tool_code", "call", "escape"}
HEADED = {
    "openai",
    "deepseek_v32",
    "deepseek_v4",
}  # whose marks have words beside them that are markup too: checked for cuts alone


def mutated(text: str, marks: list[str], rng: random.Random) -> str:
    """Cut, doubled, moved, or with something put in, up to three times."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text) + 1)
        end, other = min(len(text), start + rng.randint(1, 12)), rng.randrange(len(text) + 1)
        put_in = rng.choice(["", text[start:end] * 2, rng.choice(marks), rng.choice(NOISE), text[other : other + 30]])
        text = rng.choice([text[:start] + put_in + text[rng.choice([start, end]) :], text[:start], text[start:]])
    return text


def words_outside(text: str, marks: list[str]) -> list[str]:
    """Those that are in no braces and no marks, and in no mark's beginning at the end, which may close a call.

    Whether braces in strings count or not: a mutated string may end anywhere.
    """
    for mark in sorted([*marks, *HEADER], key=len, reverse=True):
        ending = next((mark[:size] for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), "")
        text = re.sub(r"\[CALL_ID\]\w*", " ", text.removesuffix(ending).replace(mark, " "))
    with_strings = re.findall(r'"(?:[^"\\]|\\.)*"|.', text, re.DOTALL)
    kept = [outside_braces(tokens) for tokens in (with_strings, list(text))]
    outside = "".join(char if all(each[place] == char for each in kept) else " " for place, char in enumerate(text))
    return [word for word in re.findall(r"[A-Za-z]{3,}", outside) if word.lower() not in FRAME]


def outside_braces(tokens: list[str]) -> str:
    """As long as the tokens, with blanks for those within."""
    shown, depth = "", 0
    for token in tokens:
        depth = max(0, depth + (token == "{") - (token == "}"))
        shown += " " * len(token) if depth else token
    return shown


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_of_no_output_is_anything_lost_or_read_differently_when_cut(part: int) -> None:
    """Where no call was read, all but reasoning's marks and blanks is in some part; of families whose calls are JSON,
    every word outside of braces and marks is. Red for a parser that raises, drops what it does not understand, or
    decides by how the text is cut."""
    for number in range(part, NUM_MUTATED, NUM_PARTS):
        rng = random.Random(number)
        family = rng.choice(FAMILIES)
        reasoning = REASONING_FORMATS.get(family.reasoning)
        thought_marks = [reasoning.start, reasoning.end] if reasoning else []
        marks = [*TOOL_FORMATS[family.tools].markup, *thought_marks]
        written = mutated(rng.choice(family.outputs).written, marks or ["["], rng)
        is_cut = rng.random() < 0.3
        whole = read(parser_of(family.tools, family.reasoning), [written], is_cut=is_cut)
        if len(written) > 1:
            places = sorted(rng.sample(range(1, len(written)), min(len(written) - 1, rng.randint(1, 12))))
            pieces = [written[a:b] for a, b in zip([0, *places], [*places, len(written)], strict=True)]
            assert read(parser_of(family.tools, family.reasoning), pieces, is_cut=is_cut) == whole, (
                family.tools,
                pieces,
            )
        if family.tools in HEADED:
            continue
        out = whole.reasoning + " " + whole.content + " " + " ".join(f"{name} {text}" for name, text in whole.calls)
        for word in set(words_outside(written, marks)) if family in JSON_FAMILIES else ():
            assert word in out, (family.tools, word, written, whole)
        if not whole.calls:
            assert bare(whole.reasoning + whole.content, thought_marks) == bare(written, thought_marks), written


def bare(text: str, marks: list[str]) -> str:
    """Without blanks and these marks."""
    for mark in marks:
        text = text.replace(mark, "")
    return re.sub(r"\s", "", text)
