"""Five kinds of traffic that want their workers used differently, as requests of a stretch of time in open loop. Pure.

Live servers and simulated ones get them from here, so that both are asked for the same: lengths, sessions whose prompts
repeat what was said, and when requests arrive. Lengths are those of a large server; `Scale` makes them smaller for a
small one. Arrivals do not wait for answers: the turns of a session follow each other at the time that a client would
take for answer and pause together, whatever the server does. Knows neither clocks nor capacity: the rate is given.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from relevo.workload.arrivals import ArrivalKind, arrival_offsets, arrivals_until
from relevo.workload.history import History
from relevo.workload.lengths import FixedLength, Lengths, LognormalLengths, UniformLengths
from relevo.workload.requests import WorkloadRequest
from relevo.workload.sessions import SessionShape

STEADY = ((1.0, 1.0),)
BLOCK_SIZE = 16  # tokens per hash id: that of the server's blocks, if nothing else is said


@dataclass(frozen=True, slots=True)
class Scale:
    """Of the lengths. Small servers compute prompts slower against decoding than large ones: the two scale apart."""

    prompts: float = 1.0
    answers: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficKind:
    """`profile`: parts of the time and the multiple of the mean rate in each; weighted they make 1."""

    name: str
    words: str
    shape: SessionShape  # `mean_gap_s`: between two turns of a session, from arrival to arrival
    profile: tuple[tuple[float, float], ...] = STEADY

    def requests(
        self,
        requests_per_s: float,
        duration_s: float,
        seed: int,
        *,
        scale: Scale = Scale(),
        block_size: int = BLOCK_SIZE,
    ) -> list[WorkloadRequest]:
        """What arrives in `duration_s`, by time from 0. The same arguments give the same requests.

        Raises ValueError for a rate or time that is not positive.
        """
        rng = random.Random(f"{self.name}:{seed}")
        due_s = self.arrivals_s(requests_per_s, duration_s, rng)
        num_sessions = max(1, round(requests_per_s * self.shape.mean_gap_s))
        sessions = _Sessions(self, num_sessions, scale, block_size, rng)
        return [sessions.next(row, at_s) for row, at_s in enumerate(due_s)]

    def arrivals_s(self, requests_per_s: float, duration_s: float, rng: random.Random) -> list[float]:
        """Poisson in each part of the profile."""
        if duration_s <= 0 or requests_per_s <= 0:
            raise ValueError(f"traffic needs a time and a rate above 0, got {duration_s} s and {requests_per_s}/s")
        found: list[float] = []
        start_s = 0.0
        for part, multiple in self.profile:
            rate = multiple * requests_per_s
            until_first_s = rng.expovariate(rate)  # a part does not begin with an arrival
            offsets = arrival_offsets(ArrivalKind.POISSON, rate, rng)
            inside = arrivals_until((until_first_s + offset_s for offset_s in offsets), part * duration_s)
            found += [start_s + at_s for at_s in inside]
            start_s += part * duration_s
        return found


class _Sessions:
    """So many sessions take turns; one that is over makes room for a new one. The first ones are met in mid-course."""

    def __init__(self, kind: TrafficKind, num_sessions: int, scale: Scale, block_size: int, rng: random.Random) -> None:
        self._kind, self._scale, self._rng = kind, scale, rng
        self._fresh_ids = count(1_000_000 * (1 + sum(kind.name.encode())))  # no content of two kinds is the same
        self._systems = [History(block_size, self._fresh_ids) for _ in range(kind.shape.num_groups)]
        for system in self._systems:
            system.add(_scaled(kind.shape.system_tokens, scale.prompts, rng))
        self._num_begun = 0
        self._waiting = [self._begin(met_after=number) for number in range(num_sessions)]
        self._block_size = block_size

    def _begin(self, met_after: int = 0) -> _Session:
        number = self._num_begun
        self._num_begun += 1
        session = _Session(
            f"{self._kind.name}-{number}",
            self._systems[number % len(self._systems)].fork(),
            self._kind.shape.num_turns.draw(self._rng),
        )
        for _ in range(met_after % session.num_turns):
            self._say(session)
        return session

    def _say(self, session: _Session) -> tuple[int, Sequence[int], int]:
        """One turn: tokens of the prompt, its ids, tokens of the answer."""
        shape, scale = self._kind.shape, self._scale
        session.history.add(_scaled(shape.turn_tokens, scale.prompts, self._rng))
        said = session.history.num_tokens, session.history.hash_ids
        num_output = _scaled(shape.output_tokens, scale.answers, self._rng)
        session.history.add(num_output)
        session.turn += 1
        return *said, num_output

    def next(self, row: int, at_s: float) -> WorkloadRequest:
        session = self._waiting.pop(0)
        turn = session.turn
        num_prompt, hash_ids, num_output = self._say(session)
        self._waiting.append(session if session.turn < session.num_turns else self._begin())
        return WorkloadRequest(
            row=row,
            num_prompt_tokens=num_prompt,
            num_output_tokens=num_output,
            arrived_at_s=at_s,
            hash_ids=hash_ids,
            hash_block_size=self._block_size,
            session_id=session.name,
            turn=turn,
            client=self._kind.name,
        )


@dataclass(slots=True)
class _Session:
    name: str
    history: History
    num_turns: int
    turn: int = 0


def _scaled(lengths: Lengths, scale: float, rng: random.Random) -> int:
    return max(1, round(scale * lengths.draw(rng)))


def _single(prompt: Lengths, answer: Lengths) -> SessionShape:
    """Requests that share nothing but their first token."""
    one = FixedLength(1)
    return SessionShape(num_turns=one, system_tokens=one, turn_tokens=prompt, output_tokens=answer)


INPUT_HEAVY = TrafficKind(
    name="input-heavy",
    words="long prompts that share nothing, short answers",
    shape=_single(LognormalLengths(2000, 1.6), UniformLengths(16, 48)),
)
OUTPUT_HEAVY = TrafficKind(
    name="output-heavy",
    words="short prompts, long answers",
    shape=_single(UniformLengths(100, 300), UniformLengths(300, 600)),
)
AGENTS = TrafficKind(
    name="agents",
    words="sessions of many turns behind shared instructions, short answers, the next turn at once",
    shape=SessionShape(
        num_turns=UniformLengths(6, 14),
        system_tokens=FixedLength(1500),
        turn_tokens=LognormalLengths(500, 1.8),
        output_tokens=UniformLengths(20, 80),
        num_groups=4,
        mean_gap_s=4.0,
    ),
)
CHAT = TrafficKind(
    name="chat",
    words="sessions of a few turns, answers longer than what was asked",
    shape=SessionShape(
        num_turns=UniformLengths(2, 6),
        system_tokens=FixedLength(100),
        turn_tokens=LognormalLengths(150, 1.8),
        output_tokens=UniformLengths(100, 300),
        mean_gap_s=12.0,
    ),
)
BURST = TrafficKind(
    name="burst",
    words="mixed requests, a fifth of the time at five times the rate of the rest",
    shape=_single(LognormalLengths(600, 2.0), UniformLengths(40, 160)),
    profile=((0.2, 5 / 9), (0.1, 25 / 9), (0.4, 5 / 9), (0.1, 25 / 9), (0.2, 5 / 9)),
)
KINDS: dict[str, TrafficKind] = {kind.name: kind for kind in (INPUT_HEAVY, OUTPUT_HEAVY, AGENTS, CHAT, BURST)}
