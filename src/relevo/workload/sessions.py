"""Conversations of several turns, in which each prompt repeats what was said before: recorded ones and made-up ones.

Prompts are lists of numbers, one per token, equal where the conversation is equal. `to_token_ids` maps them into a
vocabulary. A turn's answer is part of the next prompt as it was recorded, not as a server gives it today, so every
server and every routing policy gets the same prompts.

Recorded: JSON lines with `session_id`, `input` (the whole prompt as text), `output` and `timestamp` (microseconds), as
in LMCache's agent traces. A number stands for four bytes of the prompt, so lengths are bytes / 4.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from relevo.workload.lengths import Lengths

BYTES_PER_TOKEN = 4  # of recorded text; about what tokenizers make of English


@dataclass(frozen=True, slots=True)
class Turn:
    prompt: tuple[int, ...]
    num_output_tokens: int
    gap_s: float  # from the answer to the turn before, as far as it is known


@dataclass(frozen=True, slots=True)
class Session:
    session_id: str
    turns: tuple[Turn, ...]

    @property
    def num_input_tokens(self) -> int:
        return sum(len(turn.prompt) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShape:
    """Statistics of made-up sessions; every length is drawn per use."""

    num_turns: Lengths
    system_tokens: Lengths  # drawn once per group of sessions that share it
    turn_tokens: Lengths  # what each turn adds before its answer
    output_tokens: Lengths
    num_groups: int = 1  # different system prompts
    mean_gap_s: float = 0.0  # exponential


def read_sessions(lines: Iterable[str], max_input_tokens: int | None = None) -> list[Session]:
    """Sessions in the order of their first lines. Turns longer than `max_input_tokens` are left out.

    Raises ValueError naming the line that cannot be read, or if nothing is left.
    """
    rows: dict[str, list[tuple[float, tuple[int, ...], int]]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt = _numbers(str(row["input"]))
            at_s, num_output = float(row["timestamp"]) / 1e6, len(str(row["output"]).encode()) // BYTES_PER_TOKEN
            session_id = str(row["session_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is not a turn of a session: {type(error).__name__}: {error}") from error
        if prompt and (max_input_tokens is None or len(prompt) <= max_input_tokens):
            rows.setdefault(session_id, []).append((at_s, prompt, max(1, num_output)))
    if not rows:
        raise ValueError("the file holds no turn that is short enough")
    return [Session(session_id, _turns(turns)) for session_id, turns in rows.items()]


def make_sessions(num_sessions: int, shape: SessionShape, rng: random.Random) -> list[Session]:
    """Sessions of the given statistics; the same generator state gives the same sessions."""
    systems = [_fresh(shape.system_tokens.draw(rng), rng) for _ in range(shape.num_groups)]
    sessions = []
    for number in range(num_sessions):
        history = list(systems[number % len(systems)])
        turns = []
        for index in range(shape.num_turns.draw(rng)):
            history += _fresh(shape.turn_tokens.draw(rng), rng)
            num_output = shape.output_tokens.draw(rng)
            gap_s = rng.expovariate(1 / shape.mean_gap_s) if index and shape.mean_gap_s else 0.0
            turns.append(Turn(tuple(history), num_output, gap_s))
            history += _fresh(num_output, rng)
        sessions.append(Session(f"session-{number}", tuple(turns)))
    return sessions


def to_token_ids(prompt: Sequence[int], vocabulary: Sequence[int]) -> list[int]:
    """Equal numbers give equal ids; different ones usually different ids."""
    size = len(vocabulary)
    return [vocabulary[number % size] for number in prompt]


def _turns(rows: list[tuple[float, tuple[int, ...], int]]) -> tuple[Turn, ...]:
    gaps_s = [0.0, *(max(0.0, later[0] - earlier[0]) for earlier, later in pairwise(rows))]
    return tuple(Turn(prompt, num, gap_s) for (_, prompt, num), gap_s in zip(rows, gaps_s, strict=True))


def _numbers(text: str) -> tuple[int, ...]:
    data = text.encode()
    return tuple(crc32(data[i : i + BYTES_PER_TOKEN]) for i in range(0, len(data), BYTES_PER_TOKEN))


def _fresh(num_tokens: int, rng: random.Random) -> list[int]:
    return [rng.getrandbits(32) for _ in range(num_tokens)]
