"""Servers that speak the protocols of vLLM 0.32 and SGLang 0.5.23, as far as a gateway sees them; vLLM's answers and
faults as they were recorded from it.

A token follows from all tokens before it *as they lie in the engine's KV*, so KV of another request makes other tokens.
KV is kept in blocks that are used again: a prefill engine frees what was not fetched when its lease ends (`expire`),
and a decode engine that comes later reads what lies there by then and answers 200, as the real one does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

VOCAB_SIZE = 997
_starts = itertools.count(1)


def next_token(context: tuple[int, ...]) -> int:
    value = 7
    for token in context:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB_SIZE


def continuation(prompt: list[int], num_tokens: int) -> list[int]:
    """What an engine alone says."""
    context, said = tuple(prompt), []
    for _ in range(num_tokens):
        said.append(next_token(context))
        context += (said[-1],)
    return said


@dataclass
class Lease:
    slot: int  # where its KV lies
    tokens: tuple[int, ...]


@dataclass
class Fabric:
    """Between engines: who answers for which engine id, which bootstrap rooms are open."""

    engines: dict[str, FakeEngine] = field(default_factory=dict)
    rooms: dict[int, dict[str, asyncio.Future[tuple[int, ...]]]] = field(default_factory=dict)
    rooms_ever: list[int] = field(default_factory=list)


@dataclass
class FakeEngine:
    """One process behind one address. `start` again after `kill` is another process."""

    fabric: Fabric
    role: str  # "prefill", "decode", "unified"
    block_size: int = 4
    version: str = "0.32.0"
    model: str = "tiny"
    max_model_len: int = 512
    kv_dtype: str = "auto"
    tensor_parallel_size: int = 1
    step_s: float = 0.0
    keep_alive_s: float = 5.0
    api_key: str = ""
    before: Callable[[str, dict[str, Any]], Any] | None = None  # called with (kind, body) before an ask is worked on
    host: str = "127.0.0.1"
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_late_reads: int = 0
    num_cut: int = 0  # requests that were broken off
    num_connections_cut: int = 0
    is_broken: bool = False
    _running: dict[str, asyncio.Event] = field(default_factory=dict)
    _cached: set[tuple[int, ...]] = field(default_factory=set)
    _runner: web.AppRunner | None = None
    engine_id: str = ""
    started_at: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.started_at = next(_starts)
        self.engine_id = f"engine-{self.started_at}"
        self.fabric.engines[self.engine_id] = self
        self.is_broken = False
        self.leases.clear()
        self.slots.clear()
        self._cached.clear()
        app = web.Application(client_max_size=2**26)
        for method, path, handler in self.routes():
            app.router.add_route(method, path, handler)
        self._runner = web.AppRunner(app, keepalive_timeout=self.keep_alive_s, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, shutdown_timeout=0.0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def kill(self) -> None:
        """As by kill -9: connections end, KV is gone."""
        self.fabric.engines.pop(self.engine_id, None)
        if self._runner is not None:
            server = self._runner.server
            for connection in list(server.connections) if server is not None else []:
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    def routes(self) -> list[tuple[str, str, Any]]:
        raise NotImplementedError

    # ---- KV ----------------------------------------------------------------------------------------------------------

    def keep(self, name: str, tokens: tuple[int, ...]) -> Lease:
        slot = next(n for n in itertools.count() if n not in {lease.slot for lease in self.leases.values()})
        lease = self.leases[name] = Lease(slot, tokens)
        self.slots[slot] = tokens
        return lease

    def expire(self) -> None:
        """All leases end; what lay there stays until it is written over."""
        self.leases.clear()

    def cached_prefix(self, prompt: tuple[int, ...]) -> int:
        """Whole blocks, of which the last token is never one."""
        count = (len(prompt) - 1) // self.block_size
        while count and prompt[: count * self.block_size] not in self._cached:
            count -= 1
        for number in range(1, len(prompt) // self.block_size + 1):
            self._cached.add(prompt[: number * self.block_size])
        return count * self.block_size

    async def generated(self, name: str, kv: tuple[int, ...], max_tokens: int, stops: list[int]) -> Any:
        """Tokens one by one, and why it ended with the last."""
        stop = self._running[name] = asyncio.Event()
        said: list[int] = []
        try:
            while True:
                if self.step_s:
                    await asyncio.sleep(self.step_s)
                else:
                    await asyncio.sleep(0)
                if stop.is_set():
                    yield None, "abort"
                    return
                said.append(next_token((*kv, *said)))
                if said[-1] in stops:
                    yield said[-1], "stop"
                    return
                if len(said) >= max_tokens:
                    yield said[-1], "length"
                    return
                yield said[-1], None
        finally:
            if self._running.pop(name, None) is not None and not (said and len(said) >= max_tokens):
                self.num_cut += 1

    def abort_named(self, names: list[str]) -> None:
        for name in names:
            self.aborted.append(name)
            if name in self._running:
                self._running[name].set()

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def _look(self, kind: str, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        if self.before is not None:
            await self.before(kind, body)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.is_broken else 200)


class FakeVLLM(FakeEngine):
    """NIXL pull."""

    def routes(self) -> list[tuple[str, str, Any]]:
        return [
            ("GET", "/health", self._health),
            ("GET", "/version", self._version),
            ("GET", "/v1/models", self._models),
            ("GET", "/metrics", self._metrics),
            ("POST", "/inference/v1/generate", self._generate),
            ("POST", "/inference/v1/abort_requests", self._abort),
        ]

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _models(self, request: web.Request) -> web.Response:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        card = {"id": self.model, "root": f"/models/{self.model}", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text=f'vllm:cache_config_info{{block_size="{self.block_size}",num_gpu_blocks="64",'
            f'cache_dtype="{self.kv_dtype}"}} 1.0\n'
            f"process_start_time_seconds {self.started_at}\n"
            f'vllm:num_requests_running{{engine="0"}} {self.num_running}\n'
            'vllm:num_requests_waiting{engine="0"} 0\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        )

    async def _abort(self, request: web.Request) -> web.Response:
        names = (await request.json())["request_ids"]
        self.abort_named([name.removeprefix("generate-tokens-") for name in names if name.startswith("generate-")])
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.is_broken:
            return _error(500, "the engine is dead")
        params = body.get("kv_transfer_params")
        kind = "decode" if params and params.get("do_remote_prefill") else "prefill" if params else "whole"
        await self._look(kind, body)
        prompt, sampling = tuple(body["token_ids"]), body["sampling_params"]
        if len(prompt) >= self.max_model_len:
            return _error(400, f"The prompt has {len(prompt)} tokens, which is too long.")
        kv, num_cached = prompt, self.cached_prefix(prompt)
        if kind == "decode":
            if not params.get("remote_block_ids"):
                self.is_broken = True  # an AssertionError in its scheduler
                return _error(500, "EngineCore encountered an issue.")
            peer = self.fabric.engines.get(params["remote_engine_id"])
            if peer is None:
                return _error(500, "NIXL_ERR_REMOTE_DISCONNECT")
            lease = peer.leases.pop(params["remote_request_id"], None)
            self.num_late_reads += lease is None
            kv = peer.slots.get(params["remote_block_ids"][0][0], ())  # what lies there now
            num_cached = params.get("remote_prefill_cached_tokens", num_cached)
        asked = (body["request_id"], kv, sampling["max_tokens"], sampling["stop_token_ids"])
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": num_cached}}
        if not body["stream"]:
            return await self._whole(asked, usage, kind)
        return await self._streamed(request, asked, usage)

    async def _whole(self, asked: Any, usage: dict[str, Any], kind: str) -> web.Response:
        said, reason = [], None
        async for token, why in self.generated(*asked):
            reason = why
            said += [token] if token is not None else []
        answer: dict[str, Any] = {
            "request_id": f"generate-tokens-{asked[0]}",
            "choices": [{"index": 0, "token_ids": said, "finish_reason": reason}],
            "usage": usage,
            "kv_transfer_params": None,
        }
        if kind == "prefill" and self.role == "prefill" and reason != "abort":
            name = f"cmpl-{asked[0]}"
            lease = self.keep(name, asked[1])
            answer["kv_transfer_params"] = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[lease.slot]],
                "remote_engine_id": self.engine_id,
                "remote_request_id": name,
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "tp_size": 1,
                "dcp_size": 1,
                "pp_size": 1,
                "remote_num_tokens": len(asked[1]),
                "remote_blocks_expiry_time": None,
                "transfer_mode": "pull",
                "remote_prefill_cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            }
        return web.json_response(answer)

    async def _streamed(self, request: web.Request, asked: Any, usage: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for token, reason in self.generated(*asked):
            choice = {"index": 0, "token_ids": [token] if token is not None else [], "finish_reason": reason}
            await response.write(_event({"request_id": asked[0], "choices": [choice]}))
        await response.write(_event({"request_id": asked[0], "choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


class FakeSGLang(FakeEngine):
    """The bootstrap protocol: both halves meet in a room, or wait."""

    is_incremental = False
    num_slots: int = 64

    def routes(self) -> list[tuple[str, str, Any]]:
        return [
            ("GET", "/health", self._health),
            ("GET", "/server_info", self._server_info),
            ("GET", "/v1/loads", self._loads),
            ("POST", "/generate", self._generate),
            ("POST", "/abort_request", self._abort),
        ]

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "version": self.version,
                "model_path": f"/models/{self.model}",
                "served_model_name": self.model,
                "context_length": self.max_model_len,
                "page_size": self.block_size,
                "kv_cache_dtype": self.kv_dtype,
                "tp_size": self.tensor_parallel_size,
                "disaggregation_mode": self.role,
                "startup_time": self.started_at,
            }
        )

    async def _loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": self.num_running, "token_usage": 0.1}]})

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.abort_named([body["rid"]])
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        await self._look(self.role, body)
        room = body.get("bootstrap_room")
        if room is None:
            return _error(400, "Disaggregated request received without bootstrap room id")
        if self.num_running >= self.num_slots:
            return _error(503, "no slot")
        name, prompt, sampling = body["rid"], tuple(body["input_ids"]), body["sampling_params"]
        stop = self._running[name] = asyncio.Event()
        try:
            kv = await self._met(room, prompt, stop)
        finally:
            self._running.pop(name, None)
        num_cached = self.cached_prefix(prompt)
        if kv is None:
            return self._gave_up(name)
        asked = (name, kv, sampling["max_new_tokens"], sampling["stop_token_ids"])
        if not body["stream"]:
            said, reason = [], None
            async for token, why in self.generated(*asked):
                reason = why
                said += [token] if token is not None else []
            return web.json_response(self._told(name, said, said, reason, num_cached))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        said = []
        async for token, reason in self.generated(*asked):
            new = [token] if token is not None else []
            said += new
            shown = new if self.is_incremental else said
            await response.write(_event(self._told(name, shown, said, reason, num_cached)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _met(self, room: int, prompt: tuple[int, ...], stop: asyncio.Event) -> tuple[int, ...] | None:
        """The prompt as the prefill half had it; None: aborted before the other half came."""
        loop = asyncio.get_running_loop()
        halves = self.fabric.rooms.setdefault(room, {})
        if self.role in halves:
            raise web.HTTPInternalServerError(text="two requests in one room: the scheduler dies")
        self.fabric.rooms_ever.append(room)
        halves[self.role] = loop.create_future()
        halves[self.role].set_result(prompt)
        while {"prefill", "decode"} - set(halves):
            if stop.is_set():
                halves.pop(self.role, None)
                return None
            await asyncio.sleep(0.001)
        kv = await halves["prefill"]
        loop.call_later(0.05, self.fabric.rooms.pop, room, None)
        return kv

    def _gave_up(self, name: str) -> web.Response:
        reason = {"type": "abort", "message": "aborted", "status_code": 500}
        return web.json_response({"output_ids": [], "meta_info": {"id": name, "finish_reason": reason}}, status=500)

    def _told(
        self, name: str, shown: list[int], said: list[int], reason: str | None, num_cached: int
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {"id": name, "completion_tokens": len(said), "cached_tokens": num_cached}
        meta["finish_reason"] = {"type": reason} if reason else None
        return {"output_ids": list(shown), "meta_info": meta}


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "error", "code": status}}, status=status)


def _event(told: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(told).encode() + b"\n\n"
