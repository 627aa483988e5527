"""Traffic that changes its kind: stretches of time, each with its own lengths, sessions and rate, one after the other.

`FIVE` are the kinds against which ways of sharing the work are compared: each of them is right for another machine or
another hour. A rate is the caller's, since it belongs to a machine: `Phase.at` takes sessions per second, `scaled`
makes all lengths shorter for a smaller one. The same seed gives the same requests. Knows no clock and no server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from relevo.workload.generated import generate
from relevo.workload.lengths import FixedLength, Lengths, LognormalLengths, UniformLengths
from relevo.workload.requests import Workload, WorkloadRequest
from relevo.workload.sessions import SessionShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of one kind of traffic. In the middle of each `burst_every_s`, `burst_s` seconds bring `burst` times as
    many sessions, and the rest so many fewer that the mean stays."""

    name: str
    shape: SessionShape
    seconds: float = 600.0
    sessions_per_s: float = 1.0  # that begin; each brings `num_turns` requests
    burst: float = 1.0
    burst_s: float = 0.0
    burst_every_s: float = 0.0  # 0: there are none

    def at(self, sessions_per_s: float, seconds: float | None = None) -> Phase:
        return replace(self, sessions_per_s=sessions_per_s, seconds=self.seconds if seconds is None else seconds)

    def scaled(self, factor: float) -> Phase:
        """All lengths so many times as long."""
        shape = self.shape
        return replace(
            self,
            shape=replace(
                shape,
                system_tokens=_scaled(shape.system_tokens, factor),
                turn_tokens=_scaled(shape.turn_tokens, factor),
                output_tokens=_scaled(shape.output_tokens, factor),
            ),
        )

    def rate_at(self, second: float) -> float:
        """Sessions per second that begin then, seconds after the phase began."""
        if not self.burst_every_s:
            return self.sessions_per_s
        part = self.burst_s / self.burst_every_s
        calm = self.sessions_per_s / (1.0 - part + part * self.burst)
        place = second % self.burst_every_s - (self.burst_every_s - self.burst_s) / 2
        return calm * (self.burst if 0.0 <= place < self.burst_s else 1.0)

    def starts(self, rng: Random) -> Iterator[float]:
        """When sessions begin: Poisson, by thinning the busiest rate."""
        peak = max(self.rate_at(0.0), self.rate_at(self.burst_every_s / 2))
        at_s = rng.expovariate(peak)
        while at_s < self.seconds:
            if rng.random() * peak < self.rate_at(at_s):
                yield at_s
            at_s += rng.expovariate(peak)


def _shape(
    turns: Lengths, system: int, turn: Lengths, output: Lengths, num_groups: int = 1, gap_s: float = 0.0
) -> SessionShape:
    return SessionShape(
        num_turns=turns,
        system_tokens=FixedLength(system),
        turn_tokens=turn,
        output_tokens=output,
        num_groups=num_groups,
        mean_gap_s=gap_s,
    )


_IDS_OF_A_PHASE = 10**9  # more than any has
_ONE = FixedLength(1)
# All arbitrary, after public traces: code completion, long answers, coding agents with tools, people who chat.
INPUT_HEAVY = Phase(
    name="input-heavy", shape=_shape(_ONE, 16, LognormalLengths(1600, 1.8), LognormalLengths(25, 1.6), 4096)
)
OUTPUT_HEAVY = Phase(
    name="output-heavy", shape=_shape(_ONE, 16, LognormalLengths(150, 1.6), LognormalLengths(350, 1.5), 4096)
)
AGENTS = Phase(
    name="agents",
    shape=_shape(UniformLengths(4, 12), 1200, LognormalLengths(300, 1.8), LognormalLengths(70, 1.6), 8, 1.0),
)
CHAT = Phase(
    name="chat",
    shape=_shape(UniformLengths(1, 6), 200, LognormalLengths(120, 1.8), LognormalLengths(180, 1.6), 8, 6.0),
)
BURST = Phase(
    name="burst",
    shape=_shape(_ONE, 64, LognormalLengths(700, 1.8), LognormalLengths(120, 1.6), 4096),
    burst=10.0,
    burst_s=20.0,
    burst_every_s=200.0,
)
FIVE = (INPUT_HEAVY, OUTPUT_HEAVY, AGENTS, CHAT, BURST)


