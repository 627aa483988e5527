"""Anthropic's Messages API: answers that are not streamed, what they are asked with, and errors."""

from __future__ import annotations

from typing import Any

from relevo.check.api_calls import MESSAGES, NUM_TOKENS, message, message_body, post_message
from relevo.check.calls import ASKED, LONG_PARAMETERS, NAME, NUM_CALL_TOKENS, PARAMETERS
from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.schema_fit import fits
from relevo.check.sources import ANTHROPIC, ANTHROPIC_SDK
from relevo.check.texts import QUESTION, fresh_words
from relevo.check.words import Level, Need, Skip, check

_NEEDS = (Need.MESSAGES,)
_CALLS = (Need.MESSAGES, Need.MESSAGES_CALL)
_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def tool(parameters: Any = PARAMETERS) -> dict[str, Any]:
    return {"name": NAME, "description": "Tells the tide.", "input_schema": parameters, "strict": True}


FORCED: dict[str, Any] = {
    "tools": [tool()],
    "tool_choice": {"type": "tool", "name": NAME, "disable_parallel_tool_use": True},
    "max_tokens": NUM_CALL_TOKENS,
}


def text_of(answer: Answer) -> str:
    return "".join(block.get("text", "") for block in answer.at(list, "content") if block.get("type") == "text")


def num_input(answer: Answer, usage: Any = None) -> int:
    """All of the prompt: the three numbers of it add up."""
    told = answer.at(dict, "usage") if usage is None else usage
    return sum(answer.typed(told.get(name) or 0, int, f"usage.{name}") for name in _INPUTS)


def must_be_error(answer: Answer) -> None:
    """Raises Mismatch unless it is a 4xx error of Anthropic's shape."""
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")
    if (
        answer.at(str, "type") != "error"
        or not answer.at(str, "error", "type")
        or not answer.at(str, "error", "message")
    ):
        raise answer.fail("an error of another shape", "type 'error', error.type and error.message")


