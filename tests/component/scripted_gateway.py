"""The HTTP side of the gateway over a generator that follows a script: no workers, no model, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import orjson
from starlette.types import ASGIApp
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from relevo.core.baton import PrefillFacts, SampledToken
from relevo.core.errors import RelevoError
from relevo.core.events import StepCounters, TokenOutput, WorkerLoad
from relevo.core.ids import WorkerId
from relevo.core.model import TokenizerFiles
from relevo.core.outcome import COMPLETE, RequestEnd
from relevo.core.request import EngineRequest, FinishReason
from relevo.core.role import Role
from relevo.core.timeline import Timeline
from relevo.gateway.http.app import create_app
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.http.route import RouteTable
from relevo.gateway.routes import route_table
from relevo.gateway.text.chat_template import ChatTemplate
from relevo.gateway.text.detokenizer import IncrementalDetokenizer
from relevo.gateway.text.served_models import ServedModel, ServedModels
from relevo.gateway.text.tokenizer import Tokenizer
from relevo.orchestrator.ports import EngineStatus, OutputSink, WorkerStatus
from relevo.telemetry.metrics import GatewayMetrics
from relevo.telemetry.text_format import TextFormat

MODEL = "tiny"
MAX_MODEL_LEN = 200
EOS = 256
VOCAB_SIZE = 257
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if tools %}tools:{{ tools | map(attribute='function.name') | join }}\n{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and the end token 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return Tokenizer(
        TokenizerFiles(tokenizer_json=backend.to_str(), chat_template=None, bos_token=None, eos_token=None)
    )


TOKENIZER = byte_tokenizer()


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def facts(num_prompt_tokens: int, num_cached_tokens: int) -> PrefillFacts:
    return PrefillFacts(
        worker_id=WorkerId("p0"),
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=num_cached_tokens,
        queue_s=0.0,
        prefill_s=0.0,
    )


@dataclass
class Hang:
    """A step that does not come."""


Step = tuple[int, Sequence[int], FinishReason | None] | Exception | Hang  # sample index, token ids, end


def says(text: str, *, sample: int = 0, end: FinishReason = FinishReason.STOP, tokens_per_step: int = 1) -> list[Step]:
    """One continuation: `text` byte by byte, then (for STOP) the end token."""
    token_ids = ids(text) + ([EOS] if end is FinishReason.STOP else [])
    cuts = [token_ids[i : i + tokens_per_step] for i in range(0, len(token_ids), tokens_per_step)]
    return [(sample, cut, end if number == len(cuts) - 1 else None) for number, cut in enumerate(cuts)]


@dataclass
class ScriptedGenerator:
    """Plays `script` for every request. `num_cached` goes into the facts of the first output."""

    script: Sequence[Step] | Callable[[EngineRequest], Sequence[Step]] = ()
    num_cached: int = 0
    route: str = ""  # of every request
    engine_status: EngineStatus = field(default_factory=lambda: status_of(ready=True))
    requests: list[EngineRequest] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    roles_given: list[tuple[dict[str, Role], str]] = field(default_factory=list)  # and why
    num_open: int = 0
    num_closed_early: int = 0
    num_to_hang: int = 1  # `hanging` is set once so many requests hang
    num_hanging: int = 0
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)  # the first step that hangs comes after all
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set whenever the last open request has ended

    def start(self, request: EngineRequest, sink: OutputSink) -> Playing:
        self.requests.append(request)
        self.num_open += 1
        steps = list(self.script(request) if callable(self.script) else self.script)
        playing = Playing(self, sink, Timeline(accepted_at_ns=request.arrived_at_ns))
        if steps and isinstance(steps[0], Exception):  # it is not let in
            playing.fail(steps[0])
        else:
            playing.task = asyncio.create_task(playing.play(request, steps))
        return playing

    def status(self) -> EngineStatus:
        return self.engine_status

    def drain(self, worker_id: str) -> bool:
        is_ready = any(worker.worker_id == worker_id and worker.ready for worker in self.engine_status.workers)
        self.drained += [worker_id] * is_ready
        return is_ready

    def set_roles(self, roles: Mapping[str, Role], reason: str) -> None:
        self.roles_given.append((dict(roles), reason))


@dataclass(eq=False)
class Playing:
    """One request's script, a step per turn of the event loop."""

    generator: ScriptedGenerator
    sink: OutputSink
    timeline: Timeline
    task: asyncio.Task[None] | None = None
    is_over: bool = False

    async def play(self, request: EngineRequest, steps: Sequence[Step]) -> None:
        first_facts: PrefillFacts | None = facts(len(request.prompt_token_ids), self.generator.num_cached)
        for step in steps:
            if isinstance(step, Exception):
                self.fail(step)
            elif isinstance(step, Hang):
                await self.hang()
            else:
                output = TokenOutput(request.request_id, step[0], sampled(request, step[1]), step[2], first_facts)
                first_facts = None
                self.sink.on_output(output)
                await asyncio.sleep(0)
            if self.is_over:
                return
        self._over(COMPLETE)

    async def hang(self) -> None:
        self.generator.num_hanging += 1
        if self.generator.num_hanging == self.generator.num_to_hang:
            self.generator.hanging.set()
        await (self.generator.resume if self.generator.num_hanging == 1 else asyncio.Event()).wait()

    def fail(self, error: Exception) -> None:
        """What is no error of Relevo's is a fault of its code."""
        is_known = isinstance(error, RelevoError)
        end = RequestEnd.of(error) if is_known else RequestEnd.failed("internal_error", "see the log")
        self.generator.num_closed_early += 1
        self._over(end)

    @property
    def route(self) -> str:
        return self.generator.route

    def end(self, end: RequestEnd) -> None:
        if not self.is_over:
            self.generator.num_closed_early += 1
            self._over(end)
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel()

    def _over(self, end: RequestEnd) -> None:
        self.is_over = True
        self.generator.num_open -= 1
        if not self.generator.num_open:
            self.generator.idle.set()
        self.sink.on_end(end)


