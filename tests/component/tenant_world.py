"""A hostile tenant and a good one on the whole stack in one process and on virtual time: HTTP application, dispatcher,
admission, step loops over the fake engine. Only sockets, threads and clocks are replaced, so every run is the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import orjson
from hostile_patterns import Pattern
from in_process_stack import BLOCK_SIZE, InProcessStack, Worker, make_worker
from scripted_gateway import EOS, MODEL, RecordingMetrics, scripted_app, served_model
from starlette.types import ASGIApp
from virtual_time import VirtualLoop, run_virtually

from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.core.plan import StepPlan, StepResult
from relevo.engine.fake_runner import FakeRunner, fake_layout
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.text.served_models import ServedModels
from relevo.kv.arena import Arena
from relevo.policy.admission.admission import AdmissionLimits
from relevo.policy.admission.room import RoomLimits
from relevo.telemetry.metrics import GatewayMetrics

COSTS = StepCosts(base_s=0.010, per_token_s=0.0005, per_kv_token_s=0.0)
NUM_SLOTS = 8  # of in_process_stack.make_worker, like the step of 16 tokens
NUM_BLOCKS = 2048  # 8,192 tokens: one prompt of the largest patterns nearly fills them
ROOM = RoomLimits(max_running=NUM_SLOTS, max_ahead_tokens=32, max_ahead_s=0.5, block_size=BLOCK_SIZE)
LIMITS = AdmissionLimits(max_queued_requests=48, max_queued_tokens=100_000, max_ttft_s=60.0, max_line_s=300.0)
MAX_SEEN = 2000  # answers of the hostile tenant that are looked at
GOOD_BODY = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True, "stream_options": {"include_usage": True}}


class PacedRunner(FakeRunner):
    """Says what a step costs instead of taking the time."""

    step_s = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        self.step_s = COSTS.step_s(plan.num_tokens, plan.num_kv_tokens)
        return StepResult(plan.step_id, super().execute(plan).sampled, self.step_s)


async def run_worker(worker: Worker, runner: PacedRunner) -> None:
    while True:
        await worker.has_message.wait()
        worker.has_message.clear()
        while worker.loop.turn(0.0):  # noqa: ASYNC110  # virtual time passes
            await asyncio.sleep(runner.step_s)


@contextlib.asynccontextmanager
async def tenant_stack(
    loop: VirtualLoop, roles: Iterable[str], metrics: Any = None
) -> AsyncIterator[tuple[ASGIApp, InProcessStack]]:
    roles = tuple(roles)
    arena = Arena.create(fake_layout(BLOCK_SIZE), NUM_BLOCKS * len(roles), shared=False)
    workers: dict[str, Worker] = {}
    tasks = []
    for index, role in enumerate(roles):
        worker = workers[f"w{index}"] = make_worker(f"w{index}", role, arena, index * NUM_BLOCKS, NUM_BLOCKS)
        runner = PacedRunner(arena, max_model_len=NUM_BLOCKS * BLOCK_SIZE)
        worker.loop.runner, worker.loop.clock = runner, _Clock(loop)
        tasks.append(asyncio.create_task(run_worker(worker, runner)))
    stack = InProcessStack(workers, clock=_Clock(loop), room=ROOM, limits=LIMITS)
    gateway = await stack.add_gateway()
    served = served_model(gateway.dispatcher, max_model_len=NUM_BLOCKS * BLOCK_SIZE, eos_token_ids=(EOS,))  # type: ignore[arg-type]
    keys = ApiKeys.of(["good", "hostile"])
    app = scripted_app(ServedModels([served]), metrics or RecordingMetrics(), clock=_Clock(loop), api_keys=keys)
    try:
        yield app, stack
    finally:
        for task in [*tasks, gateway.task]:
            task.cancel()
        await asyncio.gather(*tasks, gateway.task, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Clock:
    loop: VirtualLoop

    def now_ns(self) -> int:
        return self.loop.now_ns()


@dataclass(slots=True)
class Answer:
    asked_at_s: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return b"".join(chunk for _, chunk in self.chunks).decode("utf-8", "replace")

    def tokens(self) -> list[tuple[float, str]]:
        """When each piece of text came."""
        pieces = [(at_s, line[6:]) for at_s, chunk in self.chunks for line in chunk.split(b"\n\n")]
        found = [(at_s, orjson.loads(data)) for at_s, data in pieces if data.startswith(b"{")]
        return [(at_s, each["choices"][0]["text"]) for at_s, each in found if each.get("choices")]

    def num_cached_tokens(self) -> int:
        for _, chunk in self.chunks:
            for line in chunk.split(b"\n\n"):
                data = line.removeprefix(b"data: ")
                if b'"usage":{' in data:
                    details = orjson.loads(data)["usage"].get("prompt_tokens_details") or {}
                    return int(details.get("cached_tokens", 0))
        return 0


async def call(
    app: ASGIApp,
    key: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    *,
    abort_after: int | None = None,
    read_every_s: float = 0.0,
    seen: list[Answer] | None = None,
) -> Answer:
    """`seen`: gets the answer as it comes."""
    loop = asyncio.get_running_loop()
    answer, gone = Answer(loop.time()), asyncio.Event()
    if seen is not None and len(seen) < MAX_SEEN:
        seen.append(answer)
    pending = [{"type": "http.request", "body": body, "more_body": False}]
    if abort_after == 0:
        loop.call_later(0.015, gone.set)

    async def receive() -> dict[str, Any]:
        if pending:
            return pending.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message.get("body"):
            answer.chunks.append((loop.time(), message["body"]))
            if read_every_s:
                await asyncio.sleep(read_every_s)
            if abort_after is not None and len(answer.chunks) >= abort_after:
                gone.set()

    given = {"host": "gateway", "content-type": "application/json", "authorization": f"Bearer {key}"} | headers
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "query_string": b"", "client": ("::1", 1)}
    await app(scope | {"http_version": "1.1", "scheme": "http", "server": ("gateway", 80)}, receive, send)
    gone.set()
    return answer


@dataclass(slots=True)
class Run:
    good: list[Answer] = field(default_factory=list)
    hostile: list[Answer] = field(default_factory=list)

    def ttft_s(self) -> list[float]:
        return sorted(answer.tokens()[0][0] - answer.asked_at_s for answer in self.good if answer.tokens())

    def gaps_s(self) -> list[float]:
        times = [[at_s for at_s, _ in answer.tokens()] for answer in self.good]
        return sorted(later - at_s for each in times for at_s, later in pairwise(each))

    def texts(self) -> list[str]:
        return ["".join(text for _, text in answer.tokens()) for answer in self.good]


def good_prompt(number: int) -> str:
    return f"question {number % 10}, asked once more: {number % 7}?"


async def good_tenant(app: ASGIApp, run: Run, num_requests: int, every_s: float) -> None:
    async def one(number: int) -> None:
        await asyncio.sleep(2.0 + number * every_s)
        body = {"model": MODEL, "prompt": good_prompt(number), "stream": True, "seed": number} | GOOD_BODY
        run.good[number] = await call(app, "good", "/v1/completions", orjson.dumps(body), {})

    run.good = [Answer(0.0)] * num_requests
    await asyncio.gather(*(one(number) for number in range(num_requests)))


async def hostile_tenant(app: ASGIApp, run: Run, pattern: Pattern) -> None:
    numbers = count()

    async def client() -> None:
        while True:
            number = next(numbers)
            await call(
                app,
                "hostile",
                pattern.path,
                hostile_body(pattern, number, MODEL),
                pattern.headers,
                abort_after=pattern.abort_after,
                read_every_s=pattern.read_every_s,
                seen=run.hostile,
            )
            await asyncio.sleep(max(pattern.pause_s, 0.05))

    await asyncio.gather(*(client() for _ in range(pattern.num_clients)))


def hostile_body(pattern: Pattern, number: int, model: str) -> bytes:
    if isinstance(pattern.body, bytes):
        return pattern.body
    prompt = good_prompt(number) if pattern.is_same_prompt else f"{number} ".ljust(pattern.prompt_chars, "x")
    asked = {"model": model, "prompt": prompt[: max(1, pattern.prompt_chars)], "stream": pattern.is_streamed}
    if pattern.is_same_prompt:
        asked["prompt"] = prompt
    if pattern.is_streamed:
        asked["stream_options"] = {"include_usage": True}
    if pattern.path == "/tokenize":
        asked.pop("stream")
    return orjson.dumps(asked | pattern.body)


def run_beside(pattern: Pattern | None, roles: Iterable[str], *, num_requests: int = 16, every_s: float = 0.15) -> Run:
    """The good tenant's requests, beside the hostile one if there is one. Everything is given back afterwards."""
    loop, run = VirtualLoop(), Run()

    async def main() -> None:
        async with tenant_stack(loop, roles) as (app, stack):
            hostile = asyncio.create_task(hostile_tenant(app, run, pattern)) if pattern is not None else None
            await good_tenant(app, run, num_requests, every_s)
            if hostile is not None:
                hostile.cancel()
                await asyncio.gather(hostile, return_exceptions=True)
            async with asyncio.timeout(30.0):
                await _until(lambda: all(worker.is_clean for worker in stack.workers.values()))

    run_virtually(loop, main())
    return run


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # on virtual time
        await asyncio.sleep(0.01)


