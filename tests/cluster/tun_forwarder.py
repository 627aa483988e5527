"""A path between two network namespaces on which packets take time and get lost: kernels without netem have no other.

    tun_forwarder.py PID DEVICE PID DEVICE whole|packets

Makes a tun device in the network namespace of each process and carries what leaves one to the other, in order.
`whole`: what TCP hands over at once (up to 64 KiB) travels as one piece with its offload header, so that one core
carries Gbit/s; `packets`: each packet by itself, so that single ones can be lost. Lines of standard input set
"delay_s loss_fraction", of both directions; its end ends the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
CLONE_NEWNET = 0x40000000
MAX_PIECE_BYTES = 70_000
MAX_WAITING = 20_000  # pieces on the way in one direction; more are lost, as in a full queue


def tun(pid: str, name: str, whole: bool) -> int:
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | (IFF_VNET_HDR if whole else 0)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    if whole:
        fcntl.ioctl(fd, TUNSETVNETHDRSZ, struct.pack("i", 10))
        fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return fd


def main() -> None:
    pid, device, other_pid, other_device, mode = sys.argv[1:]
    one, two = tun(pid, device, mode == "whole"), tun(other_pid, other_device, mode == "whole")
    target = {one: two, two: one}
    waiting: dict[int, deque[tuple[float, bytes]]] = {one: deque(), two: deque()}  # by where it came from
    delay_s, loss_fraction = 0.0, 0.0
    poll = select.poll()
    for fd in (one, two, 0):
        poll.register(fd, select.POLLIN)
    os.write(1, b".")
    while True:
        next_s = min((line[0][0] for line in waiting.values() if line), default=None)
        patience_ms = None if next_s is None else max(0.0, (next_s - time.monotonic()) * 1e3)
        for fd, _ in poll.poll(patience_ms):
            if fd == 0:
                said = os.read(0, 65536)
                if not said:
                    return
                delay_s, loss_fraction = map(float, said.split(b"\n")[-2].split())
                continue
            due_s = time.monotonic() + delay_s
            for _ in range(64):
                try:
                    piece = os.read(fd, MAX_PIECE_BYTES)
                except BlockingIOError:
                    break
                if len(waiting[fd]) < MAX_WAITING and random.random() >= loss_fraction:
                    waiting[fd].append((due_s, piece))
        now_s = time.monotonic()
        for fd, line in waiting.items():
            while line and line[0][0] <= now_s:
                with contextlib.suppress(OSError):  # the device is down, or does not take it: lost
                    os.write(target[fd], line.popleft()[1])


main()
