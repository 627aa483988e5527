"""How far a plan's numbers can be off, and where it was never measured: there nothing is promised.

Bands are errors of predictions of servers that were left out of every fit (docs/simulation.md, rungs 1 and 8). What is
measured is a range of engines, devices, layouts and lengths; a candidate outside it is told as an estimate only.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.policy.perf.known_engines import KNOWN, MEASURED_VERSIONS, is_measured_version
from relevo.policy.scaling.candidates import Candidate
from relevo.policy.scaling.demand import Demand

LONGEST_MEASURED = 16_384  # tokens of prompt and answer in the measured rows
MOST_RANKS_MEASURED = 32  # of one worker
HIGHEST_LOAD_MEASURED = 0.9  # of a stage; beyond it errors of TTFT are several times as large


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """Median and 90th percentile of the relative error."""

    rung: int
    what: str
    tpot: tuple[float, float]
    throughput: tuple[float, float] | None = None
    ttft: tuple[float, float] | None = None

    @property
    def sentence(self) -> str:
        told = [f"{name} {middle:.0%} (p90 {tail:.0%})" for name, (middle, tail) in self._told.items()]
        return f"error band, rung {self.rung} ({self.what}), median: {', '.join(told)}"

    @property
    def _told(self) -> dict[str, tuple[float, float]]:
        found = {"TPOT": self.tpot, "throughput per device": self.throughput, "TTFT": self.ttft}
        return {name: band for name, band in found.items() if band is not None}


UNFITTED = ErrorBand(rung=1, what="default constants, no engine named", tpot=(0.152, 0.48))
UNIFIED = ErrorBand(
    rung=8,
    what="servers of a model that was in no fit",
    tpot=(0.132, 0.370),
    throughput=(0.137, 0.418),
    ttft=(0.350, 0.837),
)
SPLIT = ErrorBand(
    rung=8,
    what="disaggregated servers, fitted to aggregated ones",
    tpot=(0.150, 0.420),
    throughput=(0.162, 0.468),
    ttft=(0.515, 0.936),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """`outside`: why nothing is promised; empty: the band holds."""

    band: ErrorBand
    outside: tuple[str, ...]

    @property
    def is_promised(self) -> bool:
        return not self.outside


def validity(
    candidate: Candidate, demand: Demand, engine: str | None, highest_load: float, engine_version: str | None = None
) -> Validity:
    """`highest_load`: of the fullest stage. `engine_version`: that will serve; None: it was not said."""
    outside: list[str] = []
    if engine is not None and engine_version is not None and not is_measured_version(engine, engine_version):
        oldest, newest = MEASURED_VERSIONS[engine]
        outside.append(f"{engine} {engine_version} was never measured ({oldest} to {newest} were)")
    for stage in candidate.stages:
        name = stage.kind.device.name
        if engine is None:
            outside.append("no engine is named (--engine), so step times are those of a general one")
        elif (engine, name) not in KNOWN:
            outside.append(f"{engine} on {name} was never measured")
        if stage.kind.parallelism.num_ranks > MOST_RANKS_MEASURED:
            outside.append(f"workers of more than {MOST_RANKS_MEASURED} ranks were never measured")
        if stage.kind.parallelism.pipeline > 1:
            outside.append("pipeline stages were never measured")
    if demand.longest_tokens > LONGEST_MEASURED:
        outside.append(
            f"requests of up to {demand.longest_tokens:,} tokens are planned for and {LONGEST_MEASURED:,} were measured"
        )
    if highest_load > HIGHEST_LOAD_MEASURED:
        outside.append(f"a stage is {highest_load:.0%} full, and TTFT near saturation is not predicted")
    measured = SPLIT if candidate.is_split else UNIFIED
    return Validity(band=UNFITTED if engine is None else measured, outside=tuple(dict.fromkeys(outside)))
