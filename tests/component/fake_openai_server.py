"""An OpenAI-compatible server whose every answer is scripted; for tests of HTTP clients and load generators."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TEMPLATE_TOKENS = 5  # that the chat template adds


@dataclass
class FakeOpenAI:
    """Set the attributes before the request; read `bodies` and `max_in_flight` after it."""

    model: str = "fake-model"
    owned_by: str = "fake"
    api_key: str | None = None
    has_tokenize: bool = True
    send_usage: bool = True
    num_cached_tokens: int = 0
    end_stream_after: int | None = None  # tokens after which the stream ends without a finish_reason
    reset_after: int | None = None  # tokens after which the connection is dropped
    error_event_after: int | None = None
    statuses: list[int] = field(default_factory=list)  # of the next requests, 200 when used up
    takes_token_ids: bool = True
    takes_completions: bool = True
    num_missing_tokens: int = 0  # of every answer: the server ends it earlier than it was asked to
    exits_at_request: int | None = None  # the whole process, when so many requests have come
    tokens_per_chunk: int = 1
    token_delay_s: float = 0.0
    hold_until_in_flight: int = 0  # nobody is answered before so many requests are there at once
    hang: bool = False  # answer nobody, ever
    hang_after: int | None = None  # tokens after which a stream goes silent
    text: str = ""  # of every token, instead of a numbered one
    headers: dict[str, str] = field(default_factory=dict)  # of every stream
    client_left: threading.Event = field(default_factory=threading.Event)  # a stream that hung was given up
    metrics: list[str] = field(default_factory=list)  # bodies of the next scrapes, the last one repeats
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_in_flight: int = 0
    max_in_flight: int = 0

    def app(self) -> web.Application:
        self.enough = asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": {"message": "bad key"}}, status=401)
        return web.json_response({"object": "list", "data": [self._model_entry()]})

    def _model_entry(self) -> dict[str, str]:
        return {"id": self.model, "object": "model", "owned_by": self.owned_by}

    async def _ready(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0])

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.has_tokenize:
            raise web.HTTPNotFound
        body = await request.json()
        tokens = _count_prompt(body)
        return web.json_response({"count": len(tokens), "tokens": tokens, "max_model_len": 8192})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if len(self.bodies) == self.exits_at_request:
            os._exit(7)
        if not self.takes_completions and "prompt" in body:
            raise web.HTTPNotFound
        if not self.takes_token_ids and isinstance(body.get("prompt"), list):
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=400)
        self.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        if self.num_in_flight >= self.hold_until_in_flight:
            self.enough.set()
        try:
            await self.enough.wait()
            if self.hang:
                await asyncio.Event().wait()
            status = self.statuses.pop(0) if self.statuses else 200
            if status != 200:
                return web.json_response({"error": {"message": f"scripted {status}"}}, status=status)
            return await self._stream(request, body)
        finally:
            self.num_in_flight -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **self.headers})
        await response.prepare(request)
        chat = "messages" in body
        if chat:
            await _send(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        num_tokens = (body.get("max_completion_tokens") or body["max_tokens"]) - self.num_missing_tokens
        for number in range(0, num_tokens, self.tokens_per_chunk):
            if self.reset_after == number and request.transport is not None:
                request.transport.abort()
                return response
            if self.end_stream_after == number:
                return response
            if self.error_event_after == number:
                await _send(response, {"error": {"message": "engine died", "code": 500}})
                return response
            if self.hang_after == number:
                await self._wait_until_left(request)
                return response
            await asyncio.sleep(self.token_delay_s)
            text = self.text or "".join(
                f" t{i}" for i in range(number, min(num_tokens, number + self.tokens_per_chunk))
            )
            choice = {"delta": {"content": text}} if chat else {"text": text}
            await _send(response, {"choices": [{"index": 0, "finish_reason": None, **choice}]})
        last = {"delta": {}} if chat else {"text": ""}
        await _send(response, {"choices": [{"index": 0, "finish_reason": "length", **last}]})
        if self.send_usage and body.get("stream_options", {}).get("include_usage"):
            await _send(response, {"choices": [], "usage": self._usage(body, num_tokens)})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _wait_until_left(self, request: web.Request) -> None:
        while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.01)
        self.client_left.set()

    def _usage(self, body: dict[str, Any], num_tokens: int) -> dict[str, Any]:
        num_prompt = len(_count_prompt(body))
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt + num_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


def _count_prompt(body: dict[str, Any]) -> list[int]:
    """One token a word, a different one for each word; the chat template adds TEMPLATE_TOKENS."""
    if "messages" in body:
        words = body["messages"][0]["content"].split()
        return [0] * TEMPLATE_TOKENS + [_word_id(word) for word in words]
    prompt = body["prompt"]
    return prompt if isinstance(prompt, list) else [_word_id(word) for word in prompt.split()]


def _word_id(word: str) -> int:
    return 100 + sum(ord(letter) * 31**place for place, letter in enumerate(word)) % 5000


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@asynccontextmanager
async def served(fake: FakeOpenAI) -> AsyncIterator[str]:
    """The fake's URL, in the caller's event loop."""
    runner = web.AppRunner(fake.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def served_in_thread(fake: FakeOpenAI) -> Iterator[str]:
    """The fake's URL, for callers that run an event loop of their own."""
    loop = asyncio.new_event_loop()
    started: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with served(fake) as url:
            started.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def serve_for_ever(fake: FakeOpenAI, port: int) -> None:
    """For a process of its own: until SIGINT."""
    web.run_app(fake.app(), host="127.0.0.1", port=port, print=None, shutdown_timeout=0.1)
