"""What an engine makes of a device: the few numbers between a roofline and a clock.

They belong to an engine, its version and a class of devices, and are fitted to measured rows (`fitting`). Until then
the defaults hold. Owns the one formula of step time; what it is applied to is `step_work`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class StepWork(NamedTuple):
    """Of one step on one device, in seconds at the device's ceilings where not said otherwise."""

    parts: tuple[tuple[float, float], ...]  # (reading, multiplying) that overlap; parts follow one another
    link_s: float  # bytes that cross links
    num_layers: int
    num_collectives: int
    num_rows: float  # on the rank


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConstants:
    memory_efficiency: float = 0.90  # of read bandwidth. Measured: 0.87 to 0.97 on H100 and H200
    compute_efficiency: float = 0.60  # of dense FLOP/s. Arbitrary until fitted
    link_efficiency: float = 0.70  # of a link's bandwidth. Arbitrary until fitted
    layer_s: float = 75e-6  # launches, norms, small collectives. Measured: 62 to 93 us on H100 and H200
    collective_s: float = 0.0  # besides, where ranks meet; zero while it is part of `layer_s`
    row_s: float = 0.0  # scheduling and sampling of a row
    step_s: float = 0.0  # scheduling of a step
    ttft_floor_s: float = 0.0  # of a request outside steps: HTTP, tokenizing, first scheduling

    def seconds(self, work: StepWork) -> float:
        per_read, per_product = 1.0 / self.memory_efficiency, 1.0 / self.compute_efficiency
        total = self.step_s + work.num_layers * self.layer_s + work.num_collectives * self.collective_s
        total += work.num_rows * self.row_s + work.link_s / self.link_efficiency
        for read_s, product_s in work.parts:
            total += max(read_s * per_read, product_s * per_product)
        return total


DEFAULT_CONSTANTS = EngineConstants()
