"""Composition of what a gateway has with the others on its port: gossip of every model, and questions about all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from relevo.build.configs import GatewayConfig
from relevo.gateway.dispatch import Dispatcher
from relevo.gateway.gossip import Gossip, Peer, Teller
from relevo.gateway.metering.meter import Meter
from relevo.gateway.placement import Placement
from relevo.telemetry.merged_series import SeriesFamily

_METRICS, _READINESS = "metrics", "readiness"
_encode = msgspec.msgpack.encode


@dataclass(frozen=True, slots=True)
class Others:
    """Implements gateway.context.OtherGateways."""

    gateway_id: str
    gossip: Gossip

    async def metrics(self) -> dict[str, Sequence[SeriesFamily] | None]:
        answers = await self.gossip.ask(_METRICS)
        return {name: _decoded(body, tuple[SeriesFamily, ...]) for name, body in answers.items()}

    async def readiness(self) -> dict[str, dict[str, Any] | None]:
        answers = await self.gossip.ask(_READINESS)
        return {name: _decoded(body, dict[str, Any]) for name, body in answers.items()}


def build_others(
    config: GatewayConfig,
    models: Mapping[str, tuple[Placement, Dispatcher]],
    metrics: Callable[[], Sequence[SeriesFamily]],
    readiness: Callable[[], dict[str, Any]],
    meter: Meter,
) -> Others:
    """`metrics`, `readiness`: what this gateway says of itself."""
    gossip = Gossip(
        path=config.gossip_path,
        peers=[Peer(peer.gateway_id, peer.path) for peer in config.peers],
        tellers={
            name: Teller(placement.journal, placement.hearsay, dispatcher.on_heard)
            for name, (placement, dispatcher) in models.items()
        },
        answers={_METRICS: lambda: _encode(tuple(metrics())), _READINESS: lambda: _encode(readiness())},
        on_taken=lambda key_id, num_tokens: meter.accounts.taken_elsewhere(key_id, num_tokens, meter.clock.now_ns()),
    )
    meter.accounts.on_taken = gossip.taken
    for placement, _ in models.values():
        placement.tell(gossip.news)
    return Others(config.gateway_id, gossip)


def _decoded(body: bytes | None, kind: Any) -> Any:
    return None if body is None else msgspec.msgpack.decode(body, type=kind)
