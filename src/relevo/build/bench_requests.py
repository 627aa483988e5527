"""What it costs to keep requests: writes into the ring, bytes of an entry, and the marks of a token.

Composition: a benchmark knows no gateway, and this measures a part of one. Made-up requests over a handoff between two
workers, as they are on a running server. Times are CPU time of this thread, so a busy machine changes them little.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast

from rich.table import Table

from relevo.bench.html.figures import Axis, Bar, Bars
from relevo.bench.html.page import Report
from relevo.core.baton import PrefillFacts
from relevo.core.events import StepCosts, StepCounters, WorkerLoad
from relevo.core.handoff import Link
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.outcome import COMPLETE, RequestEnd
from relevo.core.request import EngineRequest, SamplingParams
from relevo.core.timeline import Gap, Leg, Timeline
from relevo.gateway.requests.history import RequestFilter, RequestHistory, SlowBy
from relevo.gateway.requests.kept import LiveRequest
from relevo.gateway.requests.report import report_of
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.marks import told
from relevo.policy.handoff import machine
from relevo.policy.handoff.state import HandoffLimits
from relevo.telemetry.progress import Progress
from relevo.wire import messages as wire

NUM_KEPT = 10_000
TITLE = "What it costs to keep requests"
_PREFILL, _DECODE = WorkerRef(WorkerId("prefill-0"), 1), WorkerRef(WorkerId("decode-0"), 1)
_COSTS = StepCosts(base_s=0.012, per_token_s=0.0004, per_kv_token_s=1e-7)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingCost:
    num_requests: int
    writes_per_s: float  # opened, read, ended and kept
    us_per_request: float
    bytes_per_request: float  # of the ring, when it is full
    marked_bytes: float  # of these, marks
    ns_per_token: float  # marks of an output that changes nothing else
    us_per_find: float
    ms_per_slowest: float  # of all that are kept
    us_per_report: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Run:
    request: EngineRequest
    timeline: Timeline
    ended: RequestEnd | None = COMPLETE
    num_prompt_tokens: int = 900
    num_cached_tokens: int = 512
    num_output_tokens: int = 180


def measure_keeping(num_requests: int, progress: Progress) -> KeepingCost:
    """Twice as many as are kept at least, so that the ring is full and forgets."""
    history = RequestHistory(NUM_KEPT)
    runs = [_run(number) for number in range(num_requests)]
    gc.collect()
    progress.begin("keeping requests", num_requests)
    began_ns = time.thread_time_ns()
    for number, run in enumerate(runs):
        _keep(history, number, run)
    took_ns = time.thread_time_ns() - began_ns
    name = f"chatcmpl-x{num_requests - 1}"
    kept = history.find(name, "acme", 0)
    assert kept is not None
    where = RequestFilter(tenant="acme")
    return KeepingCost(
        num_requests=num_requests,
        writes_per_s=num_requests / (took_ns / 1e9),
        us_per_request=took_ns / 1e3 / num_requests,
        bytes_per_request=_bytes_per_request(),
        marked_bytes=float(len(kept.marks)),
        ns_per_token=_token_ns(),
        us_per_find=_took_us(lambda: history.find(name, "acme", 0), 2_000),
        ms_per_slowest=_took_us(lambda: history.slowest(SlowBy.E2E, 10, where, 0), 20) / 1e3,
        us_per_report=_took_us(lambda: report_of(kept), 200),
    )


def _keep(history: RequestHistory, number: int, run: _Run) -> None:
    live = LiveRequest(
        x_request_id=f"x{number}",
        tenant="acme",
        key_id="key-1",
        path="/v1/chat/completions",
        accepted_at_ns=run.timeline.accepted_at_ns,
        arrived_at_unix_ms=1_796_000_000_000 + number,
    )
    history.open(live)
    live.began("model", f"chatcmpl-x{number}", (run,), 1, is_streamed=True)
    history.began(live)
    history.close(live, 200, run.timeline.accepted_at_ns + 10**9)


def _bytes_per_request() -> float:
    history = RequestHistory(NUM_KEPT)
    gc.collect()
    tracemalloc.start()
    for number in range(2_000):
        _keep(history, number, _run(number))
    gc.collect()
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return num_bytes / history.num_ended


def _token_ns() -> float:
    request = _run(0).request
    handoff = machine.start(request.request_id, num_prompt_tokens=900, num_samples=1, limits=HandoffLimits())
    in_flight = InFlightRequest(
        request=request, sink=cast(Any, None), handoff=handoff, end_with=lambda in_flight, end: None
    )
    in_flight.leg = Leg(routed_at_ns=0, decode=_DECODE, reason="")
    steps = [wire.StepOutputs((), WorkerLoad(costs=_COSTS), _counters(number)) for number in range(1_000)]

    def mark() -> None:
        for number, step in enumerate(steps):
            told(in_flight, step, number)

    return min(_took_us(mark, 20) for _ in range(3))  # microseconds of a thousand tokens: nanoseconds of one


def _took_us(work: Callable[[], object], times: int) -> float:
    began_ns = time.thread_time_ns()
    for _ in range(times):
        work()
    return (time.thread_time_ns() - began_ns) / 1e3 / times


def _counters(number: int) -> StepCounters:
    return StepCounters(
        num_steps=10_000 + number,
        busy_s=120.5 + number,
        num_prefill_tokens=900_000 + number,
        num_generation_tokens=700_000 + number,
        num_prefix_queries=1_000_000,
        num_prefix_hits=400_000,
        largest_step_tokens=512,
        step_budget_tokens=512,
        product_ops=1e15,
        read_bytes=1e13,
    )


def _run(number: int) -> _Run:
    request = EngineRequest(
        request_id=RequestId(uuid.uuid4().hex),
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=180, seed=0),
    )
    begin_ns = 5_000_000_000_000 + number * 1_000_003
    load = WorkerLoad(
        num_running=12, num_free_blocks=4_000, num_held_blocks=1_000, num_total_blocks=5_000, costs=_COSTS
    )
    leg = Leg(
        routed_at_ns=begin_ns + 2_000_000,
        decode=_DECODE,
        reason="fastest: 310 ms to the first token, 512 tokens cached",
        is_split=True,
        num_hit_tokens=512,
        decode_load=load,
        granted_at_ns=begin_ns + 3_000_000,
        prefill=_PREFILL,
        prefill_reason="fastest: 300 ms to the first token, 512 tokens cached; 388 tokens to compute",
        prefill_load=load,
        asked_counters=_counters(number),
        prompt_counters=_counters(number + 5),
        prompt_costs=_COSTS,
        link=Link.MEMORY,
        first_output_at_ns=begin_ns + 300_000_000,
        facts=PrefillFacts(
            worker_id=WorkerId("prefill-0"),
            num_prompt_tokens=900,
            num_cached_tokens=512,
            queue_s=0.0213,
            prefill_s=0.2712,
            num_chunks=2,
        ),
        handed_over_at_ns=begin_ns + 302_000_000,
        decode_started_at_ns=begin_ns + 302_100_000,
        started_counters=_counters(number),
        decode_output_at_ns=begin_ns + 330_000_000,
        first_counters=_counters(number),
        last_counters=_counters(number + 180),
        last_costs=_COSTS,
        transferred_bytes=25_000_000,
        transfer_s=0.0011,
        last_output_at_ns=begin_ns + 3_000_000_000,
        ended_at_ns=begin_ns + 3_000_000_000,
    )
    timeline = Timeline(
        accepted_at_ns=begin_ns,
        prepared_at_ns=begin_ns + 1_000_000,
        num_ahead=2,
        let_in_at_ns=begin_ns + 1_900_000,
        legs=[leg],
        worst_gap=Gap(
            from_ns=begin_ns + 400_000_000,
            to_ns=begin_ns + 470_000_000,
            worker=_DECODE,
            before=_counters(number + 5),
            after=_counters(number + 6),
            load=load,
        ),
        num_outputs=180,
        last_output_at_ns=begin_ns + 3_000_000_000,
        first_written_at_ns=begin_ns + 300_200_000,
        last_written_at_ns=begin_ns + 3_000_200_000,
        ended_at_ns=begin_ns + 3_001_000_000,
    )
    return _Run(request, timeline)


def keeping_page(cost: KeepingCost | None) -> Report:
    if cost is None:
        return Report(title=TITLE, sentence="Nothing was measured.", tables=Table(title=TITLE), figures=[])
    rows = [
        Bar("into the ring", {"CPU": cost.us_per_request}),
        Bar("explained", {"CPU": cost.us_per_report}),
        Bar("found by name", {"CPU": cost.us_per_find}),
    ]
    return Report(
        title=TITLE,
        sentence=f"{cost.writes_per_s:,.0f} requests a second are kept, in {cost.bytes_per_request:,.0f} bytes each.",
        tables=keeping_table(cost),
        figures=[Bars(title="CPU time of one request", axis=Axis(label="us"), rows=rows, unit=" us")],
    )


def keeping_table(cost: KeepingCost) -> Table:
    table = Table(title=TITLE)
    table.add_column("what")
    table.add_column("", justify="right")
    for what, told_value in (
        ("requests written into the ring", f"{cost.writes_per_s:,.0f} / s"),
        ("one request, from its head to the ring", f"{cost.us_per_request:.1f} us"),
        ("memory of one that is kept", f"{cost.bytes_per_request:,.0f} bytes, {cost.marked_bytes:,.0f} of them marks"),
        ("marks of one streamed token", f"{cost.ns_per_token:,.0f} ns"),
        ("one found by its name", f"{cost.us_per_find:.1f} us"),
        (f"the slowest ten of {NUM_KEPT:,}", f"{cost.ms_per_slowest:.2f} ms"),
        ("one explained", f"{cost.us_per_report:,.0f} us"),
    ):
        table.add_row(what, told_value)
    return table
