"""Calls between tags: read the same however the text is cut, typed by their schemas, tags in values kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dialect_outputs import TOOLS, asked, cuts, joined, mutated, parsed, parsed_alike, values

from relevo.gateway.dialects.tagged_formats import (
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    DSML,
    GLM45,
    GLM47,
    MINIMAX_M2,
    QWEN3_CODER,
    SEED_OSS,
    STEP3,
    TaggedFormat,
)
from relevo.gateway.text.parts import ToolCallPart

Arguments = dict[str, str]


def function_call(begin: str, end: str, name: str, arguments: Arguments) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"{begin}\n<function={name}>\n{inner}</function>\n{end}"


def invoke(prefix: str, name: str, arguments: Arguments, attribute: str = "") -> str:
    inner = "".join(
        f'<{prefix}parameter name="{key}"{attribute}>{value}</{prefix}parameter>\n' for key, value in arguments.items()
    )
    return f'<{prefix}invoke name="{name}">\n{inner}</{prefix}invoke>\n'


def glm_call(name: str, arguments: Arguments, line_end: str) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line_end}<arg_value>{value}</arg_value>{line_end}"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{line_end}{inner}</tool_call>"


def written(style: TaggedFormat, *calls: tuple[str, Arguments]) -> str:
    """As the family's template shows calls."""
    if style in (QWEN3_CODER, SEED_OSS):
        return "\n".join(function_call(*style.markup[:2], name, arguments) for name, arguments in calls)
    if style in (GLM45, GLM47):
        line_end = "\n" if style is GLM45 else ""
        return line_end.join(glm_call(name, arguments, line_end) for name, arguments in calls)
    begin, end = style.markup[:2]
    if style is STEP3:
        inner = "\n".join(
            f"<｜tool_call_begin｜>function<｜tool_sep｜>{invoke('steptml:', *call).rstrip()}<｜tool_call_end｜>"
            for call in calls
        )
        return f"{begin}\n{inner}\n{end}"
    prefix, attribute = (DSML, ' string="true"') if style in (DEEPSEEK_V32, DEEPSEEK_V4) else ("", "")
    return f"{begin}\n{''.join(invoke(prefix, *call, attribute) for call in calls)}{end}"


STYLES = (QWEN3_CODER, SEED_OSS, MINIMAX_M2, DEEPSEEK_V32, DEEPSEEK_V4, GLM47, GLM45, STEP3)
styles = pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)


@styles
def test_calls_are_read_the_same_however_the_output_is_cut(style: TaggedFormat) -> None:
    """Red when a state is counted per delta, or when a first delta needs to hold something whole."""
    output = "Looking." + written(style, ("tide", {"port": "Brest"}), ("find", {"n": "7", "zip": "02134"}))
    text, _, calls = parsed_alike(style, output)
    assert text == "Looking."
    assert values(calls) == [("tide", {"port": "Brest"}), ("find", {"n": 7, "zip": "02134"})]


@styles
def test_a_call_without_arguments_has_an_empty_object(style: TaggedFormat) -> None:
    """Red when nothing is sent for no arguments, or when calls share theirs."""
    text, _, calls = parsed_alike(style, written(style, ("ping", {}), ("tide", {"port": "Brest"})))
    assert (text, calls) == ("", [("ping", "{}"), ("tide", '{"port":"Brest"}')])


@styles
def test_a_closing_tag_within_a_value_is_data(style: TaggedFormat) -> None:
    """Red when a value ends at the first tag that looks like its end, or when a rest of one gets into a name."""
    assert style.tags.value_end
    for body in (
        f"use {style.tags.value_end} to close",
        f"{style.tags.value_end}\nand {style.tags.value_end}{style.tags.value_end}.",
        f"{style.tags.value_end[:5]} <{style.tags.value_end}",
        "a < b << c <p> </p> <function <tool_call <parameter=",
        "two\n\nlines\n",
        'quotes " and \\ and ďź🚀',
    ):
        text, _, calls = parsed_alike(style, written(style, ("put", {"body": body, "path": "a.md"})))
        assert (text, values(calls)) == ("", [("put", {"body": body, "path": "a.md"})])
        text, _, calls = parsed_alike(style, written(style, ("put", {"path": "a.md", "body": body})))
        assert (text, values(calls)) == ("", [("put", {"body": body, "path": "a.md"})])


