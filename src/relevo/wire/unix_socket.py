"""Unix sockets that belong to one user: made for the owner alone, and open to processes of the owner alone.

Owns the mode of the socket's file, whatever the umask is, and the question who is at the other end. The folder around
it is the supervisor's, and closed to others as well; either alone would do.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path

OWNER_ONLY = 0o600
BACKLOG = 128  # arbitrary; one per gateway is needed
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def listen_unix(path: str) -> socket.socket:
    """Takes over the path of a socket at which nothing listens any more. Raises OSError."""
    if _is_abandoned(path):
        Path(path).unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(listener.fileno(), OWNER_ONLY)  # Linux makes the file with the socket's mode: never open in between
        listener.bind(path)
        Path(path).chmod(OWNER_ONLY)  # elsewhere, and under a umask that takes the owner's rights
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def is_own_user(fd: int) -> bool:
    """Whether the process at the other end of a connected socket runs as this one's user. True where the kernel does
    not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    with socket.socket(fileno=os.dup(fd)) as same:  # event loops hand out sockets without options
        _, uid, _ = _CREDENTIALS.unpack(same.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def _is_abandoned(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED
