"""The families whose calls are JSON, as data. Source: their chat templates and model cards; names as vLLM has them."""

from __future__ import annotations

import re

from relevo.gateway.dialects.formats import CallShape
from relevo.gateway.dialects.json_calls import Header, JsonFormat
from relevo.gateway.text.output_parser import ParserInput

_NAME = r"([\w.\-/]+)"
MISTRAL_ID_CHARS = 9


def mistral_id(asked: ParserInput, name: str, index: int) -> str:
    """Mistral's templates take ids of nine letters and digits, and no others."""
    return asked.draw_id()[-MISTRAL_ID_CHARS:].rjust(MISTRAL_ID_CHARS, "0")


def kimi_id(asked: ParserInput, name: str, index: int) -> str:
    """As Kimi's template writes them: calls are counted over the whole conversation."""
    return f"functions.{name}:{asked.num_earlier_calls + index}"


def _object_shape(
    begin: str, end: str, *, arguments: str = "arguments", whole: tuple[str, str] = ("", ""), between: str = "\n"
) -> CallShape:
    """Calls as objects: each within `begin` and `end`, all of them within `whole`."""
    return CallShape(
        begin=whole[0],
        end=whole[1],
        between=between,
        before_name=begin + '{"name": "',
        before_arguments=f'", "{arguments}": ',
        after_arguments="}" + end,
    )


HERMES = JsonFormat(
    name="hermes",
    opens=("<tool_call>",),
    closes=("</tool_call>",),
    signs=("<tool_call>",),
    shape=_object_shape("<tool_call>\n", "\n</tool_call>"),
)

_TOOL_CALLS_LIST = _object_shape("", "", whole=("<tool_calls>[\n    ", "\n]</tool_calls>"), between=",\n    ")

