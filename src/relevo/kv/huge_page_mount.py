"""A program that opens a nameless file on a tmpfs of its own, whose mappings may have huge pages, and hands it over.

Run by `kv.huge_pages` as `python -I -S huge_page_mount.py FD FOLDER`: FD is a socket that takes the descriptor, FOLDER
any folder to mount on. The mount lives in a mount namespace of this process: no other process sees it. It ends with the
process, and the file lives on as long as its descriptors. Without the right to mount, a user namespace gives it.
Ends with one line on standard error where the system allows neither.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000  # linux/sched.h
_MS_REC, _MS_SLAVE = 0x4000, 0x80000  # linux/mount.h
_OPTIONS = b"huge=advise,size=0,mode=0700"  # huge pages where a mapping asks; no limit of its own


def main(socket_fd: int, folder: str) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        _check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "a user namespace")
        for file, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            Path("/proc/self", file).write_text(line)
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "a mount namespace")
    _check(libc.mount(b"relevo", os.fsencode(folder), b"tmpfs", 0, _OPTIONS), "a tmpfs with huge pages")
    place = Path(folder, "relevo-arena")  # what people see among a process's descriptors
    place.mkdir(0o700)
    fd = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
    with socket.socket(fileno=socket_fd) as taker:
        socket.send_fds(taker, [b"\0"], [fd])


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2])
    except OSError as error:
        sys.exit(error.strerror or str(error))
