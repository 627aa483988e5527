"""Whatever family wrote an output and however it is cut, the same parts come of it, and nothing is lost."""

from __future__ import annotations

import random

import pytest
from code_dialects import CODE_FAMILIES
from family_outputs import Family, Output, parser_of, read
from json_dialects import JSON_FAMILIES
from tagged_dialects import TAGGED_FAMILIES

from relevo.gateway.dialects.registry import TOOL_FORMATS, reasoning_format_for, tool_format_for

FAMILIES = (*JSON_FAMILIES, *TAGGED_FAMILIES, *CODE_FAMILIES)  # other modules of rows are added here
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