@styles
def test_values_have_the_types_of_the_schema(style: TaggedFormat) -> None:
    """Red when a type is guessed, or when a value that does not fit costs the call."""
    told = {"zip": "02134", "n": "7", "ok": "false", "d": '{"a":1}', "tags": '["x"]', "other": "5"}
    _, _, calls = parsed_alike(
        style, written(style, ("find", told), ("find", {"n": "null"}), ("find", {"n": "2026-01"}))
    )
    assert values(calls) == [
        ("find", {"zip": "02134", "n": 7, "ok": False, "d": {"a": 1}, "tags": ["x"], "other": "5"}),
        ("find", {"n": None}),
        ("find", {"n": "2026-01"}),
    ]
    assert values(calls)[0][1]["ok"] is False


@styles
def test_an_unknown_tool_that_was_framed_as_a_call_is_a_call(style: TaggedFormat) -> None:
    """Red when a call of a tool that was not declared is dropped: the client answers it with an error."""
    assert parsed_alike(style, written(style, ("nosuch", {"a": "1"})))[2] == [("nosuch", '{"a":"1"}')]


@styles
def test_an_output_cut_anywhere_loses_nothing(style: TaggedFormat) -> None:
    """Red when a cut call is dropped after its name was told, is shown whole, or when finished calls go with it."""
    output = "So: " + written(
        style, ("tide", {"port": "Brest", "days": "3"}), ("put", {"path": "x", "body": "some text"})
    )
    _, _, whole = parsed(style, [output])
    for end in range(len(output)):
        text, _, calls = parsed_alike(style, output[:end], is_cut=True, num=2)
        assert text.startswith("So: "[: end or 1]) or not end
        assert [name for name, _ in calls] == [name for name, _ in whole[: len(calls)]]
        assert [arguments for _, arguments in calls[:-1]] == [arguments for _, arguments in whole[: len(calls[:-1])]]
        if calls and calls[-1][1] != whole[len(calls) - 1][1]:
            assert not calls[-1][1].endswith("}"), "an unfinished call is not shown as finished"
            if "some te" in output[:end]:
                assert "some te" in calls[-1][1]


@styles
def test_what_the_schema_calls_text_is_told_as_it_comes(style: TaggedFormat) -> None:
    """Red when a long text argument is held until its end."""
    output = written(style, ("put", {"body": "x" * 400}))
    parser = style.parser(asked())
    parts = [part for char in output for part in parser.feed(char)]
    assert sum(isinstance(part, ToolCallPart) and "x" in part.arguments for part in parts) > 300
    assert parser.num_closed_calls == 1 and not parser.is_in_call


@styles
def test_prose_that_names_the_tags_stays_text(style: TaggedFormat) -> None:
    """Red when what never becomes a call is swallowed, or called."""
    for prose in (
        f"Models write {' and '.join(style.markup)}; then they wait.",
        f"{style.markup[0]}\nnot a call, only words",
        style.markup[0],
        str(style.tags.call[0]),
        'if a < b: <function=unknown> <invoke name="unknown">',
    ):
        assert parsed_alike(style, prose) == (prose, "", [])


@styles
def test_broken_outputs_raise_nothing_and_do_not_depend_on_the_cuts(style: TaggedFormat) -> None:
    """Red when an odd output raises, or is read differently in pieces."""
    output = "So: " + written(
        style, ("tide", {"port": "Brest", "days": "3"}), ("put", {"path": "x", "body": "some text"})
    )
    for seed in range(200):
        for is_cut in (False, True):
            parsed_alike(style, mutated(output, seed), is_cut=is_cut, num=4)


@styles
def test_a_call_whose_closing_tags_are_missing_at_the_models_own_end_is_whole(style: TaggedFormat) -> None:
    """Red when a model that stops after its last value costs the client the call."""
    output = written(style, ("tide", {"port": "Brest"}))
    end = output.index(style.tags.value_end) + len(style.tags.value_end)
    assert parsed_alike(style, output[:end])[2] == [("tide", '{"port":"Brest"}')]
    assert parsed_alike(style, output[:end], is_cut=True)[2] == [("tide", '{"port":"Brest"')]


QWEN_ROWS: list[tuple[str, str, list[tuple[str, Any]]]] = [
    ("<function=ping>\n</function>", "", [("ping", {})]),
    ("<function=ping>\n</function>\n</tool_call>", "", [("ping", {})]),
    ("<tool_call>\n<function=ping></tool_call>", "", [("ping", {})]),
    (
        "<tool_call>\n<function=tide>\n<parameter=port>\nBrest\n</function>\n</tool_call>",
        "",
        [("tide", {"port": "Brest"})],
    ),
    (
        "<tool_call>\n<function=put>\n<parameter=body>\nends with </parameter>\n</function> here\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [("put", {"body": "ends with </parameter>\n</function> here"})],
    ),
    (
        "<tool_call>\n<function=put>\n<parameter= body >\nx\n</parameter>\n</parameter>\n</function>\n</tool_call>",
        "",
        [("put", {"body": "x\n</parameter>"})],
    ),
    (
        "<tool_call>\n<function=put>\n<parameter=body>x</parameter><parameter=path>y</parameter></function></tool_call>",
        "",
        [("put", {"body": "x", "path": "y"})],
    ),
    ("<tool_call>\n<function=ping>\n</function>\n</tool_call>\n\nDone.", "\n\nDone.", [("ping", {})]),
    ("<tool_call>\n<function=ping>\nstray\n</function>\n</tool_call>", "stray\n", [("ping", {})]),
    ('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>', "same", []),
]


