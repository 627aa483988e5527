"""Which cores of a machine its workers compute on, when their roles change. Pure.

Who is on standby computes nothing, so the others have its cores, too. What does not divide evenly goes to those that
compute prompts, whose work grows with cores; decode waits for memory. Source: as `policy.host.topology.assign_cores`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relevo.core.ids import WorkerId
from relevo.core.role import Role


def cores_by_role(
    started_on: Mapping[WorkerId, Sequence[int]], roles: Mapping[WorkerId, Role]
) -> dict[WorkerId, tuple[int, ...]]:
    """Of every worker; all cores are used. `started_on`: of the workers of one model on one machine.

    Empty where nothing can be shared out anew: a worker's cores are not known, two were started on the same core, or
    none computes anything.
    """
    pool = [core for cores in started_on.values() for core in cores]
    at_work = [worker_id for worker_id in started_on if not roles[worker_id].is_standby]
    if not all(started_on.values()) or len(set(pool)) < len(pool) or not at_work:
        return {}
    share, num_left = divmod(len(pool), len(at_work))
    takers = [worker_id for worker_id in at_work if roles[worker_id].computes_prompts] or at_work
    extra = {
        worker_id: num_left // len(takers) + (place < num_left % len(takers)) for place, worker_id in enumerate(takers)
    }
    assigned: dict[WorkerId, tuple[int, ...]] = {
        worker_id: (cores[0],) for worker_id, cores in started_on.items()
    }  # of those on standby: to idle on
    first = 0
    for worker_id in at_work:
        end = first + share + extra.get(worker_id, 0)
        assigned[worker_id] = tuple(pool[first:end])
        first = end
    return assigned
