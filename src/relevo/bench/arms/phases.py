"""The load of one arm: phases of open-loop traffic without a pause between them, and what the machine did meanwhile.

Prompts are made before the clock starts. While requests arrive, roles of the workers and processor time of the load
generator and of the server are looked at. A server that ends in the middle ends the measurement: what is left of it
would be the result of no arm.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from relevo.bench.arms.served import Served
from relevo.bench.client import OpenAIClient
from relevo.bench.load import Send, run_closed_loop, run_open_loop
from relevo.bench.overload.report import REJECTIONS, capacity_per_s
from relevo.bench.process_time import cpu_s, process_tree
from relevo.bench.prompt_source import PromptSource
from relevo.bench.records import ClientRecord, Endpoint, Outcome, PlannedRequest
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import Progress
from relevo.workload.open_loop import Scale, open_loop
from relevo.workload.phases import Phase as Traffic
from relevo.workload.requests import WorkloadRequest

EXTRA: dict[str, Any] = {"ignore_eos": True, "temperature": 0.0}
LOOK_S = 0.25  # between looks at roles; arbitrary
DRAIN_S = 60.0  # after the last arrival; what has not ended then is counted as unfinished. Arbitrary
_OFFSET = 31  # between the content of rounds; more than a run has phases
_SESSIONS_OF_A_CLIENT = 2  # where clients wait for answers: the others pause. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kind of traffic at a rate for a time. `is_warm_up`: the begin of the phase that follows, and of its traffic; it
    is marked, and counts for nothing."""

    name: str
    kind: Traffic
    requests_per_s: float
    seconds: float
    is_warm_up: bool = False


@dataclass(slots=True, kw_only=True)
class ArmRun:
    """Of one arm in one round. `requests[i]`: of phase i, by arrival."""

    phases: Sequence[Phase]
    requests: list[list[ClientRecord]]
    start_ns: int = 0
    roles: list[tuple[float, dict[str, str]]] = field(default_factory=list)  # seconds since the start, at each change
    generator_cpu: list[float] = field(default_factory=list)  # of one core, in each phase
    server_cpu: list[float] = field(default_factory=list)
    drain_s: float = 0.0
    plan: Any = None  # of /v1/plan at the end, if there is one

    def to_json(self, slo: Slo) -> dict[str, Any]:
        return {
            "phases": [
                {
                    "name": phase.name,
                    "kind": phase.kind.name,
                    "requests_per_s": phase.requests_per_s,
                    "seconds": phase.seconds,
                    "is_warm_up": phase.is_warm_up,
                    "generator_cpu": generator,
                    "server_cpu": server,
                    "requests": [{**one.to_json(self.start_ns), "met": _met(one, slo)} for one in records],
                }
                for phase, records, generator, server in zip(
                    self.phases, self.requests, self.generator_cpu, self.server_cpu, strict=True
                )
            ],
            "roles": self.roles,
            "drain_s": self.drain_s,
            "plan": self.plan,
        }


