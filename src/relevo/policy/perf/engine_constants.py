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
    experts: tuple[float, float]  # the same of routed experts
    num_expert_layers: int
    link_s: float  # bytes that cross links
    num_layers: float  # in plain ones, by what they launch
    num_collectives: int
    num_rows: float  # on the rank


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConstants:
    memory_efficiency: float = 0.90  # of read bandwidth. Measured: 0.87 to 0.97 on H100 and H200
    expert_efficiency: float = 0.70  # of read bandwidth, of grouped products with few tokens per expert. Arbitrary
    compute_efficiency: float = 0.60  # of dense FLOP/s. Arbitrary until fitted
    link_efficiency: float = 0.70  # of a link's bandwidth. Arbitrary until fitted
    layer_s: float = (
        75e-6  # of a plain layer: launches, norms, small collectives. Measured: 62 to 93 us on H100 and H200
    )
    expert_layer_s: float = 30e-6  # besides, in layers with routed experts: routing, sorting, summing. Arbitrary
    collective_s: float = 0.0  # besides, where ranks meet; zero while it is part of `layer_s`
    row_s: float = 0.0  # scheduling and sampling of a row
    step_s: float = 0.0  # scheduling of a step
    ttft_floor_s: float = 0.0  # of a request outside steps: HTTP, tokenizing, first scheduling

    def seconds(self, work: StepWork) -> float:
        return sum(self.shares(work))

    def shares(self, work: StepWork) -> tuple[float, ...]:
        """Seconds that each of `TERMS` accounts for; a share grows with its constant, of an efficiency with 1 / it."""
        per_read, per_product = 1.0 / self.memory_efficiency, 1.0 / self.compute_efficiency
        memory_s = compute_s = 0.0
        expert_s = work.experts[0] / self.expert_efficiency
        if expert_s < work.experts[1] * per_product:
            expert_s, compute_s = 0.0, work.experts[1] * per_product
        for read_s, product_s in work.parts:
            if read_s * per_read >= product_s * per_product:
                memory_s += read_s * per_read
            else:
                compute_s += product_s * per_product
        return (
            memory_s,
            expert_s,
            compute_s,
            work.link_s / self.link_efficiency,
            work.num_layers * self.layer_s,
            work.num_expert_layers * self.expert_layer_s,
            work.num_collectives * self.collective_s,
            work.num_rows * self.row_s,
            self.step_s,
        )


TERMS = (
    "memory_efficiency",
    "expert_efficiency",
    "compute_efficiency",
    "link_efficiency",
    "layer_s",
    "expert_layer_s",
    "collective_s",
    "row_s",
    "step_s",
)
DEFAULT_CONSTANTS = EngineConstants()