JSON_FORMATS = (  # of those that a template shows equally much of, the first counts
    JsonFormat(
        name="granite4",
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        signs=("<tool_call>&<|start_of_role|>",),
        shape=_object_shape("<tool_call>\n", "\n</tool_call>"),
    ),
    JsonFormat(  # small models of Qwen 2.5, and its coders, mostly put a call into a fence, or write it bare
        name="qwen2_5",
        opens=HERMES.opens,
        closes=(*HERMES.closes, "```"),
        fences=("```json",),
        is_bare=True,
        needs_known_name=True,
        signs=("<tool_call>&You are Qwen, created by Alibaba Cloud",),
        shape=HERMES.shape,
    ),
    HERMES,
    JsonFormat(
        name="llama3_json",
        opens=("<|python_tag|>",),
        is_bare=True,
        needs_known_name=True,
        signs=("<|python_tag|>", '"parameters": &<|start_header_id|>', '"parameters": &ipython'),
        shape=_object_shape("", "", arguments="parameters", between="; "),
    ),
    JsonFormat(
        name="mistral",
        opens=("[TOOL_CALLS]",),
        header=Header(name=re.compile(_NAME + r"\s*(?:\[CALL_ID\]\s*\w*)?"), ends=("[ARGS]",)),
        signs=("[TOOL_CALLS]&[ARGS]",),
        shape=CallShape(
            before_name="[TOOL_CALLS]",
            before_arguments="[ARGS]",
            after_arguments="",
            between="",
            trigger="[TOOL_CALLS]",
        ),
        make_id=mistral_id,
    ),
    JsonFormat(
        name="mistral_list",
        opens=("[TOOL_CALLS]",),
        header=Header(name=re.compile(_NAME + r"\s*(?:\[CALL_ID\]\s*\w*)?"), ends=("[ARGS]",)),
        signs=("[TOOL_CALLS]",),
        unlike=("[ARGS]",),
        shape=_object_shape("", "", whole=("[TOOL_CALLS][", "]"), between=", "),
        make_id=mistral_id,
    ),
    JsonFormat(
        name="granite",
        opens=("<|tool_call|>", "<function_call>", "<tool_call>"),
        closes=("</tool_call>",),
        signs=("<|tool_call|>", "<function_call>"),
        shape=_object_shape("", "", whole=("<|tool_call|>[", "]"), between=", "),
    ),
    JsonFormat(
        name="phi4_mini_json",
        opens=("functools",),
        signs=("functools", "<|tool|>&<|/tool|>"),
        shape=_object_shape("", "", whole=("functools[", "]"), between=", "),
    ),
    JsonFormat(
        name="deepseek_v3",
        sections=("<｜tool▁calls▁begin｜>",),
        opens=("<｜tool▁call▁begin｜>",),
        header=Header(name=re.compile(r"(?:function)?\s*(?:<｜tool▁sep｜>)?\s*" + _NAME), ends=("```json",)),
        closes=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        signs=("<｜tool▁call▁begin｜>&```json",),
        takes_objects=False,
        shape=CallShape(
            begin="<｜tool▁calls▁begin｜>",
            before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            before_arguments="\n```json\n",
            after_arguments="\n```<｜tool▁call▁end｜>",
            end="<｜tool▁calls▁end｜>",
        ),
    ),
    JsonFormat(
        name="deepseek_v31",
        sections=("<｜tool▁calls▁begin｜>",),
        opens=("<｜tool▁call▁begin｜>",),
        header=Header(name=re.compile(_NAME), ends=("<｜tool▁sep｜>",)),
        closes=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        signs=("<｜tool▁call▁begin｜>",),
        unlike=("```json",),
        takes_objects=False,
        shape=CallShape(
            begin="<｜tool▁calls▁begin｜>",
            before_name="<｜tool▁call▁begin｜>",
            before_arguments="<｜tool▁sep｜>",
            after_arguments="<｜tool▁call▁end｜>",
            between="",
            end="<｜tool▁calls▁end｜>",
        ),
    ),
    JsonFormat(
        name="kimi_k2",
        sections=("<|tool_calls_section_begin|>",),
        opens=("<|tool_call_begin|>",),
        header=Header(
            name=re.compile(r"(?:functions\.)?([\w.\-/]+?)\s*(?::\s*\d+)?"), ends=("<|tool_call_argument_begin|>",)
        ),
        closes=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        signs=("<|tool_call_begin|>", "<|tool_calls_section_begin|>"),
        takes_objects=False,
        shape=CallShape(
            begin="<|tool_calls_section_begin|>",
            before_name="<|tool_call_begin|>functions.",
            before_arguments=":{index}<|tool_call_argument_begin|>",
            after_arguments="<|tool_call_end|>",
            between="",
            end="<|tool_calls_section_end|>",
        ),
        make_id=kimi_id,
    ),
    JsonFormat(
        name="internlm",
        sections=("<|action_start|>",),
        opens=("<|plugin|>",),
        closes=("<|action_end|>",),
        signs=("<|plugin|>",),
        shape=_object_shape("<|action_start|><|plugin|>\n", "<|action_end|>", arguments="parameters", between=""),
    ),
    JsonFormat(
        name="hunyuan_a13b",
        opens=("<tool_calls>",),
        closes=("</tool_calls>",),
        signs=("<tool_calls>&<answer>",),
        shape=_TOOL_CALLS_LIST,
    ),
    JsonFormat(
        name="minimax",
        opens=("<tool_calls>",),
        closes=("</tool_calls>",),
        signs=("<tool_calls>&<beginning_of_sentence>",),
        shape=_object_shape("", "", whole=("<tool_calls>\n", "\n</tool_calls>")),
    ),
    JsonFormat(
        name="jamba",
        opens=("<tool_calls>",),
        closes=("</tool_calls>",),
        signs=("<tool_calls>",),
        shape=_TOOL_CALLS_LIST,
    ),
    JsonFormat(
        name="xlam",
        opens=("<tool_call>", "[TOOL_CALLS]"),
        closes=("</tool_call>",),
        is_bare=True,
        needs_known_name=True,
        shape=_object_shape("", "", whole=("[", "]"), between=", "),
    ),
)
