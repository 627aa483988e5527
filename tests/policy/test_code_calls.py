"""Calls written as code: read as the dialects mean them, the same however the text is cut, and never evaluated."""

from __future__ import annotations

import pytest
from dialect_outputs import asked, mutated, parsed, parsed_alike, values

from relevo.gateway.dialects.code_formats import (
    CODE_FORMATS,
    FUNCTION_GEMMA,
    GEMMA3,
    GEMMA4,
    LFM2,
    LLAMA4_PYTHONIC,
    OLMO3,
    PYTHONIC,
)
from relevo.gateway.dialects.literal_calls import CodeFormat
from relevo.gateway.text.parts import ToolCallPart

styles = pytest.mark.parametrize("style", CODE_FORMATS, ids=lambda style: style.name)
PYTHON_STYLES = [style for style in CODE_FORMATS if style.dialect.is_named_by_equals]
Q = '<|"|>'


def written(style: CodeFormat, *calls: tuple[str, str]) -> str:
    """Calls as the family's template shows them: names, and arguments in its dialect."""
    shape = style.shape
    opener, closer = ("{", "}") if shape.arguments == "gemma" else ("", "")
    inner = shape.between.join(
        f"{shape.before_name}{name}{shape.before_arguments}{opener}{arguments}{closer}{shape.after_arguments}"
        for name, arguments in calls
    )
    return shape.begin + inner + shape.end


def tide(style: CodeFormat) -> str:
    if style.dialect.is_named_by_equals:
        return 'port="Brest", days=3'
    quote = style.dialect.quotes[0]
    return f"port:{quote}Brest{quote},days:3"


@styles
def test_calls_are_read_the_same_however_the_output_is_cut(style: CodeFormat) -> None:
    """Red when a state is counted per delta, or when no arguments become nothing."""
    output = written(style, ("tide", tide(style)), ("ping", ""), ("tide", tide(style)))
    text, _, calls = parsed_alike(style, output)
    whole = ("tide", {"port": "Brest", "days": 3})
    assert (text, values(calls)) == ("", [whole, ("ping", {}), whole])
    assert calls[1][1] == "{}"


@styles
def test_prose_stays_text(style: CodeFormat) -> None:
    """Red when code in prose is called, or when what never becomes a call is lost."""
    for prose in (
        "Use [tide(port='Brest')] like this.",
        "[1] A footnote, [2] another.",
        "[nosuch(a=1)]",
        "[",
        "call:nosuch{a:1}",
        "tide(port='Brest')",
        f"about {' '.join(style.markup)} marks",
        style.markup[0],
        "```python\ntide()\n```",
        "",
        "  \n",
    ):
        assert parsed_alike(style, prose) == (prose, "", [])


@styles
def test_an_output_cut_anywhere_shows_no_unfinished_call_as_finished(style: CodeFormat) -> None:
    """Red when a cut call is closed, when one is dropped after its name was told, or when finished ones go with it."""
    output = written(style, ("tide", tide(style)), ("tide", tide(style)))
    whole = parsed(style, [output])[2]
    for end in range(len(output)):
        text, _, calls = parsed_alike(style, output[:end], is_cut=True, num=2)
        assert [name for name, _ in calls] == [name for name, _ in whole[: len(calls)]]
        assert [arguments for _, arguments in calls[:-1]] == [arguments for _, arguments in whole[: len(calls[:-1])]]
        if calls and calls[-1][1] != whole[len(calls) - 1][1]:
            assert not calls[-1][1].endswith("}")
            assert whole[len(calls) - 1][1].startswith(calls[-1][1][:-1].rstrip("<"))
        if not calls:
            assert text == output[:end]


@styles
def test_broken_outputs_raise_nothing_and_do_not_depend_on_the_cuts(style: CodeFormat) -> None:
    """Red when an odd output raises, or is read differently in pieces."""
    output = written(style, ("tide", tide(style)), ("find", tide(style)))
    for seed in range(200):
        for is_cut in (False, True):
            parsed_alike(style, mutated(output, seed), is_cut=is_cut, num=4)


@styles
def test_strings_are_told_as_they_come(style: CodeFormat) -> None:
    """Red when a long argument is held until its end."""
    output = written(style, ("tide", tide(style).replace("Brest", "x" * 300)))
    parser = style.parser(asked())
    parts = [part for char in output for part in parser.feed(char)]
    assert sum(isinstance(part, ToolCallPart) and "x" in part.arguments for part in parts) > 250
    assert parser.num_closed_calls == 1 and not parser.is_in_call


