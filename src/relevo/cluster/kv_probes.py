"""Measures the ways for KV from this node to every other: at the join, after a change, after a fault, and now and then.
Between measurements a few kilobytes show every few seconds whether anything passes.

One probe at a time, each in a thread: two at once would measure each other. Tells what was found in reports that go to
heads with the node's workers. Does not decide what a slow or broken way means.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from relevo.cluster.member_messages import NodePeer
from relevo.core.cluster import LinkReport
from relevo.core.ids import WorkerId, WorkerRef
from relevo.kv.door import KVDoor
from relevo.kv.link_probe import LinkProbe, probe_link

_HEADERS_BYTES = {True: 60, False: 40}  # of IP and TCP, by: is it IPv6
AGAIN_S = 60.0  # arbitrary; a probe sends some megabytes each way
AFTER_FAULT_S = 5.0  # arbitrary
BRIEF_S = 5.0  # arbitrary: prompts are not sent for long over a way that carries nothing
_BRIEF_TIMEOUT_S = 3.0  # of each step; arbitrary
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class _Known:
    """Of the way to one node."""

    report: LinkReport
    address: str
    measure_at_s: float
    look_at_s: float


class KVProbes:
    """`run` until cancelled."""

    def __init__(self, door: KVDoor, peers: Callable[[], tuple[NodePeer, ...]], on_change: Callable[[], None]) -> None:
        self._door, self._peers, self._on_change = door, peers, on_change
        self._found: dict[str, _Known] = {}  # by node

    @property
    def reports(self) -> tuple[LinkReport, ...]:
        return tuple(known.report for known in self._found.values())

    async def run(self) -> None:
        while True:
            peers = {peer.name: peer for peer in self._peers()}
            for name in [each for each in self._found if each not in peers]:
                del self._found[name]
            for peer in peers.values():
                known, now_s = self._found.get(peer.name), time.monotonic()
                if not peer.kv_addresses:
                    continue
                if known is None or known.address != peer.kv_addresses[0] or now_s >= known.measure_at_s:
                    await self._measure(peer)
                elif not known.report.fault and now_s >= known.look_at_s:
                    await self._look(peer, known)
            await asyncio.sleep(_LOOK_S)

    async def _measure(self, peer: NodePeer) -> None:
        report = _report(peer.name, await asyncio.to_thread(probe_link, self._door, *_end_of(peer)))
        self._keep(peer, report, AFTER_FAULT_S if report.fault else AGAIN_S)

    async def _look(self, peer: NodePeer, known: _Known) -> None:
        found = await asyncio.to_thread(probe_link, self._door, *_end_of(peer), _BRIEF_TIMEOUT_S, is_brief=True)
        if found.failure:
            self._keep(peer, _report(peer.name, found), AFTER_FAULT_S)
        else:
            self._found[peer.name] = replace(known, look_at_s=time.monotonic() + BRIEF_S)

    def _keep(self, peer: NodePeer, report: LinkReport, again_after_s: float) -> None:
        before, now_s = self._found.get(peer.name), time.monotonic()
        self._found[peer.name] = _Known(report, peer.kv_addresses[0], now_s + again_after_s, now_s + BRIEF_S)
        if before is None or before.report != report:
            self._on_change()


def _end_of(peer: NodePeer) -> tuple[str, WorkerRef]:
    """Of one worker: all of a node are behind one network card."""
    worker_id, epoch = peer.kv_workers[0]
    return peer.kv_addresses[0], WorkerRef(WorkerId(worker_id), epoch)


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
