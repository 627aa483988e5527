"""How families mark their reasoning, as data. Source: their chat templates and model cards; names as vLLM has them."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.gateway.dialects.formats import MessageMarks
from relevo.gateway.dialects.marks import BLANKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A `ReasoningFormat`: text between two marks."""

    name: str
    start: str = "<think>"
    end: str = "</think>"
    messages: MessageMarks | None = None
    signs: tuple[str, ...] = ()  # a chat template that has the end mark has one of them, too; none: by name alone

    def recognises(self, template: str) -> bool:
        return self.end in template and any(sign in template for sign in self.signs)

    def is_open_after(self, prompt_tail: str) -> bool:
        """Nothing but blanks follows its start: marks in what a user wrote open nothing."""
        return prompt_tail.rstrip(BLANKS).endswith(self.start)


THINK = Block(name="deepseek_r1", signs=("</think>",))

REASONING_FORMATS = (  # of those that recognise a template the first counts
    Block(name="mistral", start="[THINK]", end="[/THINK]", signs=("[THINK]",)),
    Block(name="kimi_vl", start="◁think▷", end="◁/think▷", signs=("◁think▷",)),
    Block(name="seed_oss", start="<seed:think>", end="</seed:think>", signs=("seed:think",)),
    Block(
        name="granite",
        start="Here is my thought process:",
        end="Here is my response:",
        signs=("Here is my thought process:",),
    ),
    Block(name="gemma4", start="<|channel>thought", end="<channel|>", signs=("<|channel>",)),
    Block(name="glm45", signs=("[gMASK]",)),
    Block(name="kimi_k2", signs=("<|im_middle|>",)),
    Block(name="minimax_m2", signs=("]~b]",)),
    Block(name="qwen3", signs=("enable_thinking",)),
    THINK,
    *(Block(name=name) for name in ("deepseek_v3", "ernie45", "holo2", "hunyuan_a13b", "minimax_m1", "nemotron_v3")),
    *(Block(name=name) for name in ("olmo3", "step3")),
)
