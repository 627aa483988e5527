"""A worker's connections to gateways that only listen: what each of them was told, in order."""

from __future__ import annotations

from relevo.core.events import WorkerLoad
from relevo.core.handoff import NO_SITE
from relevo.core.ids import PeerId, WorkerId
from relevo.engine.fake_runner import fake_layout
from relevo.wire import messages as wire
from relevo.wire.in_process_links import InProcessLinks

HELLO = wire.Hello(
    protocol_version=wire.PROTOCOL_VERSION,
    worker_id=WorkerId("w"),
    epoch=1,
    pid=1,
    role="unified",
    layout=fake_layout(4),
    model_name="fake",
    vocab_size=8,
    max_model_len=64,
    kv_site=NO_SITE,
    load=WorkerLoad(),
)


class RecordedLinks(InProcessLinks):
    def __init__(self, num_gateways: int = 2) -> None:
        super().__init__(lambda: HELLO, self._count_ready)
        self.num_ready = 0
        self.told: list[tuple[PeerId, wire.ToGateway]] = []  # without Hello
        self.unread: dict[PeerId, int] = {}  # bytes
        self.gateways = [self.add() for _ in range(num_gateways)]

    def add(self) -> PeerId:
        """One more gateway."""
        peer = PeerId(self._num_peers)
        assert peer == self.connect(lambda message: self._note(peer, message))
        return peer

    def told_to(self, peer: PeerId) -> list[wire.ToGateway]:
        return [message for receiver, message in self.told if receiver == peer]

    def num_unsent_bytes(self, peer_id: PeerId) -> int:
        return self.unread.get(peer_id, 0)

    def _note(self, peer: PeerId, message: wire.ToGateway) -> None:
        if message is not HELLO:
            self.told.append((peer, message))

    def _count_ready(self) -> None:
        self.num_ready += 1