def slots_in_use(roles: Iterable[str], *, num_requests: int, num_output_tokens: int) -> tuple[int, int]:
    """Of the worker that decodes, while requests wait in line: slots over all of its steps, and those that decode."""
    loop, seen = VirtualLoop(), []

    async def main() -> None:
        async with tenant_stack(loop, roles) as (app, stack):
            scheduler, status = list(stack.workers.values())[-1].scheduler, stack.gateways[0].dispatcher.status
            planned = scheduler.plan

            def plan(now_ns: int, costs: StepCosts = UNKNOWN_COSTS) -> StepPlan | None:
                step = planned(now_ns, costs)
                if step is not None and sum(line.num_waiting for line in status().lines):
                    seen.append(scheduler.load().num_running)
                return step

            scheduler.plan = plan  # type: ignore[method-assign]
            asks = {"model": MODEL, "max_tokens": num_output_tokens, "ignore_eos": True}
            bodies = [orjson.dumps(asks | {"prompt": f"{number} ".ljust(24, "y")}) for number in range(num_requests)]
            await asyncio.gather(*(call(app, "good", "/v1/completions", body, {}) for body in bodies))

    run_virtually(loop, main())
    full = seen[next(i for i, num in enumerate(seen) if num == NUM_SLOTS) :]
    return NUM_SLOTS * len(full), sum(full)


