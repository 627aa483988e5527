"""The ways in which the workers of one model may share their work: unified, split, hybrid. Pure.

Unified: one worker does everything, on all cores of its machine, the others stand by; of several machines one on each.
Split: some compute prompts, the others decode. Hybrid: all do both, and hand prompts over to who is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relevo.core.ids import WorkerId
from relevo.core.role import DECODE, HYBRID, PREFILL, STANDBY, UNIFIED, Role


@dataclass(frozen=True, slots=True)
class Mode:
    name: str  # unified, 1p1d, hybrid
    roles: tuple[tuple[WorkerId, Role], ...]  # of every worker, by id

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
    unified = {worker: UNIFIED if worker == on_it[-1] else STANDBY for on_it in machines.values() for worker in on_it}
    found = [Mode.of("unified", unified)]
    if len(workers) > 1 and not abilities_differ:
        for num_prefill in range(1, len(workers)):
            roles = {worker: PREFILL if i < num_prefill else DECODE for i, worker in enumerate(workers)}
            found.append(Mode.of(f"{num_prefill}p{len(workers) - num_prefill}d", roles))
        found.append(Mode.of("hybrid", dict.fromkeys(workers, HYBRID)))
    return tuple(found)


def mode_named(modes: Sequence[Mode], roles: Mapping[WorkerId, Role]) -> Mode:
    """The mode in which the workers are; one that is none of these is called by its roles."""
    asked = tuple(sorted(roles.items()))
    known = next((mode for mode in modes if mode.roles == asked), None)
    return known or Mode(" ".join(f"{worker}={role}" for worker, role in asked), asked)