PYTHON_ROWS = [
    ("a=[-1.5],b=(2,3),c='x]\n',from=1", '{"a":[-1.5],"b":[2,3],"c":"x]\\n","from":1}'),
    ("a=True, b=false, c=None, d=null", '{"a":true,"b":false,"c":null,"d":null}'),
    ("a={'k': {1: [2, {}]}, \"l\": ()}", '{"a":{"k":{"1":[2,{}]},"l":[]}}'),
    ("a=(2), b=(2,)", '{"a":2,"b":[2]}'),
    ("a={1, 2}", '{"a":[1,2]}'),
    ("a=1_000, b=0x10, c=.5, d=+3, e=1e400, f=1e3", '{"a":1000,"b":16,"c":0.5,"d":3,"e":"1e400","f":1e3}'),
    (r"a='it\'s \\ \n \x41 \u00e9', b=r'\d'", '{"a":"it\'s \\\\ \\n A é","b":"\\\\d"}'),
    (r'a="\ud83d\ude80 ďź🚀", b="\ud83d x"', '{"a":"🚀 ďź🚀","b":"\ufffd x"}'),
    ('a="say "hi", then go", b=1', '{"a":"say \\"hi\\", then go","b":1}'),
    ('a="""two "quoted"\nlines"""', '{"a":"two \\"quoted\\"\\nlines"}'),
    ("a=New York, b=date(2026, 1)", '{"a":"New York","b":"date(2026, 1)"}'),
    ("a='',", '{"a":""}'),
    ("a=__import__('os').system('x')", "{\"a\":\"__import__('os').system('x')\"}"),
]


@pytest.mark.parametrize("style", PYTHON_STYLES, ids=lambda style: style.name)
@pytest.mark.parametrize(("arguments", "expected"), PYTHON_ROWS)
def test_python_literals_become_json(style: CodeFormat, arguments: str, expected: str) -> None:
    """Red when the dialect is evaluated or rewritten instead of read: minus, tuples, raw line ends, keywords."""
    assert parsed_alike(style, written(style, ("ping", arguments))) == ("", "", [("ping", expected)])


GEMMA_ROWS = [
    (f'm:{{New York:{Q}a,b{Q}}},l:["p"]', '{"m":{"New York":"a,b"},"l":["p"]}'),
    (f"a:{Q}x<|y \\n {{}}{Q},b:[{Q}p{Q},{{k:-1.5}}]", '{"a":"x<|y \\\\n {}","b":["p",{"k":-1.5}]}'),
    (f"{Q}a b{Q}:1,c:true,d:null,e:New York", '{"a b":1,"c":true,"d":null,"e":"New York"}'),
    ("a:12:30,b:{},c:[]", '{"a":"12:30","b":{},"c":[]}'),
]


@pytest.mark.parametrize(("arguments", "expected"), GEMMA_ROWS)
def test_gemmas_bare_keys_and_quotes_become_json(arguments: str, expected: str) -> None:
    """Red when half a quote is told, when plain quotes are kept, or when a bare key costs the call."""
    assert parsed_alike(GEMMA4, f"<|tool_call>call:find{{{arguments}}}<tool_call|>")[2] == [("find", expected)]
    assert parsed_alike(GEMMA4, f"call:find{{{arguments}}}")[2] == [("find", expected)]
    other = arguments.replace(Q, "<escape>")
    output = f"<start_function_call>call:find{{{other}}}<end_function_call>"
    assert parsed_alike(FUNCTION_GEMMA, output)[2] == [("find", expected)]


def test_values_without_names_take_those_of_the_schema_in_its_order() -> None:
    """Red when a call by position loses its values."""
    assert values(parsed_alike(PYTHONIC, '[tide("Brest", 3)]')[2]) == [("tide", {"port": "Brest", "days": 3})]


def test_code_alone_is_a_call_at_the_start_and_for_known_tools_only() -> None:
    """Red when any bracket is called, or when the second list of an answer is lost."""
    assert parsed_alike(PYTHONIC, "\n[ping()]\n[ping()]")[2] == [("ping", "{}")] * 2
    assert parsed_alike(PYTHONIC, "[ping()]\nDone [ping()]") == ("\nDone [ping()]", "", [("ping", "{}")])
    marked = "<|python_start|>[nosuch(a=1)]<|python_end|>"
    assert parsed_alike(LLAMA4_PYTHONIC, marked) == ("", "", [("nosuch", '{"a":1}')])


def test_families_frames_are_not_text() -> None:
    """Red when a frame's mark is left in the content."""
    assert parsed_alike(OLMO3, "So:\n<function_calls>\nping()\nping()\n</function_calls>")[0] == "So:\n"
    assert parsed_alike(LFM2, "<|tool_call_start|>[ping()]<|tool_call_end|>Done")[0] == "Done"
    assert parsed_alike(GEMMA3, "```tool_code\n[ping()]\n```")[0] == ""
    assert parsed_alike(GEMMA3, "```tool_code\nprint(1)\n```") == ("```tool_code\nprint(1)\n```", "", [])


def test_a_call_the_model_itself_left_open_is_whole_if_only_its_bracket_is_missing() -> None:
    """Red when a model that stops early costs the client a call whose arguments are all there."""
    for output in ("[tide(port='Brest'", "[tide(port='Brest')", "[tide(port='Brest',"):
        assert parsed_alike(PYTHONIC, output)[2] == [("tide", '{"port":"Brest"}')]
    assert parsed_alike(PYTHONIC, "[tide(port='Bre")[2] == [("tide", '{"port":"Bre')]
    assert parsed_alike(PYTHONIC, "[tide(port='Brest'", is_cut=True)[2] == [("tide", '{"port":"Brest"')]


def test_values_within_values_without_end_take_no_time() -> None:
    """Red when the depth of values is not bounded: what is deeper is text."""
    ((_, arguments),) = parsed(PYTHONIC, ["[ping(a="] + ["["] * 20_000, is_cut=True)[2]
    assert arguments.startswith('{"a":')