def sampled(request: EngineRequest, token_ids: Sequence[int]) -> tuple[SampledToken, ...]:
    num_top = request.sampling.num_logprobs
    if num_top is None:
        return tuple(SampledToken(token_id) for token_id in token_ids)
    return tuple(
        SampledToken(i, -0.5, tuple(((i + k) % VOCAB_SIZE, -0.5 - k) for k in range(num_top))) for i in token_ids
    )


def status_of(*, ready: bool, reason: str = "", num_workers: int = 1) -> EngineStatus:
    worker = WorkerStatus(
        worker_id="w0", role="unified", ready=ready, epoch=1, pid=1, load=WorkerLoad(), counters=StepCounters()
    )
    return EngineStatus(ready=ready, reason=reason, workers=(worker,) * num_workers)


class CountingClock:
    """Every look at it is one nanosecond later."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        self._now_ns += 1
        return self._now_ns


@dataclass
class RecordingMetrics:
    records: list[Any] = field(default_factory=list)
    responses: list[tuple[str, str, int]] = field(default_factory=list)

    def request_finished(self, record: Any) -> None:
        self.records.append(record)

    def worker_totals(self, statuses: Mapping[str, EngineStatus]) -> dict[tuple[str, str], dict[str, float]]:
        return GatewayMetrics([MODEL]).worker_totals(statuses)  # type: ignore[return-value]

    def counts(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        return []

    def http_response(self, handler: str, method: str, status: int) -> None:
        self.responses.append((handler, method, status))

    def http_took(self, handler: str, method: str, took_s: float) -> None:
        assert took_s >= 0

    def render(self, statuses: Mapping[str, EngineStatus], text: TextFormat) -> tuple[bytes, str]:
        return b"up 1\n", text.content_type


@dataclass
class Rig:
    """An app, what is behind it, and a client in front of it."""

    generator: ScriptedGenerator
    metrics: RecordingMetrics
    app: ASGIApp

    def client(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://gateway", headers=headers)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        async with self.client(**headers) as client:
            return await client.post(path, json=body)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with self.client(**headers) as client:
            return await client.get(path)

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | fields
        return await self.post("/v1/chat/completions", body)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 100} | fields)


def rig(
    script: Sequence[Step] | Callable[[EngineRequest], Sequence[Step]] = (),
    num_cached: int = 0,
    route: str = "",
    **context: Any,
) -> Rig:
    generator = ScriptedGenerator(script, num_cached=num_cached, route=route)
    metrics = RecordingMetrics()
    own = {name: context.pop(name) for name in list(context) if name in ServedModel.__dataclass_fields__}
    models = ServedModels([served_model(generator, **own)])
    return Rig(generator, metrics, scripted_app(models, metrics, **context))


def served_model(generator: ScriptedGenerator, **parts: Any) -> ServedModel:
    settings: dict[str, Any] = {
        "names": (MODEL, "alias/of-tiny"),
        "generator": generator,
        "tokenizer": TOKENIZER,
        "chat_template": ChatTemplate(TEMPLATE),
        "make_detokenizer": partial(IncrementalDetokenizer, TOKENIZER),
        "max_model_len": MAX_MODEL_LEN,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": (EOS,),
    }
    return ServedModel(**(settings | parts))


def scripted_app(models: ServedModels, metrics: Any, routes: RouteTable | None = None, **context: Any) -> ASGIApp:
    settings: dict[str, Any] = {"clock": CountingClock(), "started_at_unix_s": 1_700_000_000}
    return create_app(GatewayContext(models=models, metrics=metrics, **(settings | context)), routes or route_table())


def events(response: httpx.Response) -> list[Any]:
    """The payloads of a stream; `[DONE]` stays a string."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else orjson.loads(line) for line in lines]


def streamed_text(payloads: Sequence[Any], index: int = 0) -> str:
    """What a client puts together for one choice, of either API."""
    choices = [choice for p in payloads if isinstance(p, dict) for choice in p["choices"] if choice["index"] == index]
    return "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)


async def raw_call(
    app: ASGIApp, body: Any, receive_more: Callable[[], Awaitable[dict[str, Any]]], path: str = "/v1/chat/completions"
) -> list[dict[str, Any]]:
    """One ASGI call whose client behaves as `receive_more` says after the body; what the app sent."""
    sent: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = [{"type": "http.request", "body": orjson.dumps(body), "more_body": False}]

    async def receive() -> dict[str, Any]:
        return pending.pop() if pending else await receive_more()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    await app(scope, receive, send)
    return sent
