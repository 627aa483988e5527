"""The Responses API: answers that are not streamed, what they are asked with, and what is kept of them."""

from __future__ import annotations

from typing import Any

import orjson

from relevo.check.api_calls import NUM_TOKENS, RESPONSES, respond, response_body
from relevo.check.calls import ASKED, NAME, NUM_CALL_TOKENS, PARAMETERS, function, must_fit
from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import OPENAI_RESPONSES
from relevo.check.texts import QUESTION, fresh_words
from relevo.check.words import Level, Need, Skip, check

FORCED: dict[str, Any] = {
    "tools": [{"type": "function", **function()}],
    "tool_choice": {"type": "function", "name": NAME},
    "max_output_tokens": NUM_CALL_TOKENS,
}
_NULLABLE = ("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p")
_NEEDS = (Need.RESPONSES,)


def text_of(answer: Answer) -> str:
    items = [item for item in answer.at(list, "output") if item.get("type") == "message"]
    return "".join(part.get("text", "") for item in items for part in item["content"])


def call_in(answer: Answer, output: Any) -> dict[str, Any]:
    """The first function_call of an output. Raises Mismatch unless it is of the forced function and fits."""
    for item in answer.typed(output, list, "output"):
        if item.get("type") == "function_call":
            if item.get("name") != NAME or not item.get("call_id") or not item.get("id"):
                raise answer.fail(f"the call is {item}", f"id, call_id and the name {NAME}")
            must_fit(answer, answer.typed(item.get("arguments"), str, "arguments"), PARAMETERS)
            return dict(item)
    raise answer.fail("no function_call in the output", f"a call of {NAME}")


