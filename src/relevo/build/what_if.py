"""Composes what-if on own traffic: the workers as they served, and the same machine shared out in other ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from relevo.build.scenario import Scenario, machines_json
from relevo.build.served_workers import ServedWorkers, as_served, shared_otherwise
from relevo.sim.config import WorldConfig
from relevo.sim.fleet import Machine, parse_fleet

_WAYS = ("unified", "1p1d", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What differs from what served. No topologies: the other ways, or the same one where `changed` says something."""

    topologies: tuple[str, ...] = ()
    changed: Mapping[str, Any] = field(default_factory=dict)  # by the names of sim.fleet.Machine
    itl_target_s: float | None = None  # None: as it was


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Of all worlds."""

    front_end_s: float
    seed: int
    jumps: bool
    until_s: float | None

    def of(self, config: WorldConfig) -> WorldConfig:
        return replace(config, front_end_s=self.front_end_s, seed=self.seed, jumps=self.jumps, until_s=self.until_s)


def served_scenarios(served: ServedWorkers, what_if: WhatIf, common: Common, longest_tokens: int) -> list[Scenario]:
    """As they were first: what that is off by says what the others are worth. Raises SettingsError."""
    found = [
        Scenario(
            label=f"as served: {served.label}",
            config=common.of(as_served(served, longest_tokens)),
            machines={"served": served.label},
            is_as_served=True,
        )
    ]
    usual: Machine = replace(served.usual, **what_if.changed)
    for text in _topologies(served, what_if):
        fleet = parse_fleet(text, usual)
        config = common.of(shared_otherwise(served, fleet, longest_tokens, what_if.itl_target_s))
        found.append(Scenario(label=fleet.label, config=config, machines=machines_json(fleet, config)))
    return found


def _topologies(served: ServedWorkers, what_if: WhatIf) -> tuple[str, ...]:
    if what_if.topologies:
        return what_if.topologies
    if (what_if.changed or what_if.itl_target_s is not None) and "+" not in served.label:
        return (served.label,)
    num_cores = sum(len(worker.facts.cores) for worker in served.workers)
    return tuple(way for way in _WAYS if way != served.label and (way == "unified" or num_cores != 1))
