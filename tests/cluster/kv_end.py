"""One end of KV links, as a program for a machine: a transport with its arena, told by lines of JSON what to do.

    kv_end.py IDENTITY_FOLDER WORKER_ID EPOCH HOST PORT BLOCK_BYTES NUM_BLOCKS encrypted|plain STREAMS

Answers each line with one: what happened, and the seconds that it took.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from relevo.build.kv_door import IdentityKeys
from relevo.cluster.identity import NodeIdentity
from relevo.core.events import TransferFailed, TransferSealed, WritesEnded
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import KVGroup, KVLayout, Reservation
from relevo.kv.arena import Arena
from relevo.kv.door import KVDoor
from relevo.kv.link_probe import probe_link
from relevo.kv.transports.tcp import TcpTransport

BLOCK_SIZE = 4


class KVEnd:
    def __init__(self, folder: str, worker_id: str, epoch: str, host: str, port: str, *sizes: str) -> None:
        block_bytes, num_blocks, encryption, num_streams = sizes
        group = KVGroup.full([0], 1, int(block_bytes) // (8 * BLOCK_SIZE))
        layout = KVLayout(model_hash="m", dtype="float32", block_size=BLOCK_SIZE, groups=(group,))
        self.arena = Arena.create(layout, int(num_blocks), shared=True)
        self.woken = threading.Event()
        self.door = KVDoor(
            keys=IdentityKeys(NodeIdentity.load(Path(folder))),
            host="",
            ports=range(int(port), int(port) + 1),
            advertised_host=host,
            encrypts=encryption == "encrypted",
            num_streams=int(num_streams),
        )
        self.worker = WorkerRef(WorkerId(worker_id), int(epoch))
        self.transport = TcpTransport(
            self.arena, secret=b"", identity=self.worker, door=self.door, on_wake=self.woken.set
        )

    def address(self) -> str:
        return self.transport.address()

    def reserve(self, name: str, block_ids: list[int]) -> None:
        self.transport.reserve(_reservation(self.worker, name, block_ids))

    def release(self, name: str, block_ids: list[int]) -> None:
        self.transport.release(_reservation(self.worker, name, block_ids))

    def fill(self, seed: int) -> None:
        self.arena.buffer[:] = np.random.default_rng(seed).bytes(len(self.arena.buffer))

    def digest(self, block_ids: list[int]) -> str:
        told = hashlib.sha256()
        for block_id in block_ids:
            told.update(self.arena.block(block_id))
        return told.hexdigest()

    def begin(self, target: list[Any], address: str, name: str, block_ids: list[int]) -> None:
        reservation = _reservation(WorkerRef(WorkerId(target[0]), target[1]), name, block_ids)
        self.transport.write(reservation, address, 0, block_ids)
        self.transport.seal(reservation, address, BLOCK_SIZE * len(block_ids))

    def end(self, timeout_s: float) -> dict[str, str]:
        """What became of the transfers that have ended by then: at least one, unless the time is up."""
        deadline_s = time.monotonic() + timeout_s
        while not (events := self._polled()) and (left_s := deadline_s - time.monotonic()) > 0:
            self.woken.wait(left_s)
            self.woken.clear()
        return {
            str(event.reservation.request_id): (
                "sealed"
                if isinstance(event, TransferSealed)
                else f"{'stale' if event.stale else 'failed'}: {event.reason}"
            )
            for event in events
        }

    def _polled(self) -> list[TransferSealed | TransferFailed]:
        """What was cancelled is not asked for."""
        return [event for event in self.transport.poll() if not isinstance(event, WritesEnded)]

    def timed(self, target: list[Any], address: str, name: str, block_ids: list[int]) -> float:
        """Seconds from the first write to the acknowledged seal."""
        started_s = time.perf_counter()
        self.begin(target, address, name, block_ids)
        told = self.end(60.0)
        took_s = time.perf_counter() - started_s
        assert told == {name: "sealed"}, told
        self.cancel(target, name, block_ids)
        return took_s

    def cancel(self, target: list[Any], name: str, block_ids: list[int]) -> None:
        self.transport.cancel(_reservation(WorkerRef(WorkerId(target[0]), target[1]), name, block_ids))

    def probe(self, target: list[Any], address: str, timeout_s: float) -> dict[str, Any]:
        found = probe_link(self.door, address, WorkerRef(WorkerId(target[0]), target[1]), timeout_s)
        return {"failure": found.failure, "rate": found.rate, "mss": found.max_segment_bytes, "rtt": found.round_trip_s}

    def connections(self) -> list[int]:
        return list(self.transport.num_connections)


def _reservation(worker: WorkerRef, name: str, block_ids: list[int]) -> Reservation:
    return Reservation(
        request_id=RequestId(name),
        worker_id=worker.worker_id,
        epoch=worker.epoch,
        block_size=BLOCK_SIZE,
        block_ids=tuple(block_ids),
        generations=(1,) * len(block_ids),
        num_hit_tokens=0,
    )


def main() -> None:
    end = KVEnd(*sys.argv[1:])
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        started_s = time.monotonic()
        answer = getattr(end, what)(*arguments)
        sys.stdout.write(json.dumps([answer, time.monotonic() - started_s]) + "\n")
        sys.stdout.flush()
    end.transport.close()


if __name__ == "__main__":
    main()
