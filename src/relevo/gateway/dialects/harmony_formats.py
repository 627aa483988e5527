"""Harmony's place among the formats: its calls and its reasoning have one parser, whichever of the two is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.gateway.dialects.formats import CallShape, MessageMarks, ToolCallParser
from relevo.gateway.dialects.harmony import CALL, CHANNEL, CONSTRAIN, CONTROL, END, MESSAGE, START, Harmony
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part


class HarmonyCalls:
    """Its `OutputParser` where only calls are asked for. Implements dialects.formats.ToolCallParser."""

    def __init__(self, asked: ParserInput) -> None:
        self._parser = Harmony(asked, tells_reasoning=False)

    @property
    def num_closed_calls(self) -> int:
        return self._parser.num_closed_calls

    @property
    def is_in_call(self) -> bool:
        return self._parser.is_in_call

    def feed(self, text: str) -> Sequence[Part]:
        return self._parser.feed(text, ())

    def flush(self, *, is_cut: bool) -> Sequence[Part]:
        return self._parser.flush(is_cut=is_cut)


SHAPE = CallShape(
    before_name=f"{CHANNEL}commentary to=functions.",
    before_arguments=f" {CONSTRAIN}json{MESSAGE}",
    after_arguments=CALL,
    between=f"{START}assistant",
)
MESSAGES = MessageMarks(
    next=f"{START}assistant",
    content=f"{CHANNEL}final{MESSAGE}",
    preamble=f"{CHANNEL}commentary{MESSAGE}",
    end=END,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonyTools:
    """Implements dialects.formats.ToolFormat."""

    name: str = "openai"
    markup: Sequence[str] = CONTROL
    shape: CallShape | None = SHAPE

    def recognises(self, template: str) -> bool:
        return CHANNEL in template and START in template and MESSAGE in template

    def parser(self, asked: ParserInput) -> ToolCallParser:
        return HarmonyCalls(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonyReasoning:
    """Implements dialects.formats.ReasoningFormat."""

    name: str = "openai_gptoss"
    start: str = f"{CHANNEL}analysis{MESSAGE}"
    end: str = END
    messages: MessageMarks | None = MESSAGES

    def recognises(self, template: str) -> bool:
        return HARMONY_TOOLS.recognises(template)

    def is_open_after(self, prompt_tail: str) -> bool:
        return prompt_tail.rstrip().endswith(self.start)


HARMONY_TOOLS, HARMONY_REASONING = HarmonyTools(), HarmonyReasoning()
