"""Carries out what the worker's core decided: says it to gateways, has the transports do it.

Owns the translation into messages and calls, what becomes of a request over which code of ours raises, and what is not
said yet of requests whose cancelled writes are under way: a gateway that hears that this worker has let go may have
another one write. Decides nothing else, and does not know in what order or why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from relevo.core.decisions import Decide, unlogged
from relevo.core.ids import PeerId, RequestId
from relevo.core.kv import KVLayout
from relevo.engine.decided import tell_effect
from relevo.engine.load_reports import LoadReports
from relevo.engine.request_faults import failure_of
from relevo.kv.transport_set import TransportSet
from relevo.policy.worker import effects
from relevo.policy.worker.core import WorkerCore
from relevo.wire import messages as wire
from relevo.wire.gateway_links import GatewayLinks

log = logging.getLogger("relevo.engine")


@dataclass(slots=True)
class Outgoing:
    core: WorkerCore
    links: GatewayLinks
    transports: TransportSet
    layout: KVLayout
    reports: LoadReports
    decide: Decide = unlogged
    _held: dict[RequestId, list[tuple[PeerId, wire.ToGateway]]] = field(default_factory=dict)

    def carry_out(self) -> None:
        """What was decided since the last call. A request over which it raises ends; one that cannot even be let go
        ends the worker."""
        while decided := self.core.take_effects():
            self.reports.changed()
            ended: set[RequestId] = set()
            for effect in decided:
                if isinstance(effect, effects.LettingGo | effects.Orphaned):
                    self._do(effect)
                elif effect.request_id not in ended:
                    try:
                        self._do(effect)
                    except Exception as error:
                        ended.add(effect.request_id)
                        self._end(effect.request_id, error, None)

    @contextmanager
    def only(self, request_id: RequestId, asker: PeerId | None = None) -> Iterator[None]:
        """What is done here is done for one request, and then carried out: if it raises, that request ends. `asker`:
        the gateway that asked for it; None: its owner."""
        try:
            yield
        except Exception as error:
            self._end(request_id, error, asker)
        self.carry_out()

    def tell_preempted(self, request_ids: Sequence[RequestId]) -> None:
        """To the gateways whose requests gave their blocks up, before the step that needed these is computed."""
        of_gateway: dict[PeerId, list[RequestId]] = {}
        for request_id in request_ids:
            of_gateway.setdefault(self.core.scheduler.requests[request_id].owner, []).append(request_id)
        for gateway, preempted in of_gateway.items():
            self.links.send(gateway, wire.Preempted(tuple(preempted)))

    @property
    def num_held(self) -> int:
        """Requests of which something is not said yet."""
        return len(self._held)

    def writes_ended(self, request_id: RequestId) -> None:
        """Nothing that was cancelled of it is under way any more."""
        for gateway, message in self._held.pop(request_id, ()):
            self.links.send(gateway, message)

    def _say(self, gateway: PeerId, request_id: RequestId, message: wire.ToGateway) -> None:
        if (held := self._held.get(request_id)) is not None:
            held.append((gateway, message))
        else:
            self.links.send(gateway, message)

    def _end(self, request_id: RequestId, error: Exception, asker: PeerId | None) -> None:
        code, reason = failure_of(error)
        log.exception("request %s ends with %s, the others go on", request_id, code)
        self.core.fault(request_id, asker, code, reason)

    def _do(self, effect: effects.Effect) -> None:
        if self.decide is not unlogged:
            tell_effect(self.decide, effect)
        match effect:
            case effects.OpenRoom(reservation):
                self.transports.reserve(reservation)
            case effects.CloseRoom(reservation):
                self.transports.release(reservation)
            case effects.SendPrefix(prefix):
                transport, address = self.transports[prefix.path.transport], prefix.path.address
                if prefix.blocks:
                    transport.write(prefix.reservation, address, prefix.first_index, prefix.blocks)
                transport.seal(prefix.reservation, address, prefix.num_tokens)
            case effects.CancelWrites(reservation, path):
                if not self.transports[path.transport].cancel(reservation):
                    self._held.setdefault(reservation.request_id, [])
            case effects.Granted(gateway, reservation):
                self._say(gateway, reservation.request_id, wire.Reserved(reservation))
            case effects.Refused(gateway, request_id, code, reason):
                self._say(gateway, request_id, wire.Refused(request_id, code, reason))
            case effects.Failed(gateway, request_id, code, reason):
                self._say(gateway, request_id, wire.RequestFailed(request_id, code, reason))
            case effects.Dropped(gateway, request_id):
                self._say(gateway, request_id, wire.Dropped(request_id))
            case effects.Sealed(gateway, request_id, num_tokens):
                self._say(gateway, request_id, wire.Sealed(request_id, num_tokens))
            case effects.HandedOver(gateway, request_id, num_sealed, num_handed, transfer_s, num_found):
                tail_bytes = self.layout.tail_bytes(num_sealed, num_found)
                num_bytes = num_handed * self.layout.growing_bytes_per_token + tail_bytes
                self.reports.tail_bytes += tail_bytes
                done = wire.PrefillDone(request_id, num_sealed, num_bytes, transfer_s)
                self._say(gateway, request_id, done)
            case effects.Orphaned(request_ids):
                for gateway in self.links.peer_ids:
                    self.links.send(gateway, wire.Orphans(request_ids))
