"""Timelines of made-up requests, written in seconds: what a test does not name goes as it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relevo.core.baton import PrefillFacts
from relevo.core.events import StepCosts, StepCounters, WorkerLoad
from relevo.core.handoff import Link
from relevo.core.ids import WorkerId, WorkerRef
from relevo.core.outcome import COMPLETE, RequestEnd
from relevo.core.timeline import Gap, Leg, Timeline
from relevo.policy.slowness.explain import explain
from relevo.policy.slowness.words import Explanation

PREFILL, DECODE = WorkerRef(WorkerId("prefill-0"), 1), WorkerRef(WorkerId("decode-0"), 1)
OTHER = WorkerRef(WorkerId("decode-1"), 1)
COSTS = StepCosts(base_s=0.01, per_token_s=0.0005, per_kv_token_s=0.0)
LOAD = WorkerLoad(num_free_blocks=900, num_held_blocks=100, num_total_blocks=1000, costs=COSTS)


def ns(at_s: float) -> int:
    return round(at_s * 1e9) + 1_000_000_000_000  # clocks do not begin at 0


def counters(num_steps: int = 0, num_prompt: int = 0, num_generated: int = 0) -> StepCounters:
    return StepCounters(num_steps=num_steps, num_prefill_tokens=num_prompt, num_generation_tokens=num_generated)


def facts(queue_s: float = 0.0, prefill_s: float = 0.2, prompt: int = 400, cached: int = 0) -> PrefillFacts:
    return PrefillFacts(
        worker_id=PREFILL.worker_id,
        num_prompt_tokens=prompt,
        num_cached_tokens=cached,
        queue_s=queue_s,
        prefill_s=prefill_s,
    )


def leg(at_s: float, **told: Any) -> Leg:
    """Split, routed at that time. Times are given in seconds, as `first_output_s` for `first_output_at_ns`."""
    marks = {f"{name[:-2]}_at_ns": ns(told.pop(name)) for name in list(told) if name.endswith("_s")}
    made = Leg(routed_at_ns=ns(at_s), decode=DECODE, reason="fastest", is_split=True, prefill=PREFILL)
    made.decode_load = made.prefill_load = LOAD
    for name, value in (marks | told).items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    return made


def whole_leg(at_s: float, **told: Any) -> Leg:
    """Not split: one worker does all of it."""
    return leg(at_s, **({"is_split": False, "prefill": None, "prefill_load": None} | told))


def ordinary(**told: Any) -> Timeline:
    """0.25 s to the first token of 400 prompt tokens, then 100 tokens at 10.5 ms each."""
    made = Timeline(
        accepted_at_ns=ns(0.0),
        prepared_at_ns=ns(0.002),
        let_in_at_ns=ns(0.003),
        legs=[
            leg(
                0.003,
                granted_s=0.004,
                first_output_s=0.22,
                handed_over_s=0.221,
                decode_started_s=0.221,
                decode_output_s=0.235,
                link=Link.MEMORY,
                facts=facts(),
                started_counters=counters(1000, 0, 1000),
                first_counters=counters(1001, 0, 1001),
                last_counters=counters(1099, 0, 1099),
            )
        ],
        num_outputs=100,
        first_written_at_ns=ns(0.221),
        last_output_at_ns=ns(1.25),
        last_written_at_ns=ns(1.2505),
        ended_at_ns=ns(1.251),
    )
    for name, value in told.items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    return made


def later(timeline: Timeline, by_s: float, *, after_s: float) -> Timeline:
    """All marks behind a moment come later."""

    def moved(value: Any) -> Any:
        return value + round(by_s * 1e9) if value is not None and value > ns(after_s) else value

    def marks_moved(of: Any) -> None:
        for name in [name for name in of.__slots__ if name.endswith("_at_ns")]:
            setattr(of, name, moved(getattr(of, name)))

    marks_moved(timeline)
    for each in timeline.legs:
        marks_moved(each)
    return timeline


def gap(from_s: float, to_s: float, before: StepCounters | None, after: StepCounters, **load: Any) -> Gap:
    return Gap(
        from_ns=ns(from_s), to_ns=ns(to_s), worker=DECODE, before=before, after=after, load=replace(LOAD, **load)
    )


def told(timeline: Timeline, end: RequestEnd | None = COMPLETE, **counts: int) -> Explanation:
    return explain(
        timeline,
        **({"num_prompt_tokens": 400, "num_cached_tokens": 0, "num_output_tokens": 100} | counts),  # type: ignore[arg-type]
        end=end,
    )