async def run_phases(
    served: Served, phases: Sequence[Phase], seed: int, scale: Scale, progress: Progress, name: str
) -> ArmRun:
    """Raises StartError if the server ends meanwhile, SettingsError for requests that it cannot take."""
    async with OpenAIClient(served.url) as client:
        send, prompts, longest = await _target(client, seed)
        progress.begin(f"{name}: making prompts")
        planned: list[PlannedRequest] = []
        phase_of: list[int] = []
        for number, start_s, one in _arrivals(phases, seed, scale):
            planned.append(await _planned(prompts, one, start_s, longest))
            phase_of.append(number)
        end_s = sum(phase.seconds for phase in phases)
        progress.begin_for(name, end_s)
        run = ArmRun(phases=phases, requests=[[] for _ in phases])
        records: list[ClientRecord] = []
        run.start_ns = time.monotonic_ns()
        watch = asyncio.create_task(_watch(served, run))
        load = asyncio.create_task(_whole_time(run_open_loop(planned, send, records), end_s))
        try:
            async with asyncio.timeout(end_s + DRAIN_S):
                await asyncio.wait([watch, load], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            progress.say(f"{name}: requests were under way {DRAIN_S:.0f} s after the last had come; they are left")
        finally:
            await _end(load, watch)
        run.drain_s = max(0.0, (time.monotonic_ns() - run.start_ns) / 1e9 - end_s)
        if records and records[0].due_at_ns is not None:  # as the load itself counts
            run.start_ns = records[0].due_at_ns - round((planned[0].due_at_s or 0.0) * 1e9)
        for record in records:
            run.requests[phase_of[record.index]].append(record)
        status, plan = await served.operator.get_json("/v1/plan")
        run.plan = plan if status == 200 else None
    return run


async def sustained_per_s(
    served: Served,
    kind: Traffic,
    clients: int,
    seconds: float,
    seed: int,
    scale: Scale,
    progress: Progress,
    name: str,
) -> float:
    """Requests a second with so many clients that wait for their answers. Raises StartError, SettingsError."""
    async with OpenAIClient(served.url) as client:
        send, prompts, longest = await _target(client, seed)
        made = open_loop(
            kind,
            8.0 * clients,  # arbitrary: more than it can do; times do not count here
            max(60.0, seconds),
            seed * _OFFSET - 1,
            scale=scale,
            num_sessions=_SESSIONS_OF_A_CLIENT * clients,
        )
        records: list[ClientRecord] = []

        async def each() -> Any:
            for one in made:
                yield await _planned(prompts, one, 0.0, longest)

        progress.begin_for(name, seconds)
        start_ns = time.monotonic_ns()
        await run_closed_loop(each(), send, records, concurrency=clients, duration_s=seconds)
        rate = capacity_per_s(records, start_ns, seconds)
    failed = next((one for one in records if one.error is not None and one.error not in REJECTIONS), None)
    if not rate or failed is not None:
        failed = failed or next((one for one in records if one.error is not None), None)
        why = f"{failed.error}: {failed.error_detail}" if failed is not None else "none was sent"
        raise StartError(f"{name}: a request failed while the capacity was measured: {why}")
    return rate


async def _target(client: OpenAIClient, seed: int) -> tuple[Send, PromptSource, int | None]:
    model, card = await client.pick_card(None)
    prompts = await PromptSource.open(client, model, Endpoint.COMPLETIONS, seed=seed)

    async def send(planned: PlannedRequest, record: ClientRecord) -> None:
        await client.stream(planned, record, model=model, endpoint=Endpoint.COMPLETIONS, extra=EXTRA)

    return send, prompts, card.get("max_model_len")


async def _planned(prompts: PromptSource, one: WorkloadRequest, start_s: float, longest: int | None) -> PlannedRequest:
    if longest is not None and one.num_prompt_tokens + one.num_output_tokens > longest:
        raise SettingsError(
            f"a request of {one.num_prompt_tokens} + {one.num_output_tokens} tokens does not fit into the server's "
            f"{longest}; make prompts shorter with --prompt-scale"
        )
    prompt, num_tokens = await prompts.make(one.num_prompt_tokens, one)
    due_at_s = start_s + (one.arrived_at_s or 0.0)
    return PlannedRequest(
        prompt=prompt, num_input_tokens=num_tokens, max_tokens=one.num_output_tokens, due_at_s=due_at_s
    )


def _arrivals(phases: Sequence[Phase], seed: int, scale: Scale) -> Iterator[tuple[int, float, WorkloadRequest]]:
    """By time: the phase in which each arrives, and where its times count from. A warm-up is the begin of what follows:
    its sessions go on."""
    start_s, number = 0.0, 0
    while number < len(phases):
        has_lead = phases[number].is_warm_up and number + 1 < len(phases)
        last = number + 1 if has_lead else number
        phase = phases[last]
        lead_s = phases[number].seconds if has_lead else 0.0
        made = open_loop(phase.kind, phase.requests_per_s, lead_s + phase.seconds, seed * _OFFSET + last, scale=scale)
        for one in made:
            yield (number if (one.arrived_at_s or 0.0) < lead_s else last), start_s, one
        start_s += lead_s + phase.seconds
        number = last + 1


async def _watch(served: Served, run: ArmRun) -> None:
    """Roles at each change, and processor time of each phase. Raises StartError if the server has ended."""
    ends_s, number = run.phases[0].seconds, 0
    before_s, generator_s, server_s = 0.0, time.process_time(), _server_cpu_s(served)
    while True:
        now_s = (time.monotonic_ns() - run.start_ns) / 1e9
        if (status := served.process.returncode) is not None:
            raise StartError(f"the server ended with status {status} in the middle; see {served.process.log_path}")
        if number < len(run.phases) and now_s >= ends_s:
            generator_now_s, server_now_s = time.process_time(), _server_cpu_s(served)
            run.generator_cpu.append((generator_now_s - generator_s) / (now_s - before_s))
            run.server_cpu.append(max(0.0, server_now_s - server_s) / (now_s - before_s))
            before_s, generator_s, server_s = now_s, generator_now_s, server_now_s
            number += 1
            ends_s += run.phases[number].seconds if number < len(run.phases) else 0.0
        with contextlib.suppress(StartError):  # a full machine may answer late
            roles = await served.operator.roles()
            if not run.roles or run.roles[-1][1] != roles:
                run.roles.append((now_s, roles))
        await asyncio.sleep(LOOK_S)


async def _whole_time(load: Coroutine[Any, Any, None], seconds: float) -> None:
    """The load, and not less than its time: a phase whose last answer comes early is as long as any other."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load)
        tasks.create_task(asyncio.sleep(seconds + 2 * LOOK_S))


async def _end(load: asyncio.Task[None], watch: asyncio.Task[None]) -> None:
    """Both, raising what the watch found."""
    for task in (load, watch):
        if not task.done():
            task.cancel()
    found = await asyncio.gather(load, watch, return_exceptions=True)
    for outcome in reversed(found):
        if isinstance(outcome, Exception):
            raise outcome


def _server_cpu_s(served: Served) -> float:
    try:
        return cpu_s(process_tree(served.process.pid))
    except OSError:  # a process of it has just ended
        return 0.0


def _met(record: ClientRecord, slo: Slo) -> bool:
    return record.outcome is Outcome.COMPLETED and record.meets(slo)
