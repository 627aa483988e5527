"""`relevo bench overload`: what is left of a server's goodput when more is asked of it than it can do.

First the capacity: a closed loop with as many clients as keep it busy. Then, for each multiple of it, an open loop for
`duration_s`, and without a pause `RECOVERY_LOAD` times the capacity for `recovery_s` more, which shows how soon service
is as before. Before is known: requests of the same lengths are sent in the same rhythm to the server at rest, too. The
rhythm is even, because a burst would be an overload of its own. Clients do not retry: a retry would hide what the
server did. Works against any OpenAI-compatible server.

Knows no terminal. `OverloadTest.phases` is complete at any moment, so that an interrupted test can be reported.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relevo.bench.client import OpenAIClient
from relevo.bench.load import Send, run_closed_loop, run_open_loop
from relevo.bench.overload.report import OverloadPhase, capacity_per_s
from relevo.bench.prompt_source import PromptSource
from relevo.bench.records import ClientRecord, Endpoint, PlannedRequest
from relevo.core.errors import SettingsError, StartError
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import Progress
from relevo.workload.arrivals import ArrivalKind, arrival_offsets, arrivals_until
from relevo.workload.lengths import Lengths

RECOVERY_LOAD = 0.8  # of the capacity, after the overload: what a server in good order does with ease


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadOptions:
    url: str
    model: str | None = None
    api_key: str | None = None
    endpoint: Endpoint = Endpoint.COMPLETIONS
    seed: int = 0
    input_lengths: Lengths
    output_lengths: Lengths
    multiples: tuple[float, ...]  # of the capacity
    duration_s: float = 60.0
    recovery_s: float = 10.0
    capacity_per_s: float | None = None  # None: measured
    capacity_clients: int = 64
    capacity_s: float = 15.0
    slo: Slo
    tell_slo: bool = False  # send the TTFT objective as a header
    pids: tuple[int, ...] = ()  # whose resident memory is watched

    def check(self) -> None:
        """Raises SettingsError."""
        if not self.multiples or min(self.multiples) <= 0.0:
            raise SettingsError("the multiples of the capacity must be above 0; write 1,4 for example")
        if self.slo.ttft_s is None:
            raise SettingsError("goodput needs an objective; give --slo-ttft-ms")


@dataclass(slots=True)
class OverloadTest:
    options: OverloadOptions
    model: str = ""
    capacity_per_s: float = 0.0
    phases: list[OverloadPhase] = field(default_factory=list)

    async def run(self, progress: Progress) -> None:
        """Raises StartError, Unauthorized, ModelNotFound or SettingsError."""
        options = self.options
        options.check()
        async with OpenAIClient(options.url, api_key=options.api_key) as client:
            self.model = await client.pick_model(options.model)
            prompts = await PromptSource.open(client, self.model, options.endpoint, seed=options.seed)
            send = self._sender(client, progress)
            self.capacity_per_s = options.capacity_per_s or await self._measure_capacity(prompts, send, progress)
            progress.say(f"capacity: {self.capacity_per_s:.2f} requests per second")
            for multiple in options.multiples:
                await self._overload(multiple, prompts, send, progress)

    def _sender(self, client: OpenAIClient, progress: Progress) -> Send:
        options = self.options
        extra: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
        slo_s = options.slo.ttft_s
        headers = {"x-llm-d-slo-ttft-ms": f"{slo_s * 1e3:g}"} if options.tell_slo and slo_s is not None else {}

        async def send(planned: PlannedRequest, record: ClientRecord) -> None:
            await client.stream(
                planned, record, model=self.model, endpoint=options.endpoint, extra=extra, headers=headers
            )
            progress.advance()

        return send

    async def _measure_capacity(self, prompts: PromptSource, send: Send, progress: Progress) -> float:
        options = self.options
        progress.begin_for(f"capacity, with {options.capacity_clients} clients", options.capacity_s)
        rng = random.Random(f"capacity:{options.seed}")

        async def endless() -> AsyncIterator[PlannedRequest]:
            while True:
                yield await self._plan(prompts, self._lengths(rng), None)

        records: list[ClientRecord] = []
        start_ns = time.monotonic_ns()
        await run_closed_loop(
            endless(), send, records, concurrency=options.capacity_clients, duration_s=options.capacity_s
        )
        rate = capacity_per_s(records, start_ns, options.capacity_s)
        if rate == 0.0:
            first = next((record for record in records if record.error is not None), None)
            why = f"; the first failure: {first.error}: {first.error_detail}" if first is not None else ""
            raise StartError(f"no request completed in {options.capacity_s:g} s{why}")
        return rate

    async def _overload(self, multiple: float, prompts: PromptSource, send: Send, progress: Progress) -> None:
        options = self.options
        rng = random.Random(f"overload:{options.seed}:{multiple}")
        due = self._arrivals(multiple, options.duration_s, rng)
        every_s = 1.0 / (RECOVERY_LOAD * self.capacity_per_s)
        later = [(i * every_s, self._lengths(rng)) for i in range(max(1, round(options.recovery_s / every_s)))]
        progress.begin("making prompts", len(due) + 2 * len(later), "prompts")

        async def plan(lengths: tuple[int, int], due_at_s: float) -> PlannedRequest:
            made = await self._plan(prompts, lengths, due_at_s)
            progress.advance()
            return made

        planned = [await plan(self._lengths(rng), due_at_s) for due_at_s in due]
        planned += [await plan(lengths, options.duration_s + at_s) for at_s, lengths in later]
        at_rest = [await plan(lengths, at_s) for at_s, lengths in later]
        phase = OverloadPhase(
            multiple=multiple,
            offered_per_s=multiple * self.capacity_per_s,
            duration_s=options.duration_s,
            start_ns=time.monotonic_ns(),
            rss_before_bytes=resident_bytes(options.pids),
        )
        self.phases.append(phase)
        progress.begin(f"{RECOVERY_LOAD:g} times the capacity at rest", len(at_rest), "requests")
        await run_open_loop(at_rest, send, phase.at_rest)
        progress.begin(f"{multiple:g} times the capacity, then less", len(planned), "requests")
        phase.start_ns = time.monotonic_ns()
        await run_open_loop(planned, send, phase.records)
        phase.rss_after_bytes = resident_bytes(options.pids)

    def _arrivals(self, multiple: float, duration_s: float, rng: random.Random) -> list[float]:
        offsets = arrival_offsets(ArrivalKind.POISSON, multiple * self.capacity_per_s, rng)
        return arrivals_until(offsets, duration_s)

    def _lengths(self, rng: random.Random) -> tuple[int, int]:
        """Of a prompt and of its answer, in tokens."""
        return self.options.input_lengths.draw(rng), self.options.output_lengths.draw(rng)

    async def _plan(self, prompts: PromptSource, lengths: tuple[int, int], due_at_s: float | None) -> PlannedRequest:
        prompt, num_tokens = await prompts.make(lengths[0])
        return PlannedRequest(prompt=prompt, num_input_tokens=num_tokens, max_tokens=lengths[1], due_at_s=due_at_s)


def resident_bytes(pids: Sequence[int]) -> dict[int, int]:
    """Resident memory of the processes that exist here. Source: proc(5), VmRSS."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        found.update((pid, int(line.split()[1]) * 1024) for line in lines if line.startswith("VmRSS:"))
    return found
