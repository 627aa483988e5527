"""Measures the ways for KV from this node to every other: at the join, after a change, after a fault, and now and then.

One probe at a time, each in a thread: two at once would measure each other. Tells what was found in reports that go to
heads with the node's workers. Does not decide what a slow or broken way means.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from relevo.cluster.member_messages import NodePeer
from relevo.core.cluster import LinkReport
from relevo.core.ids import WorkerId, WorkerRef
from relevo.kv.door import KVDoor
from relevo.kv.link_probe import LinkProbe, probe_link

_HEADERS_BYTES = {True: 60, False: 40}  # of IP and TCP, by: is it IPv6
AGAIN_S = 60.0  # arbitrary; a probe sends some megabytes each way
AFTER_FAULT_S = 10.0  # arbitrary
_LOOK_S = 0.5


class KVProbes:
    """`run` until cancelled."""

    def __init__(self, door: KVDoor, peers: Callable[[], tuple[NodePeer, ...]], on_change: Callable[[], None]) -> None:
        self._door, self._peers, self._on_change = door, peers, on_change
        self._found: dict[str, tuple[LinkReport, str, float]] = {}  # by node: it, the address, and when again

    @property
    def reports(self) -> tuple[LinkReport, ...]:
        return tuple(report for report, _, _ in self._found.values())

    async def run(self) -> None:
        while True:
            peers = {peer.name: peer for peer in self._peers()}
            for name in [each for each in self._found if each not in peers]:
                del self._found[name]
            for name, peer in peers.items():
                if peer.kv_addresses and self._is_due(name, peer):
                    await self._probe(peer)
            await asyncio.sleep(_LOOK_S)

    def _is_due(self, name: str, peer: NodePeer) -> bool:
        known = self._found.get(name)
        return known is None or known[1] != peer.kv_addresses[0] or time.monotonic() >= known[2]

    async def _probe(self, peer: NodePeer) -> None:
        """Of one worker: all of a node are behind one network card."""
        target = WorkerRef(WorkerId(peer.kv_workers[0][0]), peer.kv_workers[0][1])
        address = peer.kv_addresses[0]
        found = await asyncio.to_thread(probe_link, self._door, address, target)
        report = _report(peer.name, found)
        before = self._found.get(peer.name)
        again_s = time.monotonic() + (AFTER_FAULT_S if report.fault else AGAIN_S)
        self._found[peer.name] = report, address, again_s
        if before is None or before[0] != report:
            self._on_change()


def _report(name: str, found: LinkProbe) -> LinkReport:
    if found.failure:
        return LinkReport(to_node=name, fault=found.failure)
    is_ipv6 = "[" in found.address
    return LinkReport(
        to_node=name,
        bytes_per_s=found.rate,
        round_trip_s=found.round_trip_s,
        mtu_bytes=found.max_segment_bytes + _HEADERS_BYTES[is_ipv6],
        encryption="encrypted" if found.is_encrypted else "plain",
    )
