"""Readers of public request traces: lines in, `TraceRequest` out, in the order of arrival.

Knows formats only; opening files, scaling rates and making prompts belong to the caller.

- `mooncake`: JSON lines of the Mooncake FAST'25 traces: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`
  (one id per 512 tokens; two prompts that begin with the same ids share that prefix). Optional: `session_id`.
- `azure`: CSV of the Azure LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.
- `sharegpt`: JSON lines of chat lengths, `{"turns": [[user, assistant], ...]}`: every turn is a request whose prompt
  is the whole history; no arrival times.
"""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

MOONCAKE_BLOCK_SIZE = 512  # tokens per hash id, required by the format


class TraceFormat(StrEnum):
    MOONCAKE = "mooncake"
    AZURE = "azure"
    SHAREGPT = "sharegpt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One recorded request. `arrived_at_s` counts from the first request of the trace; None: the trace has no times."""

    arrived_at_s: float | None
    num_input_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()  # content of each run of `hash_block_size` prompt tokens
    hash_block_size: int = MOONCAKE_BLOCK_SIZE
    session_id: str | None = None


def read_trace(trace_format: TraceFormat, lines: Iterable[str]) -> list[TraceRequest]:
    """All requests, sorted by arrival where there are times (stable).

    Raises ValueError naming the format and the line for a row that cannot be read, and for a trace without requests.
    """
    requests = list(_READERS[trace_format](lines))
    if not requests:
        raise ValueError(f"the {trace_format} trace holds no requests")
    times = [request.arrived_at_s for request in requests if request.arrived_at_s is not None]
    if not times:
        return requests
    first_s = min(times)
    shifted = [replace(request, arrived_at_s=(request.arrived_at_s or 0.0) - first_s) for request in requests]
    return sorted(shifted, key=lambda request: request.arrived_at_s or 0.0)


def spread_ticks(requests: Sequence[TraceRequest], rng: random.Random) -> list[TraceRequest]:
    """Move every arrival to a uniform place inside its tick, for traces whose times were rounded down.

    The tick is the commonest gap between distinct arrival times (3 s in Mooncake's conversation trace); replayed as
    it is, such a trace arrives in batches. Returns the requests sorted by their new times.
    """
    times = sorted({request.arrived_at_s for request in requests if request.arrived_at_s is not None})
    if len(times) < 2:
        return list(requests)
    gaps_ms = Counter(round((later - earlier) * 1e3) for earlier, later in pairwise(times))
    tick_s = gaps_ms.most_common(1)[0][0] / 1e3
    moved = [
        replace(request, arrived_at_s=(request.arrived_at_s or 0.0) + rng.random() * tick_s) for request in requests
    ]
    return sorted(moved, key=lambda request: request.arrived_at_s or 0.0)


def _read_mooncake(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, line in _numbered(lines):
        try:
            row = json.loads(line)
            yield TraceRequest(
                arrived_at_s=float(row["timestamp"]) / 1e3,
                num_input_tokens=int(row["input_length"]),
                num_output_tokens=int(row["output_length"]),
                hash_ids=tuple(row.get("hash_ids", ())),
                session_id=row.get("session_id"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(TraceFormat.MOONCAKE, number, error) from error


def _read_azure(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            yield TraceRequest(
                arrived_at_s=_azure_seconds(row["TIMESTAMP"]),
                num_input_tokens=int(row["ContextTokens"]),
                num_output_tokens=int(row["GeneratedTokens"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(TraceFormat.AZURE, number, error) from error


def _azure_seconds(stamp: str) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`: seven decimals, one more than datetime reads."""
    whole, _, fraction = stamp.strip().partition(".")
    moment = datetime.fromisoformat(whole + "+00:00")
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _read_sharegpt(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, line in _numbered(lines):
        try:
            row = json.loads(line)
            history = 0
            for user, assistant in row["turns"]:
                history += int(user)
                yield TraceRequest(
                    arrived_at_s=None,
                    num_input_tokens=max(1, history),
                    num_output_tokens=max(1, int(assistant)),
                    session_id=str(row.get("conversation", number)),
                )
                history += int(assistant)
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(TraceFormat.SHAREGPT, number, error) from error


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _unreadable(trace_format: TraceFormat, number: int, error: Exception) -> ValueError:
    return ValueError(f"line {number} is not a {trace_format} request: {type(error).__name__}: {error}")


_READERS: dict[TraceFormat, Callable[[Iterable[str]], Iterator[TraceRequest]]] = {
    TraceFormat.MOONCAKE: _read_mooncake,
    TraceFormat.AZURE: _read_azure,
    TraceFormat.SHAREGPT: _read_sharegpt,
}
