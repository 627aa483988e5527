"""How fast a core of this machine sends KV, plain and encrypted: measured over the loopback, in a moment.

The very channels that carry KV are used, so the figures have the system calls and the interpreter in them.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from relevo.kv.transports.tcp_channel import Channel, PlainChannel
from relevo.kv.transports.tcp_sealed_channel import SealedChannel
from relevo.kv.transports.tcp_sealing import SECRET_BYTES
from relevo.policy.host.kv_encryption import SendingRates

_NUM_ROUNDS = 3  # the best of them counts: others are disturbed
_ROUND_BYTES = 8 * 1024 * 1024  # some ms each way
_SIOCGIFADDR = 0x8915
_NET = Path("/sys/class/net")


def measure_sending(host: str = "") -> SendingRates:
    """Below a tenth of a second on an idle machine. `host`: the address of this box that others connect to."""
    one, other = os.urandom(SECRET_BYTES), os.urandom(SECRET_BYTES)
    with _loopback() as (sending, receiving):
        plain = _best(PlainChannel(sending), PlainChannel(receiving))
    with _loopback() as (sending, receiving):
        encrypted = _best(SealedChannel(sending, one, other), SealedChannel(receiving, other, one))
    return SendingRates(plain=plain, encrypted=encrypted, interface=interface_rate(host))


def interface_rate(host: str) -> float:
    """Bytes/s of the network card with that address, as the kernel tells; 0 where it does not."""
    name = _interface_of(host)
    if not name:
        return 0.0
    try:
        megabits = int((_NET / name / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0
    return megabits * 1e6 / 8 if megabits > 0 else 0.0


def _interface_of(host: str) -> str:
    """The card that has the address. Linux."""
    try:
        *_, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    except (OSError, UnicodeError):
        return ""
    return _cards_by_address().get(str(place[0]).partition("%")[0], "")


def _cards_by_address() -> dict[str, str]:
    """Of IPv4 the first address of each card, of IPv6 all."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[socket.inet_ntoa(answer[20:24])] = name
    with contextlib.suppress(OSError):  # a kernel without IPv6
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            address, *_, name = line.split()
            found[str(ipaddress.IPv6Address(int(address, 16)))] = name
    return found


@contextlib.contextmanager
def _loopback() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        yield one, other


def _best(sending: Channel, receiving: Channel) -> float:
    """By the processor's time of the busier end, so that what else the machine does is not counted."""
    source, target = memoryview(bytearray(_ROUND_BYTES)), memoryview(bytearray(_ROUND_BYTES))
    received_s: list[float] = []

    def receive() -> None:
        for _ in range(_NUM_ROUNDS):
            started_s = time.thread_time()
            receiving.receive_into([target])
            received_s.append(time.thread_time() - started_s)
            receiving.send([target[:1]])

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    sent_s = []
    for _ in range(_NUM_ROUNDS):
        started_s = time.thread_time()
        sending.send([source])
        sent_s.append(time.thread_time() - started_s)
        sending.receive_into([memoryview(bytearray(1))])
    thread.join()
    return _ROUND_BYTES / max(min(sent_s), min(received_s), 1e-9)
