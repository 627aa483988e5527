"""The receiving process of the TCP transport measurement. Knows no time; the sender measures."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection

from relevo.core.ids import WorkerRef
from relevo.core.kv import KVLayout
from relevo.kv.arena import Arena
from relevo.kv.door import KVDoor
from relevo.kv.transports.tcp import TcpTransport


def receive_blocks(
    commands: Connection,
    layout: KVLayout,
    num_blocks: int,
    secret: bytes,
    identity: WorkerRef,
    open_door: Callable[[], KVDoor] | None = None,
) -> None:
    """Send the transport's address, then obey `("reserve" | "release", Reservation)` until the pipe closes.

    A release is answered with the checksum of everything that was received.
    """
    arena = Arena.create(layout, num_blocks, shared=False)
    door = open_door() if open_door is not None else None
    transport = TcpTransport(arena, secret=secret, identity=identity, door=door)
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


def receive_bytes(answers: Connection, num_bytes: int) -> None:
    """Tell a port, then receive so many bytes over one plain connection, again and again until it closes. Each time is
    answered there with a byte, and on the pipe with a checksum."""
    received = memoryview(bytearray(num_bytes))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answers.send(listener.getsockname())
        sock, _ = listener.accept()
    with sock:
        while True:
            rest = received
            while rest:
                count = sock.recv_into(rest)
                if count == 0:
                    return
                rest = rest[count:]
            sock.sendall(b"k")
            answers.send(zlib.crc32(received))
