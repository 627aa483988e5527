"""What a workload is, in a few numbers, for the head of a report."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.sim.reuse import offered_fraction
from relevo.workload.requests import Workload

MADE_UP = "made up"  # the source of what is no trace


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    source: str
    num_requests: int
    num_sessions: int  # of several turns
    mean_prompt_tokens: float
    mean_output_tokens: float
    longest_tokens: int
    rate_per_s: float | None  # of arrivals that wait for no answer; None: they have no span
    hash_block_size: int | None
    offered_hit_fraction: float  # of prompt tokens, in a cache without bounds that all workers share
    notes: tuple[str, ...]


def workload_facts(source: str, workload: Workload) -> WorkloadFacts:
    requests = workload.requests
    arrivals = [r.arrived_at_s for r in requests if r.arrived_at_s is not None and not r.is_closed_loop]
    span_s = max(arrivals) - min(arrivals) if arrivals else 0.0
    return WorkloadFacts(
        source=source,
        num_requests=len(requests),
        num_sessions=len({r.session_id for r in requests if r.parent is not None and r.session_id is not None}),
        mean_prompt_tokens=sum(r.num_prompt_tokens for r in requests) / len(requests),
        mean_output_tokens=sum(r.num_output_tokens for r in requests) / len(requests),
        longest_tokens=max(r.num_prompt_tokens + r.num_output_tokens for r in requests),
        rate_per_s=(len(arrivals) - 1) / span_s if span_s > 0 else None,
        hash_block_size=workload.hash_block_size,
        offered_hit_fraction=offered_fraction(requests),
        notes=workload.notes,
    )
