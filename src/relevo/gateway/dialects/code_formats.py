"""The families that write calls as code: Llama 3.2 and 4, OLMo 3, LFM2, Gemma 3, FunctionGemma and Gemma 4, as data."""

from __future__ import annotations

from relevo.gateway.dialects.formats import CallShape
from relevo.gateway.dialects.literal_arguments import Dialect
from relevo.gateway.dialects.literal_calls import NAME, CodeFormat
from relevo.gateway.dialects.patterns import BLANKS

PYTHON_CALL = (NAME, BLANKS, "(")
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"


def python_shape(begin: str, end: str, between: str = ", ") -> CallShape:
    return CallShape(
        begin=begin,
        end=end,
        between=between,
        before_name="",
        before_arguments="(",
        after_arguments=")",
        arguments="python",
    )


def list_format(name: str, *signs: tuple[str, ...]) -> CodeFormat:
    return CodeFormat(
        name=name,
        marks=[(PYTHON_START, BLANKS, "[")],
        bare=[("[",)],
        call=PYTHON_CALL,
        ends=("]", PYTHON_END),
        shape=python_shape("[", "]"),
        markup=(PYTHON_START, PYTHON_END),
        signs=signs,
    )


LLAMA4_PYTHONIC = list_format("llama4_pythonic", ("[func_name1(", "<|header_start|>"), (PYTHON_START,))
PYTHONIC = list_format("pythonic", ("[func_name1(",), ("func_name1(params_name1=",), ("[func1(",))
OLMO3 = CodeFormat(
    name="olmo3",
    marks=[("<function_calls>",)],
    call=PYTHON_CALL,
    ends=("</function_calls>",),
    shape=python_shape("<function_calls>\n", "\n</function_calls>", "\n"),
    markup=("<function_calls>", "</function_calls>"),
    signs=[("<function_calls>", "pythonic"), ("<function_calls>", "<functions>")],
)
LFM2 = CodeFormat(
    name="lfm2",
    marks=[("<|tool_call_start|>", BLANKS, "[")],
    call=PYTHON_CALL,
    ends=("]", "<|tool_call_end|>"),
    shape=python_shape("<|tool_call_start|>[", "]<|tool_call_end|>"),
    markup=("<|tool_call_start|>", "<|tool_call_end|>"),
    signs=[("<|tool_list_start|>",), ("<|tool_call_start|>",)],
)
FENCE = "```tool_code"
GEMMA3 = CodeFormat(
    name="gemma3",
    marks=[(FENCE, BLANKS, "["), (FENCE,)],
    marks_know_names=True,  # code that is no call may stand in such a fence
    call=PYTHON_CALL,
    ends=("]", "```"),
    shape=python_shape(f"{FENCE}\n", "\n```", "\n"),
    markup=(FENCE,),
    signs=[("tool_code", "<start_of_turn>")],
)


def gemma_format(name: str, start: str, end: str, quote: str, *signs: tuple[str, ...]) -> CodeFormat:
    return CodeFormat(
        name=name,
        marks=[(start, BLANKS, "call:"), (start,)],
        bare=[("call:",)],
        call=(NAME, BLANKS, "{"),
        before_next=("call:",),
        ends=(end,),
        dialect=Dialect(closer="}", is_named_by_equals=False, quotes=(quote, '"', "'"), verbatim=(quote,)),
        shape=CallShape(
            before_name=f"{start}call:",
            before_arguments="",
            after_arguments=end,
            between="",
            arguments="gemma",
            quote=quote,
            trigger=start,
        ),
        markup=(start, end, quote),
        signs=signs,
    )


GEMMA4 = gemma_format("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', ("<|tool_call>",), ("<|tool>", "<tool|>"))
FUNCTION_GEMMA = gemma_format(
    "functiongemma", "<start_function_call>", "<end_function_call>", "<escape>", ("<start_function_call>",)
)

CODE_FORMATS = (LLAMA4_PYTHONIC, PYTHONIC, OLMO3, LFM2, GEMMA3, GEMMA4, FUNCTION_GEMMA)
