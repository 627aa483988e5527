"""ServeGen's client statistics (Alibaba): requests drawn from what was measured of each client.

Two files a client. `chunk-N-trace.csv`: `start (s), rate (1/s), cv, Gamma or Weibull, shape, scale` for every 600 s.
`chunk-N-dataset.json`: for every 6 h (key: start in seconds) `input_tokens` and `output_tokens`, each a text
`{length: frequency, ...}`.

A window gets as many requests as its rate says (what is left of a fraction goes to the next window); the gaps between
them have the recorded distribution and shape, and are scaled to fill the window, so that rates are kept exactly and
bursts as far as they lie within a window.
"""

from __future__ import annotations

import heapq
import json
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from relevo.workload.lengths import Lengths, WeightedLengths
from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.rows import RowProblem, TraceError

WINDOW_S = 600.0  # of rates; required by the format
MAX_RATE_PER_S = 10_000.0  # of one client: a window's requests are drawn at once. Arbitrary
MIN_SHAPE, MAX_SHAPE = 0.01, 1e6  # of what a float can hold; arbitrary
TRACE_SUFFIX, DATASET_SUFFIX = "-trace.csv", "-dataset.json"


@dataclass(frozen=True, slots=True)
class RateWindow:
    start_s: float
    rate_per_s: float
    distribution: str  # "Gamma" or "Weibull"
    shape: float


@dataclass(slots=True)
class Client:
    """What is known of one client inside the part of the time that is asked for."""

    name: str
    windows: list[RateWindow] = field(default_factory=list)
    lengths_from_s: list[float] = field(default_factory=list)  # ascending
    lengths: list[tuple[Lengths, Lengths]] = field(default_factory=list)  # of prompts and answers from then on

    def lengths_at(self, at_s: float) -> tuple[Lengths, Lengths]:
        """Those of the latest window with any; before the first of them, the first."""
        return self.lengths[max(0, bisect_right(self.lengths_from_s, at_s) - 1)]


def read_rates(lines: Iterable[str], start_s: float, end_s: float) -> list[RateWindow]:
    """The windows with requests that begin inside [start_s, end_s)."""
    windows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            window = _rate_window(line.strip().split(","))
        except ValueError as error:
            expected = "expected start,rate,cv,Gamma or Weibull,shape,scale"
            raise TraceError(number, f"{line.strip()[:60]!r} is no window ({str(error)[:80]}); {expected}") from None
        if window is not None and start_s <= window.start_s < end_s:
            windows.append(window)
    return windows


def read_lengths(text: str) -> tuple[list[float], list[tuple[Lengths, Lengths]]]:
    """(starts, lengths of prompts and answers) of the windows that have any, in the order of time."""
    try:
        document = json.loads(text)
        windows = sorted((float(start_s), window) for start_s, window in document.items())
        read = [(s, _weighted(w["input_tokens"]), _weighted(w["output_tokens"])) for s, w in windows]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        expected = 'expected {"start": {"input_tokens": "{length: frequency}", "output_tokens": ...}}'
        raise TraceError(1, f"no lengths ({type(error).__name__}: {error}); {expected}") from None
    known = [(start_s, (prompts, answers)) for start_s, prompts, answers in read if prompts and answers]
    return [start_s for start_s, _ in known], [pair for _, pair in known]


def draw_requests(clients: Sequence[Client], start_s: float, end_s: float, seed: int) -> Iterator[WorkloadRequest]:
    """The requests of all clients in the order of arrival. A client draws the same whatever the others do."""
    streams = [_arrivals(client, start_s, end_s, random.Random(f"{seed}:{client.name}")) for client in clients]
    merged = heapq.merge(*streams, key=lambda arrival: arrival[0])
    for row, (at_s, num_prompt_tokens, num_output_tokens, name) in enumerate(merged):
        yield WorkloadRequest(
            row=row,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            arrived_at_s=at_s - start_s,
            client=name,
        )


def _arrivals(
    client: Client, start_s: float, end_s: float, rng: random.Random
) -> Iterator[tuple[float, int, int, str]]:
    owed = rng.random()  # of a request: where the rounding of this client begins
    for window in client.windows:
        owed += window.rate_per_s * WINDOW_S
        num_requests = int(owed)
        owed -= num_requests
        prompts, answers = client.lengths_at(window.start_s)
        for at_s in _spread(window, num_requests, rng):
            if start_s <= at_s < end_s:
                yield at_s, prompts.draw(rng), answers.draw(rng), client.name


def _spread(window: RateWindow, num_requests: int, rng: random.Random) -> Iterator[float]:
    shape = window.shape
    gaps = [
        rng.gammavariate(shape, 1.0) if window.distribution == "Gamma" else rng.weibullvariate(1.0, shape)
        for _ in range(num_requests + 1)
    ]
    total = sum(gaps) or 1.0  # of a small shape every gap may be too short for a float
    return (window.start_s + WINDOW_S * passed / total for passed in list(accumulate(gaps))[:-1])


def _rate_window(columns: Sequence[str]) -> RateWindow | None:
    """None for a window without requests. Raises ValueError."""
    start_s, rate_per_s = float(columns[0]), float(columns[1]) if len(columns) > 1 else -1.0
    if not rate_per_s >= 0.0:
        raise RowProblem("the rate is missing or negative")
    if rate_per_s > MAX_RATE_PER_S:
        raise RowProblem(f"the rate is above {MAX_RATE_PER_S:g}")
    if rate_per_s == 0.0:
        return None
    if len(columns) < 5 or columns[3] not in ("Gamma", "Weibull"):
        raise RowProblem("its distribution is neither Gamma nor Weibull")
    shape = float(columns[4])
    if not MIN_SHAPE <= shape <= MAX_SHAPE:
        raise RowProblem(f"the shape is not between {MIN_SHAPE:g} and {MAX_SHAPE:g}")
    return RateWindow(start_s, rate_per_s, columns[3], shape)


def _weighted(text: str) -> WeightedLengths | None:
    """`{50: 0.04, 51: 0.08}`; None for `{}`."""
    pairs = [pair.split(":") for pair in text.strip().strip("{}").split(",") if pair.strip()]
    frequencies: Mapping[int, float] = {max(1, int(float(length))): float(share) for length, share in pairs}
    if not all(0.0 <= share < float("inf") for share in frequencies.values()):
        raise ValueError("a frequency is negative or no number")
    if sum(frequencies.values()) <= 0.0:
        return None
    return WeightedLengths(list(frequencies), list(accumulate(frequencies.values())))
