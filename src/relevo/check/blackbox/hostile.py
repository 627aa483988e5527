"""Requests that are made to do harm: what they cost a client who does nothing but read its stream.

Each check sends one kind of harm while a stream runs beside it. The harm is answered or refused, never with a failure
of the server, and the stream beside it comes whole, with its own text, without a long gap.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from relevo.check.beside import stream_beside
from relevo.check.context import CHAT, COMPLETIONS, CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import HTTP, HTTP11, JSON, OPENAI_CHAT, RESOURCES, VLLM
from relevo.check.texts import OPENING, QUESTION
from relevo.check.words import Check, Need, check

_NUM_BIASES = 50_000
_NUM_STOP_IDS = 1_000_000
_NUM_CHOICES = 1_000
_NUM_MESSAGES = 20_000
_NUM_TOOLS = 2_000
_NUM_FIELDS = 200_000
_SCHEMA_DEPTH = 100  # each adds two levels of JSON; encoders end at 254
_HUGE_TEXT = "word " * 800_000  # 4 MB
_NUM_TEXTS = 4  # at once, to /tokenize
_NUM_FLOOD = 8  # requests with all the log probabilities there are
_NOT_A_TOKEN = 2**31 - 1
_MANY_DIGITS = b"1" + b"0" * 400


def _need_answered_or_refused(answers: Sequence[Answer]) -> None:
    for answer in answers:
        is_busy = answer.status == 503 and "retry-after" in answer.headers
        if answer.status != 200 and not answer.is_refusal and not is_busy:
            raise answer.fail(f"HTTP {answer.status}: {answer.error_message}", "HTTP 200 or a 4xx status")


def _hostile(
    id: str, what: str, *, why: str, source: str, needs: Sequence[Need] = (), num_at_once: int = 1
) -> Callable[[Callable[[CheckContext], tuple[str, dict[str, Any]]]], Check]:
    """Declares a check that sends what the function gives, path and JSON, beside a stream."""

    def declare(request: Callable[[CheckContext], tuple[str, dict[str, Any]]]) -> Check:
        @check(
            f"hostile.{id}",
            f"{what} is answered or refused with a 4xx, and a stream beside it does not notice.",
            why=why,
            source=source,
            needs=needs,
        )
        async def run(ctx: CheckContext) -> None:
            path, body = request(ctx)
            raw = orjson.dumps(body)
            async with stream_beside(ctx):
                answers = await asyncio.gather(*(ctx.post(path, raw) for _ in range(num_at_once)))
            _need_answered_or_refused(answers)

        return run

    return declare


@_hostile(
    "logit_bias",
    "A bias on fifty thousand tokens",
    why="Applied per token and in Python it takes every stream of the batch along.",
    source=OPENAI_CHAT,
)
def logit_bias(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    return ctx.prompt_body(QUESTION, max_tokens=16, logit_bias={str(token): 1 for token in range(_NUM_BIASES)})


@_hostile(
    "stop_token_ids",
    "A list of a million stop tokens",
    why="Looked through for each token, or sent to each worker, it stops the server.",
    source=VLLM,
)
def stop_token_ids(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    return ctx.prompt_body(QUESTION, max_tokens=16, stop_token_ids=list(range(_NUM_STOP_IDS)))


@_hostile(
    "many_choices",
    "A request for a thousand choices",
    why="One request of one client is then the whole batch, and all others wait for its end.",
    source=OPENAI_CHAT,
    needs=(Need.CHOICES,),
)
def many_choices(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    return ctx.prompt_body(QUESTION, max_tokens=16, n=_NUM_CHOICES, temperature=1)


@_hostile(
    "huge_prompt",
    "A prompt of four megabytes",
    why="Tokenized before it is refused it takes seconds, during which a single event loop serves no other client.",
    source=RESOURCES,
)
def huge_prompt(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    return ctx.prompt_body(_HUGE_TEXT, max_tokens=1)


@_hostile(
    "tokenize",
    "Four texts of four megabytes, tokenized at once,",
    why="No admission stands before /tokenize: memory and threads are taken without a slot or a token on the bill.",
    source=RESOURCES,
    needs=(Need.TOKENIZE,),
    num_at_once=_NUM_TEXTS,
)
def tokenize(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    return "/tokenize", {"model": ctx.facts.model, "prompt": _HUGE_TEXT, "content": _HUGE_TEXT}


@_hostile(
    "many_messages",
    "A conversation of twenty thousand messages",
    why="Validation and the template's loop run once per message, in the event loop if nothing prevents it.",
    source=RESOURCES,
    needs=(Need.CHAT,),
)
def many_messages(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    messages = [{"role": ("user", "assistant")[number % 2], "content": "yes"} for number in range(_NUM_MESSAGES)]
    return CHAT, ctx.chat_body(max_tokens=1) | {"messages": [*messages, {"role": "user", "content": "go on"}]}


@_hostile(
    "many_tools",
    "A list of two thousand tools",
    why="They are rendered into the prompt by a template, a slow interpreter, before anything is refused.",
    source=RESOURCES,
    needs=(Need.CHAT,),
)
def many_tools(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    parameters = {"type": "object", "properties": {"text": {"type": "string", "description": "d" * 200}}}
    tools = [
        {"type": "function", "function": {"name": f"tool_{number}", "description": "t" * 200, "parameters": parameters}}
        for number in range(_NUM_TOOLS)
    ]
    return CHAT, ctx.chat_body(max_tokens=1, tools=tools)


@_hostile(
    "deep_schema",
    "A JSON schema nested a hundred deep",
    why="A compiler of grammars that recurses dies of it, with the process it runs in.",
    source=JSON,
    needs=(Need.CHAT,),
)
def deep_schema(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(_SCHEMA_DEPTH):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "deep", "strict": True, "schema": schema}}
    return CHAT, ctx.chat_body("Answer as JSON.", max_tokens=4, response_format=wanted)


@_hostile(
    "many_fields",
    "An object with two hundred thousand unknown fields",
    why="What a parser makes of it is many times the bytes that came.",
    source=JSON,
)
def many_fields(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    path, body = ctx.prompt_body(QUESTION, max_tokens=1)
    return path, body | {f"field_{number}": number for number in range(_NUM_FIELDS)}


@_hostile(
    "logprobs",
    "A flood of requests with several choices and twenty log probabilities per token",
    why="An answer that is collected whole holds kilobytes per token, for each choice.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT_LOGPROBS, Need.CHOICES),
    num_at_once=_NUM_FLOOD,
)
def logprobs(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    return CHAT, ctx.chat_body(max_tokens=64, n=8, logprobs=True, top_logprobs=20, temperature=1, **ctx.endless)


@_hostile(
    "token_outside_vocabulary",
    "A prompt with a token id that no vocabulary has",
    why="It raises in the step, and a step that raises ends every request that shares it.",
    source=VLLM,
    needs=(Need.COMPLETIONS,),
    num_at_once=3,
)
def token_outside_vocabulary(ctx: CheckContext) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, ctx.completion_body([1, 2, _NOT_A_TOKEN], max_tokens=4)


@check(
    "hostile.many_digits",
    "A whole number of four hundred digits is a 4xx error in every field that takes a number.",
    why="It is JSON, and no machine's integer: converted without a look it is a failure of the server.",
    source=JSON,
)
async def many_digits(ctx: CheckContext) -> None:
    for name in ("max_tokens", "temperature", "top_p", "seed", "n", "presence_penalty", "top_k"):
        path, body = ctx.prompt_body(OPENING, **{name: "@"})
        answer = await ctx.post(path, orjson.dumps(body).replace(b'"@"', _MANY_DIGITS))
        _need_answered_or_refused([answer])


# ---- bytes ----------------------------------------------------------------------------------------------------------


_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-5]\d\d ")


def _head(ctx: CheckContext, path: str, *lines: str) -> bytes:
    key = [] if ctx.server.api_key is None else [f"Authorization: Bearer {ctx.server.api_key}"]
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *key, *lines, "", ""]).encode()


def _chunked(*chunks: bytes) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]


def _json_of(answer: bytes) -> Any:
    """Of a whole HTTP answer that says its length."""
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        return orjson.loads(body) if head else None
    except ValueError:
        return None


@check(
    "hostile.chunk_borders",
    "A body in chunks, one of which begins with 'Upgrade:', is read as if it had come in one piece.",
    why="A server that edits received bytes answers another question than was asked.",
    source=HTTP11,
)
async def chunk_borders(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body(f"{OPENING} Upgrade: h2c and Content-Length: 3", max_tokens=8)
    whole = (await ctx.post(path, body)).ok()
    raw = orjson.dumps(body)
    first, second = raw.index(b"Upgrade:"), raw.index(b"Content-Length:")
    pieces = _chunked(raw[:first], raw[first:second], raw[second:])
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    answer = await ctx.server.raw(_head(ctx, path, *lines), *pieces, b"0\r\n\r\n", quiet_s=5.0)
    told = _json_of(answer)
    usage = told.get("usage", {}).get("prompt_tokens") if isinstance(told, dict) else None
    if usage != whole.usage("prompt_tokens"):
        raise whole.fail(f"in chunks: {answer[:300]!r}", "the same number of prompt tokens as in one piece")


@check(
    "hostile.upgrade_offer",
    "An offer to upgrade to HTTP/2 in the middle of a request is declined by answering it.",
    why="Java's client makes one with every request; a parser that takes it for accepted loses the body.",
    source=HTTP11,
)
async def upgrade_offer(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body(OPENING, max_tokens=4)
    raw = orjson.dumps(body)
    offer = ("Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    head = _head(ctx, path, "Content-Type: application/json", f"Content-Length: {len(raw)}", *offer)
    split = head.index(b"Upgrade: h2c") + 4  # in the middle of a name
    answer = await ctx.server.raw(head[:split], head[split:], raw, quiet_s=5.0)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise (await ctx.post(path, body)).fail(f"with the offer: {answer[:300]!r}", "HTTP 200")


@check(
    "hostile.two_lengths",
    "A request with Content-Length and Transfer-Encoding has one answer, and the connection is closed.",
    why="Two servers that read it differently let one client put a request into another's connection.",
    source=HTTP11,
)
async def two_lengths(ctx: CheckContext) -> None:
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lines = ("Content-Type: application/json", "Content-Length: 5", "Transfer-Encoding: chunked")
    answer = await ctx.server.raw(_head(ctx, COMPLETIONS, *lines) + b"0\r\n\r\n" + smuggled)
    if len(_STATUS_LINE.findall(answer)) > 1:
        raise (await ctx.send("GET", "/v1/models")).fail(f"two answers: {answer[:400]!r}", "one, and the end")


@check(
    "hostile.no_host",
    "A request of HTTP/1.1 without a Host is a 400.",
    why="Caches and proxies choose by it; a server that guesses can be made to answer for another site.",
    source=HTTP11,
)
async def no_host(ctx: CheckContext) -> None:
    answer = await ctx.server.raw(b"GET /v1/models HTTP/1.1\r\n\r\n")
    if b" 400 " not in answer[:13]:
        raise (await ctx.send("GET", "/v1/models")).fail(f"without a Host: {answer[:100]!r}", "HTTP 400")


@check(
    "hostile.trailer_key",
    "A key that comes after the body, as a trailer, opens nothing.",
    why="Trailers must not be taken for headers; what checks headers before the body has not seen them.",
    source=HTTP11,
    needs=(Need.API_KEY,),
)
async def trailer_key(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body(OPENING, max_tokens=1)
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Connection: close")
    head = "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode()
    trailer = f"0\r\nAuthorization: Bearer {ctx.server.api_key}\r\n\r\n".encode()
    answer = await ctx.server.raw(head, *_chunked(orjson.dumps(body)), trailer)
    if not answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 403")):
        raise (await ctx.post(path, body)).fail(f"with a key in the trailer: {answer[:100]!r}", "HTTP 401")


@check(
    "hostile.http_1_0",
    "A stream to a client of HTTP/1.0 is not chunked.",
    why="It does not know chunks, and shows their sizes as text.",
    source=HTTP11,
)
async def http_1_0(ctx: CheckContext) -> None:
    path, body = ctx.prompt_body(OPENING, max_tokens=4, stream=True)
    raw = orjson.dumps(body)
    head = _head(ctx, path, "Content-Type: application/json", f"Content-Length: {len(raw)}")
    answer = await ctx.server.raw(head.replace(b"HTTP/1.1", b"HTTP/1.0", 1), raw, quiet_s=5.0)
    if b" 200 " not in answer[:20] or b"transfer-encoding: chunked" in answer.lower():
        raise (await ctx.post(path, body | {"stream": False})).fail(f"{answer[:300]!r}", "events without chunks")


# ---- connections ----------------------------------------------------------------------------------------------------

_NUM_CONNECTIONS = 200


async def _with_connections(ctx: CheckContext, said: bytes) -> None:
    """Many connections that say something and then nothing; a request beside them is answered."""
    writers = []
    try:
        for _ in range(_NUM_CONNECTIONS):
            _, writer = await ctx.server.connect()
            writers.append(writer)
            writer.write(said)
        async with stream_beside(ctx):
            (await ctx.ask(OPENING, max_tokens=2)).ok()
    finally:
        for writer in writers:
            writer.transport.abort()


@check(
    "hostile.silent_connections",
    "Two hundred connections that say nothing keep no client out.",
    why="They cost their maker nothing, and a server a descriptor each.",
    source=HTTP,
)
async def silent_connections(ctx: CheckContext) -> None:
    await _with_connections(ctx, b"")


@check(
    "hostile.half_heads",
    "Two hundred requests that stop in the middle of a header keep no client out.",
    why="The oldest trick there is.",
    source=HTTP,
)
async def half_heads(ctx: CheckContext) -> None:
    await _with_connections(ctx, _head(ctx, COMPLETIONS, "X-Half: ").rstrip())


@check(
    "hostile.half_bodies",
    "Two hundred requests whose body never comes keep no client out.",
    why="If a slot or a thread waits for each body, the server is full of requests that were never made.",
    source=HTTP,
)
async def half_bodies(ctx: CheckContext) -> None:
    await _with_connections(
        ctx, _head(ctx, COMPLETIONS, "Content-Type: application/json", "Content-Length: 1000") + b"{"
    )
