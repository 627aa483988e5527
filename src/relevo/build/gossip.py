"""Composition of what a gateway has with the others on its port: gossip of every model, and questions about all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec

from relevo.build.clock import MonotonicClock
from relevo.build.configs import GatewayConfig
from relevo.build.event_loop import LoopTimers
from relevo.core.ports import Clock
from relevo.gateway.console.reading import STATE, STATE_WITH_HISTORY
from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.meter import Meter
from relevo.gateway.requests.query import SlowestQuery
from relevo.orchestrator.dispatch import Dispatcher
from relevo.orchestrator.gossip import Gossip, GossipSource
from relevo.orchestrator.gossip_sockets import GossipSockets, Peer
from relevo.orchestrator.placement import Placement
from relevo.planner.loop import RolePlanning
from relevo.planner.together import Together
from relevo.policy.billing.pricing import plain
from relevo.telemetry.merged_series import SeriesFamily
from relevo.wire.gossip import Ended, Spending

_METRICS, _READINESS, _REQUEST, _SLOWEST = "metrics", "readiness", "request", "slowest"
_DEMAND = "demand "  # and which model's
_encode = msgspec.msgpack.encode


@dataclass(frozen=True, slots=True)
class Others:
    """Implements gateway.context.OtherGateways."""

    gateway_id: str
    sockets: GossipSockets

    async def metrics(self) -> dict[str, Sequence[SeriesFamily] | None]:
        answers = await self.sockets.ask(_METRICS)
        return {name: _decoded(body, tuple[SeriesFamily, ...]) for name, body in answers.items()}

    async def states(self, question: str) -> dict[str, bytes | None]:
        return await self.sockets.ask(question)

    async def readiness(self) -> dict[str, dict[str, Any] | None]:
        answers = await self.sockets.ask(_READINESS)
        return {name: _decoded(body, dict[str, Any]) for name, body in answers.items()}

    async def request_report(self, name: str, tenant: str, *, is_admin: bool) -> dict[str, dict[str, Any] | None]:
        answers = await self.sockets.search(_REQUEST, _json((name, tenant, is_admin)))
        return {gateway_id: _decoded(body, dict[str, Any] | None) for gateway_id, body in answers.items()}

    async def slowest_requests(self, query: SlowestQuery) -> dict[str, list[dict[str, Any]] | None]:
        answers = await self.sockets.search(_SLOWEST, _json(query))
        return {gateway_id: _decoded(body, list[dict[str, Any]]) for gateway_id, body in answers.items()}


@dataclass(frozen=True, slots=True)
class RequestSearch:
    """In what this gateway keeps of its requests."""

    find: Callable[[str, str, bool], dict[str, Any] | None]  # name, tenant, is it for an admin
    slowest: Callable[[SlowestQuery], Awaitable[list[dict[str, Any]]]]

    async def answer_find(self, asked: str) -> bytes:
        return _encode(self.find(*msgspec.json.decode(asked, type=tuple[str, str, bool])))

    async def answer_slowest(self, asked: str) -> bytes:
        return _encode(await self.slowest(msgspec.json.decode(asked, type=SlowestQuery)))


def build_others(
    config: GatewayConfig,
    models: Mapping[str, tuple[Placement, Dispatcher]],
    metrics: Callable[[], Sequence[SeriesFamily]],
    readiness: Callable[[], dict[str, Any]],
    state: Callable[[str], bytes],
    requests: RequestSearch,
    meter: Meter,
    plannings: Sequence[RolePlanning] = (),
) -> Others:
    """`metrics`, `readiness`, `state`, `requests`: what this gateway says of itself."""
    clock = MonotonicClock()
    gossip = Gossip(
        sources={
            name: GossipSource(placement.change_log, placement.peer_state, dispatcher.on_heard)
            for name, (placement, dispatcher) in models.items()
        },
        clock=clock,
        timers=LoopTimers(clock),
    )
    sockets = GossipSockets(
        gossip=gossip,
        path=config.gossip_path,
        peers=[Peer(peer.gateway_id, peer.path) for peer in config.peers],
        answers={
            _METRICS: lambda: _encode(tuple(metrics())),
            _READINESS: lambda: _encode(readiness()),
            **{f"{_DEMAND}{index}": planning.tell for index, planning in enumerate(plannings)},
            **{question: partial(state, question) for question in (STATE, STATE_WITH_HISTORY)},
        },
        searches={
            _REQUEST: requests.answer_find,
            _SLOWEST: requests.answer_slowest,
        },
    )
    for index, planning in enumerate(plannings):
        planning.together = Together(
            gateway_id=config.gateway_id,
            ask=partial(sockets.ask, f"{_DEMAND}{index}"),
            connected=lambda: sockets.connected,
        )
    share_accounts(gossip, meter.accounts, meter.clock)
    for placement, _ in models.values():
        placement.tell(gossip.news)
    return Others(config.gateway_id, sockets)


def share_accounts(gossip: Gossip, accounts: Accounts, clock: Clock) -> None:
    """Limits of keys are counted together with the gateways that hear each other."""

    def heard(gateway_id: str, spending: Spending) -> None:
        running = {key_id: Decimal(cost) for key_id, cost in spending.running_by_key.items()}
        accounts.runs_elsewhere(gateway_id, running)
        for ended in spending.ended:
            accounts.spent_elsewhere(ended.key_id, ended.ended_at_ms, Decimal(ended.cost))

    gossip.on_taken = lambda key_id, num_tokens: accounts.taken_elsewhere(key_id, num_tokens, clock.now_ns())
    gossip.on_spending = heard
    gossip.on_lost = accounts.forget_elsewhere
    gossip.running = lambda: {key_id: plain(cost) for key_id, cost in accounts.running().items()}
    accounts.on_taken = gossip.taken
    accounts.on_running = lambda key_id, cost: gossip.spends(key_id, plain(cost))
    accounts.on_spent = lambda key_id, ended_at_ms, cost: gossip.spent(Ended(key_id, ended_at_ms, plain(cost)))


def _json(asked: Any) -> str:
    return msgspec.json.encode(asked).decode()


def _decoded(body: bytes | None, kind: Any) -> Any:
    return None if body is None else msgspec.msgpack.decode(body, type=kind)
