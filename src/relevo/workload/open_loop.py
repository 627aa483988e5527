"""A phase of traffic as requests that do not wait for answers, for comparisons of servers: the same arrivals for all.

The turns of a session follow each other at the time that a client would take for answer and pause together, whatever a
server does; so many sessions take turns that the rate is as asked from the first second. Pure: the caller gives the
rate, and a seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from relevo.workload.history import History
from relevo.workload.lengths import Lengths
from relevo.workload.phases import Phase
from relevo.workload.requests import WorkloadRequest

BLOCK_SIZE = 16  # tokens per hash id: that of the server's blocks, if nothing else is said
_ANSWER_S = 3.0  # of a client's time from turn to turn, beside its pause. Arbitrary
_NUM_BURSTS = 2  # in a phase that has any, however short it is
_IDS_OF_A_KIND = 10**12  # more than any has
_IDS_OF_A_SEED = 10**8  # likewise
_NUM_SEEDS = 9_000


@dataclass(frozen=True, slots=True)
class Scale:
    """Of the lengths. Small servers compute prompts slower against decoding than large ones: the two scale apart."""

    prompts: float = 1.0
    answers: float = 1.0


def open_loop(
    kind: Phase,
    requests_per_s: float,
    seconds: float,
    seed: int,
    *,
    scale: Scale = Scale(),
    num_sessions: int | None = None,
    block_size: int = BLOCK_SIZE,
) -> list[WorkloadRequest]:
    """What arrives in `seconds`, by time from 0. The same arguments give the same requests; `kind` has no rate here.

    `num_sessions` take turns, each from its first; None: as many as clients with such pauses would have at this rate.
    Other seeds say something else behind the same system prompts.
    Raises ValueError for a rate or time that is not positive.
    """
    if not (seconds > 0 and requests_per_s > 0):
        raise ValueError(f"traffic needs a time and a rate above 0, got {seconds} s and {requests_per_s}/s")
    arriving = replace(kind, sessions_per_s=requests_per_s, seconds=seconds)
    if kind.burst_every_s:
        every_s = seconds / _NUM_BURSTS
        arriving = replace(arriving, burst_every_s=every_s, burst_s=every_s * kind.burst_s / kind.burst_every_s)
    at_once = num_sessions or max(1, round(requests_per_s * (kind.shape.mean_gap_s + _ANSWER_S)))
    sessions = _Sessions(kind, at_once, scale, block_size, seed)
    due_s = arriving.starts(random.Random(f"{kind.name} {seed} arrivals"))
    return [sessions.next(row, at_s) for row, at_s in enumerate(due_s)]


class _Sessions:
    """So many sessions take turns; one that is over makes room for a new one."""

    def __init__(self, kind: Phase, num_sessions: int, scale: Scale, block_size: int, seed: int) -> None:
        self._kind, self._scale, self._block_size = kind, scale, block_size
        self._rng = random.Random(f"{kind.name} {seed} lengths")
        first_id = _IDS_OF_A_KIND * sum(kind.name.encode())  # no content of two kinds is the same
        self._system_ids = count(first_id)
        self._fresh_ids = count(first_id + _IDS_OF_A_SEED * (1 + seed % _NUM_SEEDS))
        self._systems: dict[int, History] = {}  # by group, of those that were met
        self._num_begun = 0
        self._waiting = deque(self._begin() for _ in range(num_sessions))

    def next(self, row: int, at_s: float) -> WorkloadRequest:
        session = self._waiting.popleft()
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

    def _begin(self) -> _Session:
        number = self._num_begun
        self._num_begun += 1
        num_turns = self._kind.shape.num_turns.draw(self._rng)
        history = self._system(number).fork(self._fresh_ids)
        return _Session(f"{self._kind.name}-{number}", history, num_turns)

    def _system(self, session: int) -> History:
        shape = self._kind.shape
        group = session % shape.num_groups
        if group not in self._systems:
            self._systems[group] = History(self._block_size, self._system_ids)
            self._systems[group].add(_scaled(shape.system_tokens, self._scale.prompts, self._rng))
        return self._systems[group]

    def _say(self, session: _Session) -> tuple[int, Sequence[int], int]:
        """One turn: tokens of the prompt, its ids, tokens of the answer."""
        shape, scale = self._kind.shape, self._scale
        session.history.add(_scaled(shape.turn_tokens, scale.prompts, self._rng))
        said = session.history.num_tokens, session.history.hash_ids
        num_output = _scaled(shape.output_tokens, scale.answers, self._rng)
        session.history.add(num_output)
        session.turn += 1
        return *said, num_output


@dataclass(slots=True)
class _Session:
    name: str
    history: History
    num_turns: int
    turn: int = 0


def _scaled(lengths: Lengths, scale: float, rng: random.Random) -> int:
    return max(1, round(scale * lengths.draw(rng)))
