"""The receiving process of the TCP transport measurement. Knows no time; the sender measures."""

from __future__ import annotations

import zlib
from multiprocessing.connection import Connection

from relevo.core.ids import WorkerRef
from relevo.core.kv import KVLayout
from relevo.kv.arena import Arena
from relevo.kv.transports.tcp import TcpTransport


def receive_blocks(commands: Connection, layout: KVLayout, num_blocks: int, secret: bytes, identity: WorkerRef) -> None:
    """Send the transport's address, then obey `("reserve" | "release", Reservation)` until the pipe closes.

    A release is answered with the checksum of everything that was received.
    """
    arena = Arena.create(layout, num_blocks, shared=False)
    transport = TcpTransport(arena, secret=secret, identity=identity)
    commands.send(transport.address())
    try:
        while True:
            what, reservation = commands.recv()
            if what == "reserve":
                transport.reserve(reservation)
                commands.send(None)
            else:
                transport.release(reservation)
                checksum = zlib.crc32(arena.buffer)
                arena.buffer[:] = bytes(len(arena.buffer))  # so that the next transfer cannot pass by doing nothing
                commands.send(checksum)
    except EOFError:
        pass
    finally:
        transport.close()
