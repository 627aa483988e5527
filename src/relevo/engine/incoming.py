"""What gateways ask for one request, from messages into calls of the worker's core. Owns the translation only."""

from __future__ import annotations

from relevo.core.ids import PeerId, RequestId
from relevo.policy.worker.core import WorkerCore
from relevo.wire import messages as wire

Asked = wire.Submit | wire.Reserve | wire.Prefill | wire.SealBlocks | wire.StartDecode | wire.ComputeReserved


def request_of(message: Asked) -> RequestId:
    match message:
        case wire.Submit(request=request) | wire.Reserve(request=request) | wire.Prefill(request=request):
            return request.request_id
        case wire.StartDecode(baton=baton):
            return baton.request_id
        case wire.SealBlocks(request_id=request_id) | wire.ComputeReserved(request_id=request_id):
            return request_id


def ask(core: WorkerCore, peer: PeerId, message: Asked, now_ns: int) -> bool:
    """True: there is work of the request here now, or more than before."""
    match message:
        case wire.Submit(request=request):
            return core.submit(peer, request, message.samples, now_ns)
        case wire.Reserve(request=request):
            return core.reserve(peer, request, now_ns)
        case wire.Prefill(request=request):
            return core.prefill(peer, request, message.reservation, message.path, message.num_found_tokens, now_ns)
        case wire.StartDecode(baton=baton):
            return core.start_decode(peer, baton, now_ns)
        case wire.ComputeReserved(request_id=request_id):
            return core.compute_reserved(peer, request_id, message.samples, now_ns)
        case wire.SealBlocks():
            core.seal(peer, message.request_id, message.num_tokens)
            return False