@check(
    "messages.object",
    "A message has id, type, role, model, content blocks, stop_reason, stop_sequence, and usage.",
    why="SDKs read these without a second look.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def message_object(ctx: CheckContext) -> None:
    answer = (await message(ctx)).ok()
    if (answer.at(str, "type"), answer.at(str, "role")) != ("message", "assistant") or not answer.at(str, "id"):
        raise answer.fail(f"type {answer.json['type']!r}, role {answer.json['role']!r}", "'message' of the 'assistant'")
    answer.at(str, "model")
    answer.at(str, "stop_reason")
    if "stop_sequence" not in answer.json:
        raise answer.fail("the message has no stop_sequence", "stop_sequence, null if there was none")
    if not text_of(answer) or any(not block.get("type") for block in answer.at(list, "content")):
        raise answer.fail("no block of text", "content blocks with types")
    if num_input(answer) <= 0 or not 0 < answer.usage("output_tokens") <= NUM_TOKENS:
        raise answer.fail(f"usage is {answer.json['usage']}", "tokens of input and output")


@check(
    "messages.max_tokens",
    "An answer that max_tokens ends has stop_reason max_tokens.",
    why="Told as end_turn, half of an answer is taken for all of it.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def max_tokens(ctx: CheckContext) -> None:
    answer = (await message(ctx)).ok()
    if answer.usage("output_tokens") < NUM_TOKENS:
        raise Skip("the answer ended before max_tokens")
    if answer.at(str, "stop_reason") != "max_tokens":
        raise answer.fail(f"stop_reason is {answer.json['stop_reason']!r}", "'max_tokens'")


@check(
    "messages.cached_adds_up",
    "The three counts of input add up to the same prompt, whether it is cached or not.",
    why="Clients add them to see how full a context is, and compact it.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def cached_adds_up(ctx: CheckContext) -> None:
    content = fresh_words(ctx.rng, 120)
    first, again = (await message(ctx, content)).ok(), (await message(ctx, content)).ok()
    if num_input(first) != num_input(again) or num_input(first) < 120:
        raise again.fail(f"{num_input(first)} tokens of input, then {num_input(again)} of the same", "as many")


@check(
    "messages.stop_sequence",
    "A stop sequence ends the text before it, is the stop_reason, and is named.",
    why="Programs that split an answer at it ask which one it was.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def stop_sequence(ctx: CheckContext) -> None:
    whole = text_of((await message(ctx)).ok())
    stop = stop_within(whole)
    answer = (await message(ctx, stop_sequences=["\x02never", stop])).ok()
    if (answer.at(str, "stop_reason"), answer.json.get("stop_sequence")) != ("stop_sequence", stop):
        raise answer.fail(
            f"stop_reason {answer.json['stop_reason']!r}, stop_sequence {answer.json.get('stop_sequence')!r}",
            f"'stop_sequence' and {stop!r}",
        )
    if stop in text_of(answer) or not whole.startswith(text_of(answer)):
        raise answer.fail(f"the text is {text_of(answer)!r}", f"{whole!r} up to {stop!r}")


def stop_within(text: str) -> str:
    """Three characters of the middle of a text."""
    if len(text.strip()) < 12:
        raise Skip("the answer is too short to have a stop sequence cut out of it")
    middle = text.strip()[4 : len(text.strip()) - 3]
    found = next(
        (middle[i : i + 3] for i in range(len(middle) - 2) if middle[i : i + 3].strip() == middle[i : i + 3]), ""
    )
    if len(found) < 3 or "\ufffd" in found:
        raise Skip("the answer has no three letters in a row to stop at")
    return found


@check(
    "messages.blocks",
    "Content and system as blocks, with cache_control, are the same prompt as texts.",
    why="Claude Code writes every text as blocks.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def blocks(ctx: CheckContext) -> None:
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    texts = num_input((await message(ctx, system="Be brief.")).ok())
    answer = (await message(ctx, [{"type": "text", "text": QUESTION}], system=[block])).ok()
    if num_input(answer) != texts:
        raise answer.fail(f"{num_input(answer)} tokens of input, {texts} as texts", "as many")
    longer = (await message(ctx, system=[block, block | {"text": fresh_words(ctx.rng, 40)}])).ok()
    if num_input(longer) < texts + 30:
        raise longer.fail(
            f"{num_input(longer)} tokens of input, {texts} with 40 words less", "all of system in the prompt"
        )


@check(
    "messages.forced_call",
    "With a tool named in tool_choice the answer is its tool_use: id, name, an input of its schema, that stop_reason.",
    why="Agents run it without a second look.",
    source=ANTHROPIC,
    needs=_CALLS,
)
async def forced_call(ctx: CheckContext) -> None:
    answer = (await message(ctx, ASKED, **FORCED)).ok()
    uses = [block for block in answer.at(list, "content") if block.get("type") == "tool_use"]
    if not uses or uses[0].get("name") != NAME or not uses[0].get("id"):
        raise answer.fail(f"calls are {uses}", f"a tool_use of {NAME} with an id")
    if not fits(uses[0].get("input"), PARAMETERS):
        raise answer.fail(f"input is {uses[0].get('input')!r}", "an object of the tool's schema")
    if answer.at(str, "stop_reason") != "tool_use":
        raise answer.fail(f"stop_reason is {answer.json['stop_reason']!r}", "'tool_use'")


@check(
    "messages.choice_none",
    "With tool_choice none there is no tool_use.",
    why="Taken for any, it lets a model call where it was told not to.",
    source=ANTHROPIC,
    needs=_CALLS,
)
async def choice_none(ctx: CheckContext) -> None:
    answer = (await message(ctx, ASKED, tools=[tool()], tool_choice={"type": "none"})).ok()
    if any(block.get("type") == "tool_use" for block in answer.at(list, "content")):
        raise answer.fail("a tool_use", "none")


@check(
    "messages.call_cut",
    "An answer that max_tokens cuts within a call has stop_reason max_tokens.",
    why="Told as tool_use, half of a call is run.",
    source=ANTHROPIC,
    needs=_CALLS,
)
async def call_cut(ctx: CheckContext) -> None:
    answer = (await message(ctx, ASKED, **FORCED | {"tools": [tool(LONG_PARAMETERS)], "max_tokens": 8})).ok()
    if answer.at(str, "stop_reason") != "max_tokens":
        raise answer.fail(f"stop_reason is {answer.json['stop_reason']!r}", "'max_tokens'")


@check(
    "messages.tool_result",
    "A tool_use and its tool_result, as a text or blocks, are part of the prompt.",
    why="It is what every agent sends after its first call.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def tool_result(ctx: CheckContext) -> None:
    def told(content: Any) -> list[dict[str, Any]]:
        use = {"type": "tool_use", "id": "toolu_1", "name": NAME, "input": {"port": "Brest", "rising": True}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}
        return [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]

    words = fresh_words(ctx.rng, 40)
    short = (await message(ctx, messages=told("noon"), tools=[tool()])).ok()
    answer = (await message(ctx, messages=told(words), tools=[tool()])).ok()
    parts = (await message(ctx, messages=told([{"type": "text", "text": words}]), tools=[tool()])).ok()
    if num_input(answer) < num_input(short) + 30 or num_input(parts) != num_input(answer):
        raise parts.fail(
            f"{num_input(short)} tokens with a word, {num_input(answer)} with 40, {num_input(parts)} in a block",
            "the result in the prompt, the same in both forms",
        )


@check(
    "messages.foreign_thinking",
    "Thinking blocks of another server, with its signature, are taken back.",
    why="Sessions move between models; refused, the rest of the session is lost.",
    source=ANTHROPIC_SDK,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def foreign_thinking(ctx: CheckContext) -> None:
    said = [
        {"type": "thinking", "thinking": "The moon is full.", "signature": "EqoBCkgIARABGAIiQL=="},
        {"type": "text", "text": "At noon."},
    ]
    messages = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And then?"},
    ]
    (await message(ctx, messages=messages)).ok()


@check(
    "messages.count_tokens",
    "/v1/messages/count_tokens counts what the three numbers of usage add up to, tools and system included.",
    why="Agents compact a conversation by this count.",
    source=ANTHROPIC,
    needs=(Need.MESSAGES, Need.COUNT_TOKENS),
    level=Level.SHOULD,
)
async def count_tokens(ctx: CheckContext) -> None:
    fields: dict[str, Any] = {"system": [{"type": "text", "text": "Be brief."}], "tools": [tool()]}
    told = message_body(ctx, ASKED, max_tokens=..., temperature=..., **fields)
    counted = (await post_message(ctx, told, f"{MESSAGES}/count_tokens")).ok()
    answer = (await message(ctx, ASKED, **fields)).ok()
    if counted.at(int, "input_tokens") != num_input(answer):
        raise counted.fail(f"{counted.json['input_tokens']} counted, {num_input(answer)} in usage", "as many")


@check(
    "messages.error",
    "Wrong requests are 4xx errors of Anthropic's shape.",
    why="SDKs make exceptions of it; another shape is shown to people as a bare status.",
    source=ANTHROPIC,
    needs=_NEEDS,
)
async def error(ctx: CheckContext) -> None:
    must_be_error(await message(ctx, temperature="hot"))
    must_be_error(await message(ctx, messages=[]))


@check(
    "messages.no_max_tokens",
    "A request without max_tokens is a 4xx error of Anthropic's shape.",
    why="The reference demands it, and a default hides that a program forgot it.",
    source=ANTHROPIC,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def no_max_tokens(ctx: CheckContext) -> None:
    must_be_error(await message(ctx, max_tokens=...))


@check(
    "messages.beta",
    "?beta=true and an anthropic-beta header of any value are taken.",
    why="Claude Code and the SDKs send them with every request, and new ones with every version.",
    source=ANTHROPIC_SDK,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def beta(ctx: CheckContext) -> None:
    (await post_message(ctx, message_body(ctx), f"{MESSAGES}?beta=true", anthropic_beta="no-such-beta-2031-01-01")).ok()
