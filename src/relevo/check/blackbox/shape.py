"""The shape of answers that are not streamed, and the paths that every client touches first."""

from __future__ import annotations

import json

from relevo.check.context import CHAT, CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import OPENAI_CHAT, OPENAI_DEBUGGING, OPENAI_MODELS, VLLM
from relevo.check.texts import QUESTION
from relevo.check.words import Level, Need, check

_ONE_PIXEL = (  # a PNG
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
_FIRST_UNIX_S = 1_500_000_000  # mid 2017; an older `created` is not a time
_NEEDS_CHAT = (Need.CHAT,)
_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


@check(
    "shape.models",
    "GET /v1/models is a list of objects of type 'model', each with an id.",
    why="Clients fill their model menus from it, and probe with it whether the server is there.",
    source=OPENAI_MODELS,
)
async def models(ctx: CheckContext) -> None:
    answer = (await ctx.send("GET", "/v1/models")).ok()
    if answer.at(str, "object") != "list":
        raise answer.fail(f"object is {answer.at(str, 'object')!r}", "object 'list'")
    for number, _ in enumerate(answer.at(list, "data")):
        answer.at(str, "data", number, "id")
        if answer.at(str, "data", number, "object") != "model":
            raise answer.fail("an entry's object is not 'model'", "object 'model'")


@check(
    "shape.model",
    "GET /v1/models/{id} describes one served model.",
    why="SDKs retrieve a model before they use it.",
    source=OPENAI_MODELS,
)
async def model(ctx: CheckContext) -> None:
    answer = (await ctx.send("GET", f"/v1/models/{ctx.facts.model}")).ok()
    if answer.at(str, "id") != ctx.facts.model or answer.at(str, "object") != "model":
        raise answer.fail("another id or object", f"id {ctx.facts.model!r}, object 'model'")


@check(
    "shape.health",
    "GET /health answers 200 while requests are served.",
    why="Load balancers and orchestrators send traffic by it.",
    source=VLLM,
    level=Level.SHOULD,
)
async def health(ctx: CheckContext) -> None:
    (await ctx.send("GET", "/health")).ok()


def check_envelope(answer: Answer, kind: str) -> None:
    """The members that chats and completions have in common. Raises Mismatch."""
    answer.ok()
    if answer.at(str, "object") != kind:
        raise answer.fail(f"object is {answer.at(str, 'object')!r}", f"object {kind!r}")
    if not answer.at(str, "id"):
        raise answer.fail("id is empty", "an id")
    if answer.at(int, "created") < _FIRST_UNIX_S:
        raise answer.fail(f"created is {answer.at(int, 'created')}", "created in Unix seconds")
    answer.at(str, "model")
    if answer.num_choices != 1 or answer.at(int, "choices", 0, "index") != 0:
        raise answer.fail(f"{answer.num_choices} choices", "one choice with index 0")
    if answer.finish_reason() not in _FINISH_REASONS:
        raise answer.fail(f"finish_reason is {answer.finish_reason()!r}", f"one of {', '.join(_FINISH_REASONS)}")


@check(
    "shape.chat",
    "A chat completion has id, object, created, model, and one choice with index and finish_reason.",
    why="SDKs build typed objects from these members; a missing one raises in the client.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def chat(ctx: CheckContext) -> None:
    check_envelope(await ctx.chat(), "chat.completion")


@check(
    "shape.chat_message",
    "The message of a chat completion has the role 'assistant' and its text in content.",
    why="Clients append the message to the conversation as it is.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def chat_message(ctx: CheckContext) -> None:
    answer = (await ctx.chat()).ok()
    if answer.at(str, "choices", 0, "message", "role") != "assistant":
        raise answer.fail("another role", "role 'assistant'")
    if not answer.at(str, "choices", 0, "message", "content"):
        raise answer.fail("content is empty", "text")


@check(
    "shape.chat_nullable",
    "Members that the reference requires but allows to be null are there: logprobs, message.refusal.",
    why="Clients generated from the OpenAPI description reject an answer without them.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
    level=Level.SHOULD,
)
async def chat_nullable(ctx: CheckContext) -> None:
    answer = (await ctx.chat()).ok()
    answer.at(object, "choices", 0, "logprobs")
    answer.at(object, "choices", 0, "message", "refusal")


@check(
    "shape.chat_usage",
    "A chat completion has usage with prompt_tokens, completion_tokens and total_tokens.",
    why="Bills and context budgets are computed from it.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def chat_usage(ctx: CheckContext) -> None:
    answer = (await ctx.chat()).ok()
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        if answer.usage(name) < 1:
            raise answer.fail(f"usage.{name} is {answer.usage(name)}", "at least 1")


@check(
    "shape.ids_differ",
    "Two answers have different ids.",
    why="Logs and traces are joined by them.",
    source=OPENAI_CHAT,
)
async def ids_differ(ctx: CheckContext) -> None:
    first, second = (await ctx.ask(QUESTION)).ok(), (await ctx.ask(QUESTION)).ok()
    if first.at(str, "id") == second.at(str, "id"):
        raise second.fail(f"both have the id {second.at(str, 'id')!r}")


@check(
    "shape.model_named",
    "The answer names the model that was asked for.",
    why="Clients that use several models tell answers apart by it.",
    source=OPENAI_CHAT,
    level=Level.SHOULD,
)
async def model_named(ctx: CheckContext) -> None:
    answer = (await ctx.ask(QUESTION)).ok()
    if answer.at(str, "model") != ctx.facts.model:
        raise answer.fail(f"model is {answer.at(str, 'model')!r}", f"model {ctx.facts.model!r}")


@check(
    "shape.content_parts",
    "Content as a list of text parts means the same as one string.",
    why="Several clients always send parts.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def content_parts(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields(CHAT)
    plain = (await ctx.chat(QUESTION, **fields)).ok()
    parts = (await ctx.chat([{"type": "text", "text": QUESTION}], **fields)).ok()
    if parts.usage("prompt_tokens") != plain.usage("prompt_tokens"):
        raise parts.fail(f"{parts.usage('prompt_tokens')} prompt tokens", f"{plain.usage('prompt_tokens')} as a string")
    ctx.same_text(parts, plain, "parts and string")


@check(
    "shape.max_completion_tokens",
    "max_completion_tokens bounds the answer of a chat.",
    why="It replaces max_tokens in the reference; a client that relies on it must not get an endless answer.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def max_completion_tokens(ctx: CheckContext) -> None:
    # with room to spare, a server that ignores the field runs into the guard
    answer = (await ctx.chat(max_tokens=..., max_completion_tokens=4, stop=["\n\n\n\n\n"])).ok()
    if answer.usage("completion_tokens") > 4:
        raise answer.fail(f"{answer.usage('completion_tokens')} completion tokens", "at most 4")


@check(
    "shape.null_fields",
    "Optional fields that are null mean the same as absent ones.",
    why="The reference declares them nullable and typed clients send them so.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def null_fields(ctx: CheckContext) -> None:
    names = ("stop", "seed", "n", "logit_bias", "presence_penalty", "top_p", "stream", "stream_options")
    fields = ctx.logprob_fields(CHAT)
    answer = (await ctx.chat(**dict.fromkeys(names), **fields)).ok()
    ctx.same_text(answer, (await ctx.chat(**fields)).ok(), "with nulls and without")


@check(
    "shape.unknown_fields",
    "A field that the server does not know is no error.",
    why="Clients send vendor extensions to every server; an error locks them out.",
    source=VLLM,
    level=Level.SHOULD,
)
async def unknown_fields(ctx: CheckContext) -> None:
    (await ctx.ask(QUESTION, x_unknown_field={"a": [1, 2]}, store=False, metadata={"k": "v"})).ok()


@check(
    "shape.history",
    "A conversation with a system message and an assistant's turn is answered.",
    why="It is what every chat client sends from the second turn on.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def history(ctx: CheckContext) -> None:
    messages = [
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of Italy? Say it in one sentence."},
    ]
    answer = (await ctx.chat(messages=messages)).ok()
    single = (await ctx.chat(messages=messages[-1:])).ok()
    if answer.usage("prompt_tokens") <= single.usage("prompt_tokens"):
        raise answer.fail(
            f"{answer.usage('prompt_tokens')} prompt tokens with the history, "
            f"{single.usage('prompt_tokens')} for its last message alone",
            "the whole conversation is the prompt",
        )


@check(
    "shape.developer_role",
    "A message with the role 'developer' is accepted.",
    why="Newer clients send instructions under it instead of 'system'.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
    level=Level.SHOULD,
)
async def developer_role(ctx: CheckContext) -> None:
    messages = [{"role": "developer", "content": "Answer briefly."}, {"role": "user", "content": QUESTION}]
    (await ctx.chat(messages=messages)).ok()


@check(
    "shape.participant_name",
    "A message with a participant's name is accepted.",
    why="Frameworks that run several agents name the speaker of every message.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
    level=Level.SHOULD,
)
async def participant_name(ctx: CheckContext) -> None:
    (await ctx.chat(messages=[{"role": "user", "name": "ada", "content": QUESTION}], max_tokens=1)).ok()


@check(
    "shape.image_part",
    "An image in a message is taken into the prompt or refused with a 4xx status, never left out.",
    why="An answer about an image that the model never saw looks like any other.",
    source=OPENAI_CHAT,
    needs=_NEEDS_CHAT,
)
async def image_part(ctx: CheckContext) -> None:
    text = {"type": "text", "text": "What is in this image?"}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_ONE_PIXEL}"}}
    answer = await ctx.chat([text, image], max_tokens=1)
    if answer.is_refusal:
        return
    plain = (await ctx.chat([text], max_tokens=1)).ok()
    if answer.ok().usage("prompt_tokens") <= plain.usage("prompt_tokens"):
        raise answer.fail(
            f"{answer.usage('prompt_tokens')} prompt tokens, as many as without the image",
            "more prompt tokens, or a 4xx status",
        )


@check(
    "shape.tool_choice_none",
    "With tool_choice 'none' the answer is text, and tools are never called.",
    why="Agents use it for a final answer; a call there loops.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT, Need.TOOLS),
)
async def tool_choice_none(ctx: CheckContext) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    answer = (await ctx.chat("What is the weather in Rome?", tools=[tool], tool_choice="none")).ok()
    if answer.at(dict, "choices", 0, "message").get("tool_calls"):
        raise answer.fail("the message has tool_calls", "text")


@check(
    "shape.json_object",
    "An answer under response_format json_object is a JSON object, as far as max_tokens let it come.",
    why="Programs parse it without a second look.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT, Need.JSON_OBJECT),
)
async def json_object(ctx: CheckContext) -> None:
    wanted = {"type": "json_object"}
    answer = (await ctx.chat("Name a colour, as JSON.", response_format=wanted, max_tokens=64)).ok()
    text = answer.text().lstrip()
    try:
        is_object = isinstance(json.loads(text), dict)
    except ValueError:
        is_object = answer.finish_reason() == "length" and (text.startswith("{") or not text)
    if not is_object:
        raise answer.fail(f"content is {answer.text()!r}", "a JSON object")


@check(
    "shape.json_schema",
    "An answer under a strict json_schema is JSON of that schema.",
    why="Programs parse it without a second look.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT, Need.JSON_SCHEMA),
)
async def json_schema(ctx: CheckContext) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}
    answer = (await ctx.chat("Is water wet?", response_format=wanted, max_tokens=64)).ok()
    try:
        value = json.loads(answer.text())
    except ValueError:
        raise answer.fail("content is not JSON", "JSON of the schema") from None
    if not isinstance(value, dict) or value.get("answer") not in ("yes", "no") or len(value) != 1:
        raise answer.fail(f"content is {answer.text()!r}", "JSON of the schema")


@check(
    "shape.content_type",
    "Answers that are not streamed are application/json.",
    why="Clients choose their parser by it.",
    source=OPENAI_CHAT,
)
async def content_type(ctx: CheckContext) -> None:
    answer = (await ctx.ask(QUESTION)).ok()
    if not answer.headers.get("content-type", "").startswith("application/json"):
        raise answer.fail(f"content-type is {answer.headers.get('content-type')!r}", "application/json")


@check(
    "shape.request_id",
    "Every answer carries an x-request-id header.",
    why="It is what a person quotes when something went wrong.",
    source=OPENAI_DEBUGGING,
    level=Level.SHOULD,
)
async def request_id(ctx: CheckContext) -> None:
    answer = (await ctx.ask(QUESTION)).ok()
    if not answer.headers.get("x-request-id"):
        raise answer.fail("no x-request-id header", "an x-request-id header")
