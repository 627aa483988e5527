"""How Relevo starts processes: what Python they run, where they import from, and the pipe that ties them to us.

Modules come from where they are installed and from the operator's PYTHONPATH, never from the folder that happens to be
the current one: a `random.py` there would be run instead of Python's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from relevo.wire import leash

CUT_OFF = signal.SIGUSR1  # to a gateway, from its supervisor alone: what runs there ends now, and its rows are kept
_PULSE = b"."
_READ_BYTES = 4096
_FIXES = {  # what a process may have too little of
    errno.EAGAIN: "allow more processes and threads (ulimit -u, a container's pids.max)",
    errno.ENOMEM: "give it more memory",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "allow more open files (sysctl fs.file-max)",
}


@dataclass(frozen=True, slots=True)
class Scarcity:
    """What a process has too little of, and who may give it more."""

    reason: str
    fix: str


def scarcity(error: BaseException) -> Scarcity | None:
    """None: the error is of another kind."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and "new thread" in str(error):  # as Python says it
        number = errno.EAGAIN
    fix = _FIXES.get(number or 0)
    return None if fix is None else Scarcity(os.strerror(number or 0), fix)


def python_command(module: str, *arguments: str) -> list[str]:
    """argv of a module of ours in a process of its own."""
    return [sys.executable, "-P", "-m", module, *arguments]


def on_leash(life_fd: int, command: list[str]) -> list[str]:
    """argv that becomes `command`, and ends with this process. `life_fd`: to be passed on under its number."""
    return [sys.executable, "-I", "-S", leash.__file__, str(life_fd), *command]


def python_environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment. An empty entry of PYTHONPATH, as `PYTHONPATH=$PYTHONPATH:/x` leaves it, would mean
    the current folder, so it is left out; who runs from the folder that Relevo itself lies in goes on finding it."""
    environment = dict(os.environ if given is None else given)
    entries = [entry for entry in environment.pop("PYTHONPATH", "").split(os.pathsep) if entry]
    package_root = Path(__file__).resolve().parents[2]
    if package_root == Path.cwd():
        entries.insert(0, str(package_root))
    return environment | ({"PYTHONPATH": os.pathsep.join(entries)} if entries else {})


class Lifeline:
    """The starter's part: `read_fd` is passed to the process, the other end is never passed to any."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)

    def passed(self) -> None:
        """The process has its end; ours of it is closed."""
        os.close(self.read_fd)

    def pulse(self) -> None:
        """Ask for a sign of life. What is full or broken is not waited for."""
        with contextlib.suppress(OSError):
            os.write(self._write_fd, _PULSE)

    def close(self) -> None:
        os.close(self._write_fd)


def answer_pulses(life_fd: int, answer: Callable[[], None]) -> Callable[[], None]:
    """To be called by the loop that does the work whenever `life_fd` can be read: a loop that hangs does not."""
    os.set_blocking(life_fd, False)

    def on_readable() -> None:
        try:
            pulses = os.read(life_fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not pulses:
            os._exit(leash.EXIT_PARENT_GONE)
        answer()

    return on_readable
