"""A small OpenAI-compatible server that does everything right, and takes one fault at a time.

Its model is a hash: the next token follows from the text before it. A `Fault` edits requests before they are looked at
or replies before they are sent, so that one line is enough for most ways to be wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import web
from scripted_answers import (
    MODEL,
    Call,
    Generation,
    Reply,
    common,
    error,
    framed,
    said,
    stream_chunks,
    whole_choice,
    why_wrong,
)
from scripted_apis import MESSAGES, PATHS, RESPONSES, answer_message, answer_response
from scripted_held import forced_calls, held_text

MAX_MODEL_LEN = 2_000
BLOCK = 16
WORDS = [f" {a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in ("", "r", "st")]
WIDE = ["🎉", "🐢", "é", "日"]
PROBABILITIES = (0.5, 0.2, 0.1, 0.05, 0.05)
LONG = 100  # tokens; longer answers are asked for only to be left
WATCHED = 64  # tokens of the streams that are open while processes are disturbed


@dataclass
class Fault:
    """`request` and `reply` edit in place; the others are switches that the server looks at."""

    request: Callable[[Call], None] | None = None
    reply: Callable[[Call, Reply], None] | None = None
    ignores_clients_that_left: bool = False
    leaks_kv: bool = False
    blocks_behind: bool = False  # long work of clients that left delays others
    one_at_a_time: bool = False  # all requests, in the order in which they came
    max_connections: int | None = None  # further ones are closed
    answers_bytes: Callable[[bytes], bytes | None] | None = (
        None  # to a head as it came; None: as if there were no fault
    )
    hangs_beside: int = 0  # no short answers once so many long streams have begun
    at_disturbance: Callable[[ScriptedOpenAI, str], None] | None = None


@dataclass
class ScriptedOpenAI:
    fault: Fault = field(default_factory=Fault)
    api_key: str | None = None
    other_key: str | None = None  # of another tenant
    holds_long: bool = False  # a long answer waits until a short one was given
    short_given: asyncio.Event = field(default_factory=asyncio.Event)
    token_delay_s: float = 0.001
    running: int = 0
    num_long: int = 0  # requests for more than LONG tokens so far
    leaked_tokens: int = 0
    held_tokens: int = 0
    seen: dict[str, list[list[str]]] = field(default_factory=dict)  # per key
    ids: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=lambda: ["1", "2"])  # of the processes
    stored: dict[str, Any] = field(default_factory=dict)  # responses
    broken: str = ""  # how open and new requests behave: "", cut, error, hang, hang_second, wrong, refuse
    num_generating: int = 0  # requests so far
    error_chunks: int = 1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    disturbed: asyncio.Event = field(default_factory=asyncio.Event)

    # ---- text --------------------------------------------------------------------------------------------------------

    def pieces(self, text: str) -> list[str]:
        found = re.findall(r"\s?[^\s]{1,4}|\s", text)
        for piece in found:
            self.ids.setdefault(piece, len(self.ids))
        return found

    def from_ids(self, tokens: list[int]) -> str:
        by_id = {number: piece for piece, number in self.ids.items()}
        return "".join(by_id[token] for token in tokens)

    def generate(self, prompt: str, body: dict[str, Any], index: int) -> Generation:
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        limit = 16 if limit is None else limit
        vocabulary = WORDS + (8 * WIDE if any(ord(letter) > 0x2000 for letter in prompt) else [])
        forced = [int(token) for token, bias in (body.get("logit_bias") or {}).items() if bias > 50]
        stops = body.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        seed = body.get("seed")
        dice = Random(f"{uuid.uuid4() if seed is None else seed} {index}")
        made = Generation(reasoning="Let me see." if "reasoning_effort" in body else "")
        if (held := held_text(body)) is not None or forced_calls(body):
            return self._held(made, held or "", body, limit, stops)
        for position in range(min(limit, MAX_MODEL_LEN)):
            start = int.from_bytes(hashlib.sha256(f"{prompt}|{made.full}".encode()).digest()[:4], "big")
            top = [vocabulary[(start + 7 * rank) % len(vocabulary)] for rank in range(5)]
            top = [piece.lstrip() if position == 0 else piece for piece in top]
            rank = 0
            if body.get("temperature", 1) != 0 and body.get("top_p") != 1e-6:
                rank = dice.choices(range(5), PROBABILITIES)[0]
            piece = self.from_ids(forced[:1]) if forced else top[rank]
            made.tokens.append(piece)
            made.tops.append([(name, math.log(p)) for name, p in zip(top, PROBABILITIES, strict=True)])
            made.logprobs.append(math.log(PROBABILITIES[rank]))
            made.full += piece
            ends = [(made.full.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in made.full]
            if ends:
                end, length, _ = min(ends)
                made.text, made.finish_reason = made.full[: end + length], "stop"
                return made
        made.text = made.full
        return made

    def _held(self, made: Generation, text: str, body: dict[str, Any], limit: int, stops: list[str]) -> Generation:
        """What there is nothing to choose of, as far as `limit` and the stop strings let it."""
        made.finish_reason = "tool_calls" if forced_calls(body) else "stop"
        for name, arguments in forced_calls(body):
            pieces = self.pieces(arguments)
            room = limit - len(made.tokens)
            if room > 0:
                made.calls.append((f"call_{uuid.uuid4().hex}", name, pieces[:room]))
            made.tokens += pieces
        end = min((text.find(stop) for stop in stops if stop in text), default=len(text))
        if not made.calls:
            made.tokens = self.pieces(text[:end])
        if len(made.tokens) > limit:
            made.finish_reason = "length"
        made.tokens = made.tokens[:limit]
        made.text = made.full = "" if made.calls else "".join(made.tokens)
        made.tops = [[(token, -0.1)] for token in made.tokens]
        made.logprobs = [-0.1 for _ in made.tokens]
        return made

    # ---- answers -----------------------------------------------------------------------------------------------------

    def answer(self, call: Call) -> Reply:
        if call.path == "/v1/models":
            return Reply({"object": "list", "data": [self._card()]})
        if call.path.startswith("/v1/models/"):
            wanted = call.path.removeprefix("/v1/models/")
            return Reply(self._card()) if wanted == MODEL else error(404, f"The model `{wanted}` does not exist.")
        if call.path in ("/health", "/ready"):
            return Reply({})
        if call.path == "/metrics":
            kv = (self.held_tokens + self.leaked_tokens) / 10_000
            return Reply(f"vllm:num_requests_running {self.running}\nvllm:kv_cache_usage_perc {kv}\n".encode())
        is_other = call.path.startswith(PATHS)
        if call.path not in ("/tokenize", "/v1/chat/completions", "/v1/completions") and not is_other:
            return error(404, "no such path")
        if call.method in ("GET", "DELETE") and call.path.startswith(RESPONSES):
            return answer_response(call, self._chat, self.stored)
        if call.method != "POST":
            return error(405, "use POST")
        keys = [f"Bearer {key}" for key in (self.api_key, self.other_key) if key]
        if keys and call.headers.get("Authorization") not in keys:
            return error(401, "wrong key")
        if "json" not in call.headers.get("Content-Type", "json"):
            return error(400, "only JSON")
        if not isinstance(call.body, dict):
            return error(400, "not a JSON object")
        if call.path == "/tokenize":
            return Reply({"tokens": [self.ids[piece] for piece in self.pieces(call.body["prompt"])]})
        if call.path.startswith(RESPONSES):
            return answer_response(call, self._chat, self.stored)
        return answer_message(call, self._chat) if call.path.startswith(MESSAGES) else self._chat(call)

    def _chat(self, call: Call) -> Reply:
        return why_wrong(call) or self._generated(call)

    def _card(self) -> dict[str, Any]:
        return {"id": MODEL, "object": "model", "created": 1_700_000_000, "max_model_len": MAX_MODEL_LEN}

    def _generated(self, call: Call) -> Reply:
        body, chat = call.body, "messages" in call.body
        if chat:
            tools = json.dumps(body["tools"]) if body.get("tools") and body.get("tool_choice") != "none" else ""
            prompts = [tools + "".join(f"{m['role']}: {said(m)}\n" for m in body["messages"]) + "assistant: "]
        else:
            given = body["prompt"]
            known = range(len(self.ids))
            if isinstance(given, list) and any(isinstance(one, int) and one not in known for one in given):
                return error(400, "a token is outside the vocabulary")
            prompts = (
                [given] if isinstance(given, str) else given if isinstance(given[0], str) else [self.from_ids(given)]
            )
        prompt_pieces = [self.pieces(prompt) for prompt in prompts]
        if any(len(pieces) >= MAX_MODEL_LEN for pieces in prompt_pieces):
            return error(
                400, f"This model's maximum context length is {MAX_MODEL_LEN} tokens.", "context_length_exceeded"
            )
        n = body.get("n") or 1
        made = [self.generate(prompt, body, index) for prompt in prompts for index in range(n)]
        usage = self._usage(call.headers.get("Authorization", ""), prompt_pieces, made)
        envelope = {
            "id": f"id-{uuid.uuid4().hex}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": body["model"],
        }
        echoes = [prompt if body.get("echo") else "" for prompt in prompts for _ in range(n)]
        reply = Reply(num_held=usage["total_tokens"])
        if body.get("stream"):
            wants_usage = (body.get("stream_options") or {}).get("include_usage")
            envelope["object"] += ".chunk" if chat else ""
            reply.chunks = stream_chunks(envelope, made, body, chat, usage if wants_usage else None)
        else:
            choices = [whole_choice(index, one, body, chat, echoes[index]) for index, one in enumerate(made)]
            reply.body = {**envelope, "choices": choices, "usage": usage}
        return reply

    def _usage(self, key: str, prompts: list[list[str]], made: list[Generation]) -> dict[str, Any]:
        cached = 0
        seen = self.seen.setdefault(key, [])
        for prompt in prompts:
            shared = max((common(prompt, old) for old in seen), default=0)
            cached += min(shared, len(prompt) - 1) // BLOCK * BLOCK
            seen.append(prompt)
        num_prompt, num_made = sum(map(len, prompts)), sum(len(one.tokens) for one in made)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_made,
            "total_tokens": num_prompt + num_made,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": 1 if any(one.reasoning for one in made) else 0},
        }

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, dict(request.headers), await request.read())
        if "Host" not in request.headers:
            return web.Response(status=400)
        try:
            call.body = json.loads(call.raw.decode(), parse_constant=lambda name: json.loads("}"))
        except (ValueError, RecursionError):
            call.body = None
        if self.fault.request is not None and call.method == "POST":
            self.fault.request(call)
        generates = "completions" in call.path or (call.method == "POST" and call.path in PATHS)
        self.num_generating += generates
        if generates and (self.broken == "hang" or (self.broken == "hang_second" and self.num_generating % 2 == 0)):
            await asyncio.Event().wait()
        reply = self.answer(call)
        if self.fault.reply is not None:
            self.fault.reply(call, reply)
        if generates and self.broken == "refuse":
            reply = error(400, "broken")
        reply.headers.setdefault("x-request-id", uuid.uuid4().hex)
        if not generates or reply.status != 200:
            return self._whole(reply)
        work = asyncio.create_task(self._in_turn(request, call, reply))
        if self.fault.ignores_clients_that_left:
            return await asyncio.shield(work)
        try:
            return await work
        finally:
            work.cancel()

    async def _in_turn(self, request: web.Request, call: Call, reply: Reply) -> web.StreamResponse:
        if not self.fault.one_at_a_time:
            return await self._work(request, call, reply)
        async with self.lock:
            return await self._work(request, call, reply)

    async def _work(self, request: web.Request, call: Call, reply: Reply) -> web.StreamResponse:
        self.running += 1
        self.held_tokens += reply.num_held
        try:
            is_long = call.body.get("max_tokens", 0) > LONG
            self.num_long += is_long
            if self.fault.hangs_beside and not is_long and self.num_long >= self.fault.hangs_beside:
                await asyncio.Event().wait()
            if self.holds_long and is_long:
                await self.short_given.wait()
            if self.fault.blocks_behind and is_long:
                await self.lock.acquire()  # for ever: nobody notices that its client has left
            if self.fault.blocks_behind:
                async with self.lock:
                    pass
            if self.fault.ignores_clients_that_left and is_long:
                return await self._stream_for_ever(request)
            if reply.chunks is not None:
                awaits_disturbance = self.fault.at_disturbance is not None and call.body.get("max_tokens") == WATCHED
                return await self._stream(request, reply, awaits_disturbance)
            for _ in range(max(1, reply.num_held // 4 if is_long else 1)):
                await asyncio.sleep(4 * self.token_delay_s)
                self._break_if_told(request)
            if not is_long:
                self.short_given.set()
            return self._whole(reply)
        finally:
            self.running -= 1
            self.held_tokens -= reply.num_held
            self.leaked_tokens += reply.num_held if self.fault.leaks_kv else 0

    def _break_if_told(self, request: web.Request) -> None:
        if self.broken == "cut" and request.transport is not None:
            request.transport.abort()

    def _whole(self, reply: Reply) -> web.Response:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"Content-Type": "application/json", **reply.headers}
        return web.Response(body=body, status=reply.status, headers=headers)

    async def _stream_for_ever(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(5):
            await response.write(framed({"choices": []}))
        await asyncio.Event().wait()
        return response

    async def _stream(self, request: web.Request, reply: Reply, awaits_disturbance: bool) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **reply.headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        assert reply.chunks is not None
        events = [framed(chunk) for chunk in reply.chunks]
        for number, event in enumerate(events):
            if number == 5 and awaits_disturbance:
                await self.disturbed.wait()
            await asyncio.sleep(self.token_delay_s)
            if not reply.burst:
                await response.write(event)
            self._break_if_told(request)
            if self.broken in ("error", "end"):
                for _ in range(self.error_chunks if self.broken == "error" else 0):
                    await response.write(framed({"error": {"message": "a worker died", "type": "server_error"}}))
                return response
            if self.broken == "wrong":
                await response.write(framed({"choices": [{"index": 0, "text": " stray", "delta": {"content": "?"}}]}))
        if reply.burst:
            await response.write(b"".join(events))
        if reply.cut and request.transport is not None:
            request.transport.abort()
            return response
        for _ in range(reply.num_done):
            await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def scripted(server: ScriptedOpenAI) -> AsyncIterator[str]:
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        if server.fault.answers_bytes is None and server.fault.max_connections is None:
            yield f"http://127.0.0.1:{port}"
        else:
            async with in_front(server.fault, port) as front_port:
                yield f"http://127.0.0.1:{front_port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def in_front(fault: Fault, port: int) -> AsyncIterator[int]:
    """Faults that no HTTP library makes: a listener that answers heads as it likes and passes on the rest."""
    num_open = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_open
        num_open += 1
        try:
            if fault.max_connections is not None and num_open > fault.max_connections:
                return
            head = await reader.readuntil(b"\r\n\r\n")
            told = fault.answers_bytes(head) if fault.answers_bytes is not None else None
            if told is not None:
                writer.write(told)
                await writer.drain()
                return
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
            behind_writer.write(head)
            back = asyncio.create_task(_pipe(behind_reader, writer))
            there = asyncio.create_task(_pipe(reader, behind_writer))
            try:
                await back
            finally:
                there.cancel()
                back.cancel()
                behind_writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            num_open -= 1
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()


@dataclass
class ScriptedDisturber:
    """Processes that are only names. A killed one comes back under another name, unless the fault says otherwise."""

    server: ScriptedOpenAI
    can: tuple[str, ...] = ("kill", "stop", "continue", "slow-link", "normal-link", "fill-disk", "free-disk")
    told: list[tuple[str, str]] = field(default_factory=list)

    async def targets(self) -> list[str]:
        return list(self.server.names)

    async def do(self, action: str, target: str) -> bool:
        self.told.append((str(action), target))
        if action not in self.can:
            return False
        if action == "kill":
            self.server.names = [name for name in self.server.names if name != target] + [f"{int(target) + 10}"]
        if self.server.fault.at_disturbance is not None:
            self.server.fault.at_disturbance(self.server, str(action))
        self.server.disturbed.set()
        return True
