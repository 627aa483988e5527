"""Reasoning, where an answer has some: told apart from content, the same streamed and whole, and counted."""

from __future__ import annotations

from typing import Any

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer, StreamAnswer
from relevo.check.sources import OPENAI_CHAT, VLLM
from relevo.check.texts import QUESTION
from relevo.check.words import Level, Need, Skip, check

_FIELDS = ("reasoning_content", "reasoning")  # as servers name it
_NUM_TOKENS = 128
_MARKS = ("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>")


async def _thought(ctx: CheckContext) -> tuple[Answer, dict[str, str]]:
    """An answer with reasoning, and what names it. Skip if there is none."""
    answer = await ctx.chat(reasoning_effort="low", max_tokens=_NUM_TOKENS)
    if answer.is_refusal:
        raise Skip(f"reasoning_effort is refused with HTTP {answer.status}: {answer.error_message}")
    message = answer.ok().at(dict, "choices", 0, "message")
    told = {name: message[name] for name in _FIELDS if isinstance(message.get(name), str) and message[name]}
    if not told:
        raise Skip("the model's answer has no reasoning")
    return answer, told


def _streamed(answer: StreamAnswer, name: str) -> str:
    return "".join(delta[name] for delta in answer.deltas() if isinstance(delta.get(name), str))


@check(
    "reasoning.stream",
    "A stream tells reasoning under the names that a whole answer uses, and nothing of it as content.",
    why="Clients show the two in different places, and send only content back.",
    source=VLLM,
    needs=(Need.CHAT,),
)
async def stream(ctx: CheckContext) -> None:
    whole, told = await _thought(ctx)
    answer = (await ctx.stream_chat(reasoning_effort="low", max_tokens=_NUM_TOKENS)).ok()
    for name in told:
        if not _streamed(answer, name):
            raise answer.fail(f"no delta has {name}, which the whole answer has", f"{name} in deltas")
    _check_marks(whole)
    _check_marks(answer)


def _check_marks(answer: Answer) -> None:
    found = [mark for mark in _MARKS if mark in answer.text()]
    if found:
        raise answer.fail(f"content has {found[0]!r}", "reasoning apart from content")


@check(
    "reasoning.tokens",
    "Reasoning tokens, where usage tells them, are more than none and at most all completion tokens.",
    why="Bills and limits are made of them.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT,),
)
async def tokens(ctx: CheckContext) -> None:
    answer, _ = await _thought(ctx)
    details = answer.at(dict, "usage").get("completion_tokens_details")
    if not isinstance(details, dict) or details.get("reasoning_tokens") is None:
        raise Skip("usage tells no reasoning tokens")
    told = answer.at(int, "usage", "completion_tokens_details", "reasoning_tokens")
    if not 0 < told <= answer.usage("completion_tokens"):
        raise answer.fail(f"{told} of {answer.usage('completion_tokens')} tokens", "between 1 and all of them")


@check(
    "reasoning.history",
    "An assistant's message with reasoning, however it is named, is taken back.",
    why="Clients keep the message as it came and send it with the next turn.",
    source=VLLM,
    needs=(Need.CHAT,),
    level=Level.SHOULD,
)
async def history(ctx: CheckContext) -> None:
    for name in _FIELDS:
        said: dict[str, Any] = {"role": "assistant", "content": "At noon.", name: "The moon is full."}
        messages = [{"role": "user", "content": QUESTION}, said, {"role": "user", "content": "And then?"}]
        (await ctx.chat(messages=messages, max_tokens=1)).ok()
