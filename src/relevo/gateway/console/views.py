"""Who sees what: all of it, or one tenant's own and of the others numbers.

With API keys an admin's sees everything. Any other sees its tenant by name, and its own budget, sessions and requests;
other tenants are numbers, what was decided about their requests has no id, and why an operator gave a worker another
role is not told. Where there are no keys, all of it is for all. Pure: the caller was identified before.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from relevo.gateway.console.state import Decision, SharedState, State, TenantLine, Viewer
from relevo.gateway.http.auth import Caller

MAX_TENANTS = 50  # arbitrary: those that have most, and one's own
MAX_REQUESTS = 20  # arbitrary: the oldest of one's own
MAX_SLOWEST = 10  # arbitrary
MAX_SESSIONS = 40  # arbitrary: seen last
_replace = msgspec.structs.replace
_SHARED = SharedState.__struct_fields__
_OWN = tuple(name for name in State.__struct_fields__ if name not in _SHARED)


@dataclass(frozen=True, slots=True)
class Kind:
    """All viewers of one kind see the same."""

    viewer: Viewer
    key_id: str = ""  # whose budget is shown, unless all are


def kind_of(caller: Caller, *, is_open: bool) -> Kind:
    if caller.is_admin or is_open:
        return Kind(Viewer(sees_all=True, is_admin=caller.is_admin))
    return Kind(Viewer(sees_all=False, tenant=caller.tenant), caller.key_id)


def shared_part(state: State) -> bytes:
    """JSON, for `joined`."""
    return msgspec.json.encode(SharedState(**{name: getattr(state, name) for name in _SHARED}))


def own_part(state: State, kind: Kind) -> bytes:
    """JSON, for `joined`."""
    seen = as_seen(state, kind)
    return msgspec.json.encode({name: getattr(seen, name) for name in _OWN})


def joined(shared: bytes, own: bytes) -> bytes:
    """A `State` of two objects without a member in common."""
    return shared[:-1] + b"," + own[1:]


def as_seen(state: State, kind: Kind) -> State:
    viewer, requests = kind.viewer, state.requests
    sees_all, tenant = viewer.sees_all, viewer.tenant
    return _replace(
        state,
        viewer=viewer,
        tenants=_tenants(state.tenants, viewer),
        budgets=tuple(each for each in state.budgets if sees_all or each.key_id == kind.key_id),
        decisions=tuple(_decision(each, viewer) for each in state.decisions),
        requests=_replace(
            requests,
            in_flight=tuple(each for each in requests.in_flight if sees_all or each.tenant == tenant)[:MAX_REQUESTS],
            slowest=tuple(each for each in requests.slowest if sees_all or each.tenant == tenant)[:MAX_SLOWEST],
        ),
        sessions=tuple(each for each in state.sessions if sees_all or each.tenant == tenant)[:MAX_SESSIONS],
    )


def _tenants(lines: tuple[TenantLine, ...], viewer: Viewer) -> tuple[TenantLine, ...]:
    shown = []
    for line in lines:
        is_own = not viewer.sees_all and line.tenant == viewer.tenant
        if is_own:
            shown.append(_replace(line, is_own=True))
        elif len(shown) < MAX_TENANTS:
            shown.append(line if viewer.sees_all else _replace(line, tenant=""))
    return tuple(shown)


def _decision(decision: Decision, viewer: Viewer) -> Decision:
    if decision.kind == "role" and not viewer.sees_all:
        return _replace(decision, reason="")  # words of an operator, who may name tenants
    is_seen = viewer.sees_all or not decision.request_id or decision.tenant == viewer.tenant
    return decision if is_seen else _replace(decision, request_id="", tenant="")
