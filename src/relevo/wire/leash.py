"""A process that ends with the one that started it, at whatever instant that one dies. Standard library only.

The starter holds the write end of a pipe, the process its read end (`life_fd`). The kernel ends the process when its
parent dies (PR_SET_PDEATHSIG); a parent that died before that was asked for has closed its end of the pipe, which no
change of parents can hide. Run as a file, it puts any command on such a leash and becomes it:
`python -I -S leash.py LIFE_FD COMMAND...`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

EXIT_PARENT_GONE = 1
EXIT_NOT_FOUND = 127  # a shell's
_PR_SET_PDEATHSIG = 1


def end_with_parent(life_fd: int) -> None:
    """From here on, or at once if the other end is closed. Elsewhere than on Linux only what is closed now counts;
    who reads `life_fd` in its event loop sees the rest."""
    os.set_inheritable(life_fd, False)
    ask_for_end_with_parent()
    if is_parent_gone(life_fd):
        os._exit(EXIT_PARENT_GONE)


def ask_for_end_with_parent() -> None:
    """The kernel's part, on Linux. A parent that is gone by now is not noticed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_parent_gone(life_fd: int) -> bool:
    """No process has the write end any more."""
    poll = select.poll()
    poll.register(life_fd, 0)
    return bool(poll.poll(0))  # without being asked, poll tells of a hang-up only


def main() -> None:
    life_fd, command = int(sys.argv[1]), sys.argv[2:]
    end_with_parent(life_fd)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.exit(EXIT_NOT_FOUND)


if __name__ == "__main__":
    main()