@pytest.mark.parametrize(("output", "content", "calls"), QWEN_ROWS)
def test_qwen3_coder_reads_what_models_write_amiss(output: str, content: str, calls: list[tuple[str, Any]]) -> None:
    """Red when a missing frame, a missing tag or a stray one costs the call."""
    text, _, found = parsed_alike(QWEN3_CODER, output)
    assert (text, values(found)) == (output if content == "same" else content, calls)


def test_glm_reads_a_bare_name_and_inline_arguments() -> None:
    """Red when a call needs its line ends, or arguments at all."""
    for style in (GLM45, GLM47):
        assert parsed_alike(style, "<tool_call>ping</tool_call>")[2] == [("ping", "{}")]
        assert parsed_alike(style, "<tool_call>\nping\n</tool_call>")[2] == [("ping", "{}")]
        for line_end in ("", "\n", "\n\n "):
            output = glm_call("tide", {"port": "Brest", "days": "3"}, line_end)
            assert values(parsed_alike(style, output)[2]) == [("tide", {"port": "Brest", "days": 3})]


def test_glm_takes_prose_after_its_tag_for_text() -> None:
    """Red when any word after the tag becomes a name."""
    for prose in ("<tool_call>several words</tool_call>", "<tool_call>ping", '<tool_call>{"name":"x"}</tool_call>'):
        assert parsed_alike(GLM45, prose, is_cut=True) == (prose, "", [])


def test_dsml_says_itself_what_is_no_string() -> None:
    """Red when the attribute is ignored where the schema is silent, or wins where it speaks."""
    inner = "".join(
        f'<{DSML}parameter name="{key}" string="{flag}">{value}</{DSML}parameter>\n'
        for key, flag, value in (
            ("other", "false", "5"),
            ("more", "false", '{"a":[1]}'),
            ("word", "true", "5"),
            ("zip", "false", "02134"),
            ("n", "true", "7"),
            ("odd", "false", "not json"),
        )
    )
    output = f'<{DSML}function_calls>\n<{DSML}invoke name="find">\n{inner}</{DSML}invoke>\n</{DSML}function_calls>'
    ((_, arguments),) = values(parsed_alike(DEEPSEEK_V32, output)[2])
    assert arguments == {"other": 5, "more": {"a": [1]}, "word": "5", "zip": "02134", "n": 7, "odd": "not json"}


def test_several_calls_share_a_frame() -> None:
    """Red when a frame is taken for one call."""
    output = f"<minimax:tool_call>\n{invoke('', 'ping', {})}{invoke('', 'ping', {})}</minimax:tool_call>"
    assert parsed_alike(MINIMAX_M2, output) == ("", "", [("ping", "{}"), ("ping", "{}")])


def test_ids_are_unique_and_come_with_the_first_part_only() -> None:
    """Red when an id repeats, is empty, or comes again in a later part."""
    output = written(QWEN3_CODER, ("tide", {"port": "Brest"}), ("ping", {}))
    for pieces in cuts(output, 20):
        parser = QWEN3_CODER.parser(asked())
        parts = [part for piece in pieces for part in parser.feed(piece)]
        joined(parts)
        assert [(part.index, part.id) for part in parts if isinstance(part, ToolCallPart) and part.id] == [
            (0, "call_000000000000000000000000"),
            (1, "call_000000000000000000000001"),
        ]


def test_each_choice_has_a_state_of_its_own() -> None:
    """Red when two choices share a parser's state."""
    one, other = QWEN3_CODER.parser(asked()), QWEN3_CODER.parser(asked())
    begun, rest = "<tool_call>\n<function=pi", "ng>\n</function>\n</tool_call>"
    assert not [*one.feed(begun), *other.feed("plain ")][1:]
    found = joined([*one.feed(rest), *one.flush(is_cut=False)])
    assert found == ("", "", [("ping", "{}")])
    assert json.loads(found[2][0][1]) == {} and TOOLS