@check(
    "responses.object",
    "A response has its id, object, model, time, status and an output with a message of text.",
    why="SDKs read these without a second look; output_text is put together of them.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def response_object(ctx: CheckContext) -> None:
    answer = (await respond(ctx)).ok()
    if answer.at(str, "object") != "response" or not answer.at(str, "id"):
        raise answer.fail(f"object {answer.json['object']!r}, id {answer.json['id']!r}", "'response' and an id")
    answer.at(str, "model")
    answer.at(float, "created_at")
    if answer.at(str, "status") not in ("completed", "incomplete"):
        raise answer.fail(f"status is {answer.json['status']!r}", "'completed' or 'incomplete'")
    items = [item for item in answer.at(list, "output") if item.get("type") == "message"]
    if not items or items[0].get("role") != "assistant" or not items[0].get("id") or not items[0].get("status"):
        raise answer.fail("no message with role, id and status in the output", "a message of the assistant")
    part = answer.typed(items[0].get("content"), list, "content")[0]
    if part.get("type") != "output_text" or not isinstance(part.get("annotations"), list):
        raise answer.fail(f"the first part is {part}", "output_text with a list of annotations")


@check(
    "responses.members",
    "Members without a value are there and null.",
    why="Clients with typed answers read them without asking whether they are there.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
    level=Level.SHOULD,
)
async def members(ctx: CheckContext) -> None:
    answer = (await respond(ctx)).ok()
    missing = [name for name in (*_NULLABLE, "tools", "tool_choice", "parallel_tool_calls") if name not in answer.json]
    if missing:
        raise answer.fail(f"the response has no {', '.join(missing)}", "all members of the reference")


@check(
    "responses.usage",
    "Input and output tokens add up, and output stays within max_output_tokens.",
    why="Bills and budgets are made of them.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def usage(ctx: CheckContext) -> None:
    answer = (await respond(ctx)).ok()
    told = [answer.usage(name) for name in ("input_tokens", "output_tokens", "total_tokens")]
    if told[0] + told[1] != told[2] or not 0 < told[1] <= NUM_TOKENS or told[0] <= 0:
        raise answer.fail(f"{told[0]} and {told[1]}, in total {told[2]}", f"a sum, with 1 to {NUM_TOKENS} of output")


@check(
    "responses.incomplete",
    "An answer that max_output_tokens ends has status incomplete, with that reason.",
    why="Told as completed, half of an answer is taken for all of it.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def incomplete(ctx: CheckContext) -> None:
    answer = (await respond(ctx)).ok()
    if answer.usage("output_tokens") < NUM_TOKENS:
        raise Skip("the answer ended before max_output_tokens")
    if (
        answer.at(str, "status") != "incomplete"
        or answer.at(str, "incomplete_details", "reason") != "max_output_tokens"
    ):
        raise answer.fail(f"status is {answer.json['status']!r}", "'incomplete' for 'max_output_tokens'")


@check(
    "responses.instructions",
    "Instructions are part of the prompt.",
    why="Agents put all that they demand there.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def instructions(ctx: CheckContext) -> None:
    short = (await respond(ctx, instructions="Be brief.")).ok().usage("input_tokens")
    answer = (await respond(ctx, instructions=fresh_words(ctx.rng, 40))).ok()
    if answer.usage("input_tokens") < short + 30:
        raise answer.fail(f"{answer.usage('input_tokens')} input tokens, {short} with 40 words less", "all of them")


@check(
    "responses.history_items",
    "Messages without a type, the assistant's among them, are the same prompt as those with type and parts.",
    why="Clients send both forms, and the second turn of a conversation must not fail for it.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def history_items(ctx: CheckContext) -> None:
    said = (
        ("user", "input_text", QUESTION),
        ("assistant", "output_text", "Once."),
        ("user", "input_text", "And then?"),
    )
    short = (await respond(ctx, [{"role": role, "content": text} for role, _, text in said])).ok()
    long = [{"type": "message", "role": role, "content": [{"type": type, "text": text}]} for role, type, text in said]
    answer = (await respond(ctx, long)).ok()
    if answer.usage("input_tokens") != short.usage("input_tokens"):
        raise answer.fail(
            f"{answer.usage('input_tokens')} input tokens, {short.usage('input_tokens')} in short form", "as many"
        )


@check(
    "responses.output_is_input",
    "The output of an answer is taken as input, as it came.",
    why="It is how clients that store nothing at the server go on.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def output_is_input(ctx: CheckContext) -> None:
    first = (await respond(ctx)).ok()
    told = [{"role": "user", "content": QUESTION}, *first.at(list, "output"), {"role": "user", "content": "And then?"}]
    answer = (await respond(ctx, told)).ok()
    if answer.usage("input_tokens") <= first.usage("input_tokens") + first.usage("output_tokens") // 2:
        raise answer.fail(f"{answer.usage('input_tokens')} input tokens", "those of the first turn and of its answer")


@check(
    "responses.forced_call",
    "With a function named in tool_choice the output has a function_call with ids and arguments of its schema.",
    why="Agents run it without a second look.",
    source=OPENAI_RESPONSES,
    needs=(Need.RESPONSES, Need.RESPONSES_CALL),
)
async def forced_call(ctx: CheckContext) -> None:
    answer = (await respond(ctx, ASKED, **FORCED)).ok()
    call_in(answer, answer.at(list, "output"))


@check(
    "responses.call_history",
    "A function_call and its output in the input are part of the prompt.",
    why="It is what every agent sends after its first call.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def call_history(ctx: CheckContext) -> None:
    def told(result: str) -> list[dict[str, Any]]:
        call = {
            "type": "function_call",
            "call_id": "call_1",
            "name": NAME,
            "arguments": '{"port": "Brest", "rising": true}',
        }
        output = {"type": "function_call_output", "call_id": "call_1", "output": result}
        return [{"role": "user", "content": ASKED}, call, output]

    short = (await respond(ctx, told("noon"), tools=FORCED["tools"])).ok()
    answer = (await respond(ctx, told(fresh_words(ctx.rng, 40)), tools=FORCED["tools"])).ok()
    if answer.usage("input_tokens") < short.usage("input_tokens") + 30:
        raise answer.fail(
            f"{answer.usage('input_tokens')} input tokens, {short.usage('input_tokens')} before", "more for 40 words"
        )


@check(
    "responses.format",
    "An answer under a strict json_schema in text.format is JSON of that schema.",
    why="Programs parse it without a second look.",
    source=OPENAI_RESPONSES,
    needs=(Need.RESPONSES, Need.JSON_SCHEMA),
)
async def text_format(ctx: CheckContext) -> None:
    wanted = {"format": {"type": "json_schema", "name": "tide", "strict": True, "schema": PARAMETERS}}
    answer = await respond(ctx, ASKED, text=wanted, max_output_tokens=NUM_CALL_TOKENS)
    if answer.is_refusal:
        raise Skip(f"refused with HTTP {answer.status}: {answer.error_message}")
    must_fit(answer.ok(), text_of(answer), PARAMETERS, "the text")


@check(
    "responses.error",
    "A wrong request is a 4xx error with a message, in the shape of the other endpoints.",
    why="SDKs make exceptions of it; agents show the message to the person who can mend it.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def error(ctx: CheckContext) -> None:
    answer = await respond(ctx, temperature="hot")
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")
    answer.at(str, "error", "message")


@check(
    "responses.unknown_previous",
    "A previous_response_id that is not known is a 4xx error.",
    why="Answered without what was before, the model speaks to the wrong conversation.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def unknown_previous(ctx: CheckContext) -> None:
    answer = await respond(ctx, previous_response_id="resp_0123456789abcdef0123456789abcdef")
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")


@check(
    "responses.not_stored",
    "A response with store false cannot be fetched.",
    why="store false is a promise about what is kept of a conversation.",
    source=OPENAI_RESPONSES,
    needs=_NEEDS,
)
async def not_stored(ctx: CheckContext) -> None:
    made = (await respond(ctx)).ok()
    answer = await ctx.send("GET", f"{RESPONSES}/{made.at(str, 'id')}")
    if answer.status not in (404, 405, 501):
        raise answer.fail(f"HTTP {answer.status}", "404")


@check(
    "responses.fetched",
    "A stored response is fetched as it was answered, and is gone once it was deleted.",
    why="Programs look up later what was said, and delete what they must not keep.",
    source=OPENAI_RESPONSES,
    needs=(Need.RESPONSES, Need.STORED_RESPONSES),
)
async def fetched(ctx: CheckContext) -> None:
    made = (await respond(ctx, store=True)).ok()
    path = f"{RESPONSES}/{made.at(str, 'id')}"
    answer = (await ctx.send("GET", path)).ok()
    for name in ("id", "status", "output"):
        if answer.json.get(name) != made.json[name]:
            raise answer.fail(f"{name} is {answer.json.get(name)!r}", f"{made.json[name]!r}, as it was answered")
    (await ctx.send("DELETE", path)).ok()
    gone = await ctx.send("GET", path)
    if gone.status != 404:
        raise gone.fail(f"HTTP {gone.status} after it was deleted", "404")


@check(
    "responses.chain",
    "With previous_response_id the conversation before is part of the prompt; its instructions are not.",
    why="A model that was not told what was said answers another question; old instructions contradict new ones.",
    source=OPENAI_RESPONSES,
    needs=(Need.RESPONSES, Need.STORED_RESPONSES),
)
async def chain(ctx: CheckContext) -> None:
    alone = (await respond(ctx, "And then?")).ok().usage("input_tokens")
    first = (await respond(ctx, store=True, instructions=fresh_words(ctx.rng, 150))).ok()
    answer = (await respond(ctx, "And then?", previous_response_id=first.at(str, "id"))).ok()
    num_input = answer.usage("input_tokens")
    if num_input <= alone + first.usage("output_tokens") // 2:
        raise answer.fail(f"{num_input} input tokens, {alone} without the turn before", "the turn before in the prompt")
    if num_input >= first.usage("input_tokens") + first.usage("output_tokens"):
        raise answer.fail(f"{num_input} input tokens", "instructions of the turn before are left out")


@check(
    "responses.input_tokens",
    "/v1/responses/input_tokens counts what usage then says.",
    why="Agents shorten a conversation by this count; one that differs cuts too early, or too late.",
    source=OPENAI_RESPONSES,
    needs=(Need.RESPONSES, Need.INPUT_TOKENS),
)
async def input_tokens(ctx: CheckContext) -> None:
    fields: dict[str, Any] = {"instructions": "Be brief.", "tools": FORCED["tools"]}
    told = response_body(ctx, ASKED, max_output_tokens=..., temperature=..., store=..., **fields)
    counted = (await ctx.send("POST", f"{RESPONSES}/input_tokens", orjson.dumps(told))).ok()
    answer = (await respond(ctx, ASKED, **fields)).ok()
    if counted.at(int, "input_tokens") != answer.usage("input_tokens"):
        raise counted.fail(
            f"{counted.json['input_tokens']} counted, {answer.usage('input_tokens')} in usage", "as many"
        )
