"""Decides what memory a shared arena lies on, so that it has huge pages where the system can give any.

Attention reads all KV of a sequence for every token: with pages of 4 KiB it waits for translations as well. The kernel
gives a memfd huge pages only if `shmem_enabled` says so, and it seldom does; a tmpfs mounted with `huge=advise` is
asked on its own. Owns: that choice, and its reason in words. Does not know what lies in the file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from relevo.kv import huge_page_mount

_SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_ASKED_BY_MAPPING = ("always", "within_size", "advise", "force")
_TIMEOUT_S = 10.0


class SharedFile(NamedTuple):
    """A new empty file without a name. Its descriptor is the caller's, and no child inherits it."""

    fd: int  # -1: a memfd does as well
    pages: str  # of its mappings, in words


def huge_page_file(shmem_enabled: Path = _SHMEM_ENABLED) -> SharedFile:
    """On a tmpfs of its own where only that gives huge pages; without one, why not."""
    chosen = _chosen(shmem_enabled)
    if chosen in _ASKED_BY_MAPPING:
        return SharedFile(-1, "2 MiB pages")
    if chosen != "never":
        return SharedFile(-1, f"small pages: {'shmem_enabled is deny' if chosen else 'the kernel has no huge ones'}")
    try:
        return SharedFile(_file_of_own_mount(), "2 MiB pages, on a tmpfs of its own")
    except OSError as error:
        return SharedFile(-1, f"4 KiB pages: {error}; for larger ones: echo advise | sudo tee {shmem_enabled}")


def _chosen(file: Path) -> str:
    """What stands in brackets; empty where there is no such file."""
    try:
        return file.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def _file_of_own_mount() -> int:
    """Raises OSError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_TIMEOUT_S)
        command = [sys.executable, "-I", "-S", huge_page_mount.__file__, str(theirs.fileno()), tempfile.gettempdir()]
        try:
            run = subprocess.run(
                command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"no tmpfs within {_TIMEOUT_S:g} s") from None
        if run.returncode != 0:
            lines = run.stderr.decode(errors="replace").strip().splitlines()
            raise OSError(lines[-1] if lines else f"the process that mounts ended with {run.returncode}")
        theirs.close()  # then the end of the stream says that nothing was sent
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    if not fds:
        raise OSError("the process that mounts sent no file")
    os.set_inheritable(fds[0], False)
    return fds[0]