def probes(roles: Iterable[str], body: dict[str, Any], *, after_good: bool) -> list[tuple[int, str, float]]:
    """What the hostile tenant sees of the good one's prompts, asked one by one: cached tokens, text, seconds."""
    loop, run, seen = VirtualLoop(), Run(), []

    async def main() -> None:
        async with tenant_stack(loop, roles) as (app, _):
            if after_good:
                await good_tenant(app, run, 10, 0.1)
            await asyncio.sleep(60.0 - loop.time())
            for number in range(10):
                asks = {"model": MODEL, "prompt": good_prompt(number), "stream": True, "seed": 1} | GOOD_BODY | body
                answer = await call(app, "hostile", "/v1/completions", orjson.dumps(asks), {})
                took_s = answer.chunks[-1][0] - answer.asked_at_s
                seen.append(
                    (answer.num_cached_tokens(), "".join(text for _, text in answer.tokens()), round(took_s, 3))
                )

    run_virtually(loop, main())
    return seen


@dataclass(frozen=True, slots=True)
class AskedWhenFull:
    more: Answer  # one more of the hostile tenant, whose streams hold every slot
    refused_after_s: float
    good: Answer  # the other tenant's


def asked_when_full(roles: Iterable[str], num_output_tokens: int) -> AskedWhenFull:
    """One more request of a tenant whose streams fill every slot, and one of another tenant."""
    loop = VirtualLoop()

    def body(num_tokens: int, *, is_streamed: bool) -> bytes:
        asks = {"model": MODEL, "prompt": "go on", "max_tokens": num_tokens, "ignore_eos": True, "stream": is_streamed}
        return orjson.dumps(asks)

    async def main() -> AskedWhenFull:
        async with tenant_stack(loop, roles) as (app, _):
            seen: list[Answer] = []
            endless = body(num_output_tokens, is_streamed=True)
            tasks = [
                asyncio.create_task(call(app, "hostile", "/v1/completions", endless, {}, seen=seen))
                for _ in range(NUM_SLOTS)
            ]
            await _until(lambda: sum(1 for answer in seen if answer.tokens()) == NUM_SLOTS)
            more = await call(app, "hostile", "/v1/completions", body(4, is_streamed=False), {})
            refused_after_s = loop.time() - more.asked_at_s
            good = await call(app, "good", "/v1/completions", body(4, is_streamed=False), {})
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return AskedWhenFull(more, refused_after_s, good)

    found: AskedWhenFull = run_virtually(loop, main())
    return found


REFUSED = ({"max_tokens": 0}, {"prompt": "x" * 9000}, {"n": 10**9}, {"model": "other"}, {"priority": -5})


def refusals(*, beside_good: bool) -> tuple[list[tuple[int, str, dict[str, str]]], str]:
    """What the hostile tenant is told of requests that cannot be served, and the text of the metrics afterwards."""
    loop, run, metrics, seen = VirtualLoop(), Run(), GatewayMetrics([MODEL]), []

    async def main() -> str:
        async with tenant_stack(loop, ("unified",), metrics) as (app, stack):
            if beside_good:
                await good_tenant(app, run, 4, 0.1)
            for fields in REFUSED:
                body = orjson.dumps({"model": MODEL, "prompt": "go on"} | fields)
                answer = await call(app, "hostile", "/v1/completions", body, {"x-request-id": "mine"})
                seen.append((answer.status, answer.text, answer.headers))
            return metrics.render({MODEL: stack.gateways[0].dispatcher.status()})[0].decode()

    text: str = run_virtually(loop, main())
    return seen, text