def phases_workload(phases: Sequence[Phase], seed: int, *, block_size: int = 16, most_tokens: int = 8192) -> Workload:
    """All phases, one after the other. First turns have their time, later ones wait for the answer before them, so a
    session may end in the next phase. `client` names the phase. Sessions of one phase share its system prompts.

    `most_tokens`: of a prompt and its answer; a session ends before the turn that would be longer.
    """
    firsts: list[tuple[float, list[WorkloadRequest]]] = []
    begins_s = 0.0
    for place, phase in enumerate(phases):
        arrivals, lengths = Random(f"{seed} {place} arrivals"), Random(f"{seed} {place} lengths")
        sessions = _sessions(phase, lengths, block_size, most_tokens)
        firsts += [(begins_s + at_s, _named(next(sessions), place, phase.name)) for at_s in phase.starts(arrivals)]
        begins_s += phase.seconds
    firsts.sort(key=lambda first: first[0])
    return Workload(requests=_numbered(firsts))


def spans(phases: Sequence[Phase]) -> Mapping[str, tuple[float, float]]:
    """Begin and end of each phase by the name that its requests have, in seconds."""
    found, begins_s = dict[str, tuple[float, float]](), 0.0
    for place, phase in enumerate(phases):
        found[f"{place}-{phase.name}"] = (begins_s, begins_s + phase.seconds)
        begins_s += phase.seconds
    return found


def _sessions(phase: Phase, rng: Random, block_size: int, most_tokens: int) -> Iterator[list[WorkloadRequest]]:
    session: list[WorkloadRequest] = []
    for request in generate(phase.shape, rng, block_size):
        if request.turn == 0 and session:
            yield _short(session, most_tokens)
            session = []
        session.append(request)


def _short(session: list[WorkloadRequest], most_tokens: int) -> list[WorkloadRequest]:
    """The turns that fit; a first turn that does not is cut."""
    fits = [each for each in session if each.num_prompt_tokens + each.num_output_tokens <= most_tokens]
    if fits and fits[0].turn == 0:
        return fits
    first = session[0]
    output = min(first.num_output_tokens, most_tokens // 2)
    prompt = most_tokens - output
    return [
        replace(
            first,
            num_output_tokens=output,
            num_prompt_tokens=prompt,
            hash_ids=tuple(first.hash_ids)[: prompt // first.hash_block_size],
        )
    ]


def _named(session: list[WorkloadRequest], place: int, kind: str) -> list[WorkloadRequest]:
    """No two phases share content."""
    name, first_id = f"{place}-{kind}", place * _IDS_OF_A_PHASE
    return [
        replace(
            each,
            client=name,
            session_id=f"{name} {each.session_id}",
            hash_ids=[first_id + hash_id for hash_id in each.hash_ids],
        )
        for each in session
    ]


def _numbered(firsts: Sequence[tuple[float, list[WorkloadRequest]]]) -> list[WorkloadRequest]:
    """First turns in the order of their times, later ones behind all of them."""
    rows, later = count(), list[WorkloadRequest]()
    requests, new_rows = list[WorkloadRequest](), dict[str, int]()
    for at_s, session in firsts:
        row = next(rows)
        new_rows[str(session[0].session_id)] = row
        requests.append(replace(session[0], row=row, arrived_at_s=at_s))
        later += session[1:]
    for each in later:
        row, parent = next(rows), new_rows[str(each.session_id)]
        requests.append(replace(each, row=row, parent=parent))
        new_rows[str(each.session_id)] = row
    return requests


def _scaled(lengths: Lengths, factor: float) -> Lengths:
    match lengths:
        case FixedLength():
            return FixedLength(max(1, round(lengths.num_tokens * factor)))
        case UniformLengths():
            return UniformLengths(max(1, round(lengths.low * factor)), max(1, round(lengths.high * factor)))
        case LognormalLengths():
            return LognormalLengths(max(1.0, lengths.median * factor), lengths.spread)
        case _:
            raise ValueError(f"lengths of {type(lengths).__name__} cannot be scaled")
