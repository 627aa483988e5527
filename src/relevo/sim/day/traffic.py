"""The traffic of a day: long prompts in some hours, long answers in others, a burst, and a worker that dies.

Requests are those of two traces in their order (code: long prompts, short answers; conversation: the other way), at
each hour's rate; without traces they are drawn to the same means. Times are the day's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

from relevo.workload.requests import Workload, WorkloadRequest
from relevo.workload.traces.files import ReadOptions, read_trace_file

Lengths = tuple[int, int]  # tokens of prompt and answer
_DRAWN = 5000  # requests of each kind. Arbitrary


@dataclass(frozen=True, slots=True)
class Hour:
    """A stretch of the day with its requests per second of each kind."""

    name: str
    seconds: float
    code_per_s: float
    conversation_per_s: float


@dataclass(frozen=True, slots=True)
class Kinds:
    code: Sequence[Lengths]
    conversation: Sequence[Lengths]
    source: str  # in words


def trace_kinds(code: Path, conversation: Path, limit: int = _DRAWN) -> Kinds:
    """Raises SettingsError."""
    read = [read_trace_file(path, ReadOptions(limit=limit)).requests for path in (code, conversation)]
    lengths = [[(each.num_prompt_tokens, each.num_output_tokens) for each in requests] for requests in read]
    return Kinds(lengths[0], lengths[1], f"{code.name} and {conversation.name}")


def drawn_kinds(seed: int) -> Kinds:
    """Log-normal, to means near those of the Azure traces of 2023: 2,050 and 28 tokens, 1,150 and 210."""
    rng = Random(seed)

    def draw(prompt: tuple[float, float], answer: tuple[float, float]) -> list[Lengths]:
        return [(_bounded(rng.lognormvariate(*prompt)), _bounded(rng.lognormvariate(*answer))) for _ in range(_DRAWN)]

    return Kinds(draw((7.2, 0.9), (2.8, 1.0)), draw((6.7, 0.8), (5.1, 0.7)), "lengths drawn log-normally")


def _bounded(length: float) -> int:
    return max(1, min(7000, round(length)))


def workload_of(hours: Sequence[Hour], kinds: Kinds, seed: int) -> Workload:
    """Poisson arrivals of each kind in each hour."""
    rng, rows = Random(seed), list[tuple[float, Lengths]]()
    supplies: tuple[Iterator[Lengths], Iterator[Lengths]] = (cycle(kinds.code), cycle(kinds.conversation))
    start_s = 0.0
    for hour in hours:
        for supply, rate in zip(supplies, (hour.code_per_s, hour.conversation_per_s), strict=True):
            at_s = start_s + rng.expovariate(rate) if rate else start_s + hour.seconds
            while at_s < start_s + hour.seconds:
                rows.append((at_s, next(supply)))
                at_s += rng.expovariate(rate)
        start_s += hour.seconds
    rows.sort()
    return Workload(
        requests=[
            WorkloadRequest(row=row, num_prompt_tokens=prompt, num_output_tokens=answer, arrived_at_s=at_s)
            for row, (at_s, (prompt, answer)) in enumerate(rows)
        ]
    )
