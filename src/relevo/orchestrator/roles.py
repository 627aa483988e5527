"""Gives workers other roles while they run, and the cores of their machine with them.

A change is told to every worker that it concerns: who changes its role, and on the same machine those whose cores do.
Requests are not touched: what runs goes on where it is, and what comes next is routed by the new roles. What counts is
what workers were given last, not what they have said to have: two changes may come within a step. Decides nothing about
which roles would be good.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from relevo.core.decisions import Decide, Decision
from relevo.core.errors import InvalidRequest, NoWorker
from relevo.core.handoff import Ability
from relevo.core.ids import WorkerId
from relevo.core.role import Role, RoleChange
from relevo.orchestrator.member import Member
from relevo.orchestrator.membership import Membership
from relevo.policy.host.core_roles import cores_by_role

log = logging.getLogger("relevo.gateway")


@dataclass(frozen=True, slots=True)
class Roles:
    membership: Membership
    decide: Decide

    def change(self, wanted: Mapping[WorkerId, Role], reason: str) -> None:
        """All of them at once. Raises NoWorker if one is not there, InvalidRequest for what cannot be."""
        members = {member.worker_id: member for member in self.membership.members}
        for worker_id in wanted:
            _check(worker_id, members.get(worker_id))
        roles = {worker_id: wanted.get(worker_id, member.role_next) for worker_id, member in members.items()}
        if all(role.is_standby for role in roles.values()):
            raise InvalidRequest("One worker at least has to serve; give another one a role first.", param="role")
        version = 1 + max((m.wanted.version for m in members.values() if m.wanted is not None), default=0)
        cores = self._cores(members, roles)
        for worker_id, member in members.items():
            change = RoleChange(roles[worker_id], version, cores.get(worker_id, ()))
            if worker_id in wanted or (change.cores and change.cores != member.cores_next):
                self._tell(member, change, reason if worker_id in wanted else "its machine's cores are shared out anew")

    def _tell(self, member: Member, change: RoleChange, reason: str) -> None:
        cores = ",".join(map(str, change.cores)) or "as before"
        before = str(member.role_next)
        log.info("%s: role %s -> %s, cores %s: %s", member.worker_id, before, change.role, cores, reason)
        self.decide(Decision.ROLE, worker=member.worker_id, before=before, role=str(change.role), reason=reason)
        self.membership.set_role(member.worker_id, change)

    def _cores(
        self, members: Mapping[WorkerId, Member], roles: Mapping[WorkerId, Role]
    ) -> dict[WorkerId, tuple[int, ...]]:
        """Machine by machine."""
        machines: dict[str, dict[WorkerId, tuple[int, ...]]] = {}
        for worker_id, member in members.items():
            if member.hello is not None:
                machines.setdefault(member.hello.kv_site.box_id, {})[worker_id] = member.hello.cores
        assigned: dict[WorkerId, tuple[int, ...]] = {}
        for started_on in machines.values():
            assigned |= cores_by_role(started_on, roles)
        return assigned


def _check(worker_id: WorkerId, member: Member | None) -> None:
    if member is None or member.link is None or member.hello is None:
        raise NoWorker(f"{worker_id} is not there; wait until it is.", retry_after_s=1.0)
    if Ability.ROLE not in member.hello.abilities:
        raise InvalidRequest(f"{worker_id} is an engine that keeps the role it was started with.", param="worker")
