"""The transports of one worker: all of them let writers into granted room, and a prompt leaves by the one that its path
names.

Owns what the worker tells others of how it is reached. Does not choose: see `policy.routing.kv_path`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from relevo.core.events import TransferEvent
from relevo.core.handoff import KVEndpoint, KVSite
from relevo.core.kv import KVRefusal, Reservation
from relevo.core.ports import KVTransport

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux


def this_box() -> str:
    """The same in every process of this machine, another on every other machine."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else f"{uuid.getnode():012x}"


class TransportSet(Mapping[str, KVTransport]):
    """By name, in the worker's order of preference. May be empty: the worker then takes part in no handoff."""

    def __init__(self, transports: Sequence[KVTransport], arena_id: str, box_id: str | None = None) -> None:
        """`box_id`: None for the machine that this process is on."""
        self._by_name = {transport.name: transport for transport in transports}
        self._arena_id = arena_id
        self._box_id = this_box() if box_id is None else box_id

    def __getitem__(self, name: str) -> KVTransport:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def site(self) -> KVSite:
        endpoints = tuple(KVEndpoint(name, each.address(), each.reach) for name, each in self.items())
        return KVSite(box_id=self._box_id, arena_id=self._arena_id, endpoints=endpoints)

    def take_epoch(self, epoch: int) -> None:
        for transport in self._by_name.values():
            transport.take_epoch(epoch)

    def reserve(self, reservation: Reservation) -> None:
        """Let writers in, over every transport: who computes the prompt is chosen once there is room."""
        for transport in self._by_name.values():
            transport.reserve(reservation)

    def release(self, reservation: Reservation) -> None:
        """No writer any more, over any transport, also if one of them raises."""
        with ExitStack() as stack:
            for transport in self._by_name.values():
                stack.callback(transport.release, reservation)

    def poll(self) -> list[TransferEvent]:
        """Of all of them. Called several times per step, as are the counts below."""
        return [event for transport in self._by_name.values() for event in transport.poll()]

    def close(self) -> None:
        with ExitStack() as stack:
            for transport in self._by_name.values():
                stack.callback(transport.close)

    @property
    def num_refused_writes(self) -> int:
        return sum([transport.num_refused_writes for transport in self._by_name.values()])

    @property
    def num_refused_connections(self) -> Mapping[KVRefusal, int]:
        counts = [each for transport in self._by_name.values() if (each := transport.num_refused_connections)]
        if len(counts) <= 1:
            return counts[0] if counts else {}
        total: Counter[KVRefusal] = Counter()
        for count in counts:
            total.update(count)
        return total
