"""The families that write arguments between tags: Qwen3-Coder, MiniMax M2, GLM 4.5, DeepSeek V3.2, Seed-OSS, Step 3.

What each writes is data for `tagged_calls`. Sources: the chat templates that are published with the models, and for
DeepSeek V3.2 its encoding notes (every parameter there says itself whether it is a string).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from re import Match

from relevo.gateway.dialects.argument_types import ArgumentType, nested_of, number_of
from relevo.gateway.dialects.formats import CallShape, ToolCallParser
from relevo.gateway.dialects.patterns import BLANKS, Run
from relevo.gateway.dialects.tagged_calls import KEY, NAME, TaggedCalls, Tags
from relevo.gateway.text.output_parser import ParserInput


@dataclass(frozen=True, kw_only=True)
class TaggedFormat:
    """Implements dialects.formats.ToolFormat."""

    name: str
    tags: Tags
    shape: CallShape | None
    markup: Sequence[str]
    marks: Sequence[str]  # that a chat template has, all of them

    def recognises(self, template: str) -> bool:
        return all(mark in template for mark in self.marks)

    def parser(self, asked: ParserInput) -> ToolCallParser:
        return TaggedCalls(self.tags, asked)


# ---- <function=NAME> -------------------------------------------------------------------------------------------------


def function_tags(begin: str, end: str) -> Tags:
    return Tags(
        begin=begin,
        end=end,
        call=("<function=", NAME, ">"),
        call_end=("</function>",),
        parameters=[("<parameter=", KEY, ">")],
        value_end="</parameter>",
        line_ends="dropped",
    )


def function_shape(begin: str, end: str) -> CallShape:
    return CallShape(
        before_name=f"{begin}\n<function=",
        before_arguments=">\n",
        after_arguments=f"</function>\n{end}",
        arguments="parameters",
        before_parameter="<parameter={name}>\n",
        after_parameter="\n</parameter>\n",
        trigger=begin,
    )


def function_format(name: str, begin: str, end: str, *marks: str) -> TaggedFormat:
    return TaggedFormat(
        name=name,
        tags=function_tags(begin, end),
        shape=function_shape(begin, end),
        markup=(begin, end, "<function=", "</function>", "<parameter=", "</parameter>"),
        marks=marks or (begin, "<function=", "<parameter="),
    )


QWEN3_CODER = function_format("qwen3_coder", "<tool_call>", "</tool_call>")
SEED_OSS = function_format("seed_oss", "<seed:tool_call>", "</seed:tool_call>")

# ---- <invoke name="NAME"> --------------------------------------------------------------------------------------------


def invoke_marks(prefix: str) -> tuple[str, ...]:
    return (f'<{prefix}invoke name="', f"</{prefix}invoke>", f'<{prefix}parameter name="', f"</{prefix}parameter>")


def invoke_format(name: str, begin: str, end: str, prefix: str, *marks: str) -> TaggedFormat:
    return TaggedFormat(
        name=name,
        tags=Tags(
            begin=begin,
            end=end,
            call=(f'<{prefix}invoke name="', NAME, '">'),
            call_end=(f"</{prefix}invoke>",),
            parameters=[(f'<{prefix}parameter name="', KEY, '">')],
            value_end=f"</{prefix}parameter>",
            line_ends="paired",
        ),
        shape=CallShape(
            begin=f"{begin}\n",
            end=end,
            before_name=f'<{prefix}invoke name="',
            before_arguments='">\n',
            after_arguments=f"</{prefix}invoke>\n",
            between="",
            arguments="parameters",
            before_parameter=f'<{prefix}parameter name="{{name}}">',
            after_parameter=f"</{prefix}parameter>\n",
            trigger=begin,
        ),
        markup=(begin, end, *invoke_marks(prefix)),
        marks=marks or (begin, f"<{prefix}invoke name="),
    )


MINIMAX_M2 = invoke_format("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", "")

# ---- DSML: a parameter says whether it is a string -------------------------------------------------------------------

DSML = "｜DSML｜"


def _dsml_streams(kind: ArgumentType, tag: Match[str]) -> bool:
    return tag["is_string"] == "true" and "string" in kind.kinds


def _dsml_reads(kind: ArgumentType, tag: Match[str], written: str) -> str:
    """The schema decides; what it leaves open is JSON if the model says that it is none of text."""
    if kind.is_declared or tag["is_string"] == "true":
        return kind.json_of(written)
    stripped = written.strip()
    is_json = stripped in ("null", "true", "false") or any(
        read is not None
        for read in (number_of(stripped, is_exact=True), nested_of("object", stripped), nested_of("array", stripped))
    )
    return stripped if is_json else kind.json_of(written)


def dsml_format(name: str, frame: str) -> TaggedFormat:
    begin, end = f"<{DSML}{frame}>", f"</{DSML}{frame}>"
    return TaggedFormat(
        name=name,
        tags=Tags(
            begin=begin,
            end=end,
            call=(f'<{DSML}invoke name="', NAME, '">'),
            call_end=(f"</{DSML}invoke>",),
            parameters=[(f'<{DSML}parameter name="', KEY, '" string="', Run("(?P<is_string>[a-z]{0,5})"), '">')],
            value_end=f"</{DSML}parameter>",
            reads=_dsml_reads,
            streams=_dsml_streams,
        ),
        shape=CallShape(
            begin=f"{begin}\n",
            end=end,
            before_name=f'<{DSML}invoke name="',
            before_arguments='">\n',
            after_arguments=f"</{DSML}invoke>\n",
            between="",
            arguments="parameters",
            before_parameter=f'<{DSML}parameter name="{{name}}" string="true">',
            before_other=f'<{DSML}parameter name="{{name}}" string="false">',
            after_parameter=f"</{DSML}parameter>\n",
            trigger=begin,
        ),
        markup=(begin, end, *invoke_marks(DSML)),
        marks=(DSML, frame),
    )


DEEPSEEK_V32 = dsml_format("deepseek_v32", "function_calls")
DEEPSEEK_V4 = dsml_format("deepseek_v4", "tool_calls")

# ---- <arg_key>, <arg_value> ------------------------------------------------------------------------------------------


def glm_format(name: str, *, is_inline: bool, marks: Sequence[str]) -> TaggedFormat:
    line_end = "" if is_inline else "\n"
    return TaggedFormat(
        name=name,
        tags=Tags(
            call=("<tool_call>", Run(r"\n{0,8}"), NAME),  # blanks would let prose in
            after_name=[(BLANKS, "<arg_key>"), (BLANKS, "</tool_call>")],
            call_end=("</tool_call>",),
            parameters=[
                ("<arg_key>", KEY, "</arg_key>", BLANKS, "<arg_value>"),
                ("<arg_key>", KEY, BLANKS, "<arg_value>"),  # the key's closing tag forgotten
            ],
            value_end="</arg_value>",
        ),
        shape=CallShape(
            before_name="<tool_call>",
            before_arguments=line_end,
            after_arguments="</tool_call>",
            between=line_end,
            arguments="parameters",
            before_parameter=f"<arg_key>{{name}}</arg_key>{line_end}<arg_value>",
            after_parameter=f"</arg_value>{line_end}",
            trigger="<tool_call>",
        ),
        markup=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        marks=marks,
    )


GLM45 = glm_format("glm45", is_inline=False, marks=("<tool_call>", "<arg_key>", "<arg_value>"))
GLM47 = glm_format("glm47", is_inline=True, marks=("<tool_call>", "<arg_key>", "<arg_value>", "</arg_key><arg_value>"))

# ---- Step 3 ----------------------------------------------------------------------------------------------------------

STEP_BEGIN, STEP_CALL = "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>function<｜tool_sep｜>"
STEP_END, STEP_CALL_END = "<｜tool_calls_end｜>", "<｜tool_call_end｜>"
STEP3 = TaggedFormat(
    name="step3",
    tags=Tags(
        begin=STEP_BEGIN,
        end=STEP_END,
        call=(STEP_CALL, BLANKS, '<steptml:invoke name="', NAME, '">'),
        call_end=("</steptml:invoke>", BLANKS, STEP_CALL_END),
        parameters=[('<steptml:parameter name="', KEY, '">')],
        value_end="</steptml:parameter>",
        line_ends="paired",
    ),
    shape=CallShape(
        begin=f"{STEP_BEGIN}\n",
        end=STEP_END,
        before_name=f'{STEP_CALL}<steptml:invoke name="',
        before_arguments='">\n',
        after_arguments=f"</steptml:invoke>{STEP_CALL_END}\n",
        between="",
        arguments="parameters",
        before_parameter='<steptml:parameter name="{name}">',
        after_parameter="</steptml:parameter>\n",
        trigger=STEP_BEGIN,
    ),
    markup=(STEP_BEGIN, STEP_END, "<｜tool_call_begin｜>", "<｜tool_sep｜>", STEP_CALL_END, *invoke_marks("steptml:")),
    marks=("<｜tool_call_begin｜>", "steptml:invoke"),
)

TAGGED_FORMATS = (
    QWEN3_CODER,
    replace(QWEN3_CODER, name="qwen3_xml"),
    replace(QWEN3_CODER, name="step3p5"),
    replace(QWEN3_CODER, name="mimo"),
    SEED_OSS,
    MINIMAX_M2,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    GLM47,  # before GLM45, which recognises its templates too
    GLM45,
    STEP3,
)
