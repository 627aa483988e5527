"""The latencies of a simulated run as weighted samples, without writing every token of every request out.

Requests that decoded in the same steps share their runs of token times; a run is looked at once and counted as often as
there are requests that share it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from relevo.sim.results import RequestOutcome, RequestResult
from relevo.telemetry.distribution import Distribution, Samples, distribution
from relevo.telemetry.latency import LATENCY_LABELS

Integers = npt.NDArray[np.int64]
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class LatencySamples:
    """By the keys of `telemetry.latency.LATENCY_LABELS`: samples, and how many of them never came."""

    samples: dict[str, Samples]
    num_missing: dict[str, int]

    def distributions(self) -> dict[str, Distribution]:
        return {key: distribution(*of_kind, self.num_missing[key]) for key, of_kind in self.samples.items()}


def latency_samples(results: Iterable[RequestResult]) -> LatencySamples:
    """Of all `results`: one that was not answered to its end counts as slower than all that were.

    Of what its client gave up, that counts which came until then. A request without a first token has no time per
    token to miss.
    """
    values: dict[str, list[float]] = {"ttft_s": [], "tpot_s": [], "e2e_s": []}
    missing = dict.fromkeys(LATENCY_LABELS, 0)
    runs = SharedRuns()
    for result in results:
        times, is_lost = result.times, result.outcome not in (RequestOutcome.FINISHED, RequestOutcome.ABORTED)
        missing["tpot_s"] += is_lost and len(times.token_at_ns) > 0
        for key, value in (("ttft_s", times.ttft_s), ("tpot_s", times.tpot_s), ("e2e_s", times.e2e_s)):
            if value is not None:
                values[key].append(value)
            elif is_lost and key != "tpot_s":
                missing[key] += 1
        runs.add(result.token_at_ns)
    by_kind = {key: Samples(of_kind) for key, of_kind in values.items()} | {"itl_s": runs.gaps()}
    return LatencySamples({key: by_kind[key] for key in LATENCY_LABELS}, missing)


class SharedRuns:
    """Each run once, with the number of requests that have it, and the gaps from one run of a request to the next."""

    def __init__(self, results: Iterable[RequestResult] = ()) -> None:
        self._runs: dict[int, Sequence[int]] = {}  # by identity
        self._counts: dict[int, int] = {}
        self._gaps_between_ns = array("q")
        for result in results:
            self.add(result.token_at_ns)

    def add(self, runs: Sequence[Sequence[int]]) -> None:
        """The runs of one request."""
        runs = [run for run in runs if len(run)]
        for run in runs:
            key = id(run)
            self._counts[key] = self._counts.get(key, 0) + 1
            self._runs[key] = run
        if len(runs) > 1:
            self._gaps_between_ns.extend(later[0] - earlier[-1] for earlier, later in pairwise(runs))

    def gaps(self) -> Samples:
        """Every gap between consecutive tokens of one request."""
        times, counts, lengths = self._flat()
        inside = np.ones(max(0, len(times) - 1), dtype=bool)
        inside[np.cumsum(lengths)[:-1] - 1] = False  # from the end of one run to the start of another
        gaps_ns = np.diff(times)[inside] if len(times) else times
        between_ns = np.frombuffer(self._gaps_between_ns, dtype=np.int64)
        weights = np.concatenate([counts[1:][inside], np.ones(len(between_ns), dtype=np.int64)])
        return Samples(np.concatenate([gaps_ns, between_ns]) / _NS_PER_S, weights)

    def num_between(self, start_ns: int, end_ns: int) -> int:
        """Tokens in (start_ns, end_ns]."""
        times, counts, _ = self._flat()
        return int(counts[(times > start_ns) & (times <= end_ns)].sum())

    def _flat(self) -> tuple[Integers, Integers, Integers]:
        """(time of every token of every run, how many requests have it, lengths of the runs)."""
        runs = list(self._runs.values())
        lengths = np.fromiter(map(len, runs), dtype=np.int64, count=len(runs))
        counts = np.fromiter(self._counts.values(), dtype=np.int64, count=len(runs))
        times = np.concatenate([np.asarray(run, dtype=np.int64) for run in runs] or [np.zeros(0, dtype=np.int64)])
        return times, np.repeat(counts, lengths), lengths
