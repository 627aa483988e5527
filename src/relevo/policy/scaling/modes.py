"""The ways in which the workers of one model may share their work: unified, replicas, split, spilling, hybrid. Pure.

- unified: one worker of each machine does everything, on all its cores, the others stand by,
- `2u`: so many workers do everything for their own requests,
- `1p1d`: some compute prompts, the others decode,
- `1p1h`: some compute prompts, the others decode, and compute prompts too, where those are full,
- hybrid: all do both, and hand prompts over to who is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relevo.core.ids import WorkerId
from relevo.core.role import DECODE, HYBRID, PREFILL, STANDBY, UNIFIED, Role

SPILLING = Role(1, 3)  # decodes, and takes the prompts that would wait elsewhere. The share of a step is arbitrary


@dataclass(frozen=True, slots=True)
class Mode:
    name: str  # unified, 1p1d, hybrid
    roles: tuple[tuple[WorkerId, Role], ...]  # of every worker, by id

    @property
    def workers(self) -> frozenset[WorkerId]:
        return frozenset(worker for worker, _ in self.roles)

    @property
    def num_at_work(self) -> int:
        return sum(not role.is_standby for _, role in self.roles)

    @classmethod
    def of(cls, name: str, roles: Mapping[WorkerId, Role]) -> Mode:
        return cls(name, tuple(sorted(roles.items())))

    def __str__(self) -> str:
        return self.name


def modes_of(machines: Mapping[str, Sequence[WorkerId]], abilities_differ: bool = False) -> tuple[Mode, ...]:
    """Every mode that these workers can have, each once. `machines`: the workers of each, in order; prefill workers
    were listed first. `abilities_differ`: a worker among them cannot hand over; then only unified is left."""
    workers = [worker for on_it in machines.values() for worker in on_it]
    if not workers:
        return ()
    # The last of a machine serves alone: where there was a split, that is the decode worker, whose cache is the users'.
    alone = {worker: UNIFIED if worker == on_it[-1] else STANDBY for on_it in machines.values() for worker in on_it}
    found = [Mode.of("unified", alone)]
    if len(workers) == 1 or abilities_differ:
        return tuple(found)
    if len(machines) < len(workers):
        found.append(Mode.of(f"{len(workers)}u", dict.fromkeys(workers, UNIFIED)))
    for letter, other in (("d", DECODE), ("h", SPILLING)):
        for num_prefill in range(1, len(workers)):
            roles = {worker: PREFILL if i < num_prefill else other for i, worker in enumerate(workers)}
            found.append(Mode.of(f"{num_prefill}p{len(workers) - num_prefill}{letter}", roles))
    found.append(Mode.of("hybrid", dict.fromkeys(workers, HYBRID)))
    return tuple(found)


def mode_named(modes: Sequence[Mode], roles: Mapping[WorkerId, Role]) -> Mode:
    """The mode in which the workers are; one that is none of these is called by its roles."""
    asked = tuple(sorted(roles.items()))
    known = next((mode for mode in modes if mode.roles == asked), None)
    return known or Mode(" ".join(f"{worker}={role}" for worker, role in asked), asked)
