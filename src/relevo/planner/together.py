"""One planner over several gateways: the first of those that hear each other plans, by the requests of all of them.

Each tells what its window holds when it is asked. A gateway that is heard and does not answer is not known, so nothing
is done; one that is gone has no requests. The others do what the first one says by doing nothing, and show its plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import msgspec

from relevo.planner.window import NUM_SAMPLES, Window
from relevo.policy.scaling.demand import Demand, Sample, strata
from relevo.policy.scaling.rhythm import Rhythm


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway says of its last minute, and, if it plans, its plan. Rows: prompt, answer, cached tokens."""

    span_s: float
    num_requests: int
    requests_per_s: float
    rows: tuple[tuple[int, int, int], ...]  # none: no answer has ended
    longest_tokens: int
    burstiness: float
    num_judged: int
    attained: float | None
    num_waiting: int = 0  # in line
    rhythm: tuple[float, ...] = ()  # of bursts, see Rhythm; none: even
    num_kinds: int = 0  # of traffic so far
    plan: dict[str, Any] | None = None

    @classmethod
    def of(cls, window: Window, plan: dict[str, Any] | None) -> Telling:
        demand = window.demand
        return cls(
            span_s=window.span_s,
            num_requests=window.num_requests,
            requests_per_s=demand.requests_per_s if demand else window.num_requests / window.span_s,
            rows=tuple((s.num_prompt_tokens, s.num_output_tokens, s.cached[0]) for s in demand.samples)
            if demand
            else (),
            longest_tokens=demand.longest_tokens if demand else 1,
            burstiness=demand.burstiness if demand else 1.0,
            num_judged=window.num_judged,
            attained=window.attained,
            num_waiting=demand.num_waiting if demand else 0,
            rhythm=demand.rhythm.rates if demand and demand.rhythm else (),
            num_kinds=window.num_kinds,
            plan=plan,
        )


@dataclass(slots=True, kw_only=True)
class Together:
    """`ask`: what each other gateway answers about this model, None where it does not. `connected`: those heard."""

    gateway_id: str
    ask: Callable[[], Awaitable[Mapping[str, bytes | None]]]
    connected: Callable[[], frozenset[str]]
    leader: str = ""  # as of the last round
    leaders_plan: dict[str, Any] | None = None
    unknown: str = ""  # who did not answer; empty: all did
    _told: dict[str, Telling] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        return self.leader == self.gateway_id

    async def hear(self) -> None:
        """One round: who is there, who plans, and what each has seen."""
        answers, there = await self.ask(), self.connected()
        self.leader = min([self.gateway_id, *there])
        self._told, missing = {}, []
        for name in sorted(there):
            telling = _decoded(answers.get(name))
            if telling is None:
                missing.append(name)
            else:
                self._told[name] = telling
        self.unknown = f"{', '.join(missing)} has not said what came in there" if missing else ""
        leading = self._told.get(self.leader)
        self.leaders_plan = leading.plan if leading is not None else None

    def whole(self, own: Window) -> Window:
        """What came in through all of them."""
        return merged([Telling.of(own, None), *(self._told[name] for name in sorted(self._told))])


def merged(tellings: list[Telling]) -> Window:
    """As if all requests had come in through one gateway; samples are taken from each by its requests."""
    num_requests = sum(each.num_requests for each in tellings)
    judged = [(each.num_judged, each.attained) for each in tellings if each.attained is not None]
    num_judged = sum(number for number, _ in judged)
    known = [each for each in tellings if each.rows]
    demand = None
    if known:
        num_known = sum(each.num_requests for each in known)
        samples: list[Sample] = []
        for each in known:
            share = max(1, round(NUM_SAMPLES * each.num_requests / max(1, num_known)))
            rows = strata([row[0] for row in each.rows], share)
            samples += [Sample(prompt, answer, (cached,)) for prompt, answer, cached in (each.rows[r] for r in rows)]
        demand = Demand(
            requests_per_s=sum(each.requests_per_s for each in tellings),
            samples=tuple(samples),
            longest_tokens=max(each.longest_tokens for each in known),
            burstiness=max(each.burstiness for each in known),
            num_waiting=sum(each.num_waiting for each in known),
            rhythm=_rhythm(known),
        )
    return Window(
        span_s=fmean(each.span_s for each in tellings),
        num_requests=num_requests,
        demand=demand,
        num_judged=num_judged,
        attained=sum(number * (part or 0.0) for number, part in judged) / num_judged if num_judged else None,
        num_kinds=sum(each.num_kinds for each in tellings),
    )


def _rhythm(tellings: list[Telling]) -> Rhythm | None:
    """Of the one through which most come of those that have bursts: they are of the same clients."""
    bursty = [each for each in tellings if each.rhythm and min(each.rhythm) >= 0.0 and sum(each.rhythm) > 0.0]
    return Rhythm(max(bursty, key=lambda each: each.num_requests).rhythm) if bursty else None


def encode(telling: Telling) -> bytes:
    return msgspec.json.encode(telling)


def _decoded(body: bytes | None) -> Telling | None:
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=Telling)
    except msgspec.MsgspecError:  # of another release
        return None
