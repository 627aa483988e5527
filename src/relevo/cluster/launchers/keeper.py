"""Keeps one supervisor running on this machine: starts it again when it ends, and says how it is.

It ends with this process, however this one ends (`wire.leash`). Its thread starts it and waits for it: the kernel ends
a process with the thread that made it. Does not know what the supervisor is for.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO

from relevo.cluster.launchers.seats import SeatState
from relevo.core.errors import RelevoError
from relevo.wire.child_process import Lifeline, on_leash, python_environment

FOR_A_PERSON = 2  # exit status: a setting is wrong, or the cluster does not take it
_DELAYS_S = (0.2, 0.5, 1.0, 2.0, 4.0)  # arbitrary: quick first, then polite
_LOOK_S = 0.2
_HEALTHY_AFTER_LOOKS = 300  # a minute
_END_S = 15.0  # beside the drain: rows are kept, workers end

Prepare = Callable[[], Sequence[str] | None]


class Keeper:
    """`prepare`: the command line, None while it cannot be told yet; RelevoError: a person has to change something.
    `is_stale`: what it was started with is no longer so, and it has to be started anew."""

    def __init__(
        self, name: str, host: str, prepare: Prepare, *, drain_s: float, is_stale: Callable[[], bool] = lambda: False
    ) -> None:
        self.name, self.host = name, host
        self._prepare, self._is_stale, self._drain_s = prepare, is_stale, drain_s
        self._ending = threading.Event()
        self._state, self._reason, self._num_starts, self._pid = "waiting", "", 0, 0
        self._last_line = ""
        self._thread = threading.Thread(target=self._keep, name=f"keeper of {name}", daemon=True)
        self._thread.start()

    def state(self) -> SeatState:
        return SeatState(
            name=self.name,
            state=self._state,
            host=self.host,
            reason=self._reason,
            num_starts=self._num_starts,
            pid=self._pid,
        )

    def end(self) -> None:
        """Returns when it has ended."""
        self._ending.set()
        self._thread.join(self._drain_s + _END_S + 5.0)

    def _keep(self) -> None:
        num_fast_ends = 0
        while not self._ending.is_set():
            try:
                command = self._prepare()
            except RelevoError as error:
                self._say("failed", error.message)
                return
            if command is None:
                self._say("waiting", "the head does not answer")
                self._ending.wait(1.0)
                continue
            status, num_looks = self._run(command)
            if self._ending.is_set():
                break
            if status == 0:
                self._say("ended", "it was drained for good")
                return
            if status == FOR_A_PERSON:
                self._say("failed", self._last_line.removeprefix("relevo: "))
                return
            num_fast_ends = 1 if num_looks > _HEALTHY_AFTER_LOOKS else num_fast_ends + 1
            if status is not None:
                self._say("waiting", f"ended with status {status}: {self._last_line}")
                self._ending.wait(_DELAYS_S[min(num_fast_ends, len(_DELAYS_S)) - 1])
        self._say("ended", "")

    def _run(self, command: Sequence[str]) -> tuple[int | None, int]:
        """Its exit status, None if it was ended for being stale; and how many looks it lived."""
        lifeline = Lifeline()
        with contextlib.closing(lifeline):
            process = subprocess.Popen(
                on_leash(lifeline.read_fd, list(command)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(lifeline.read_fd,),
                env=python_environment(),
                start_new_session=True,
            )
            lifeline.passed()
            assert process.stdout is not None
            reading = threading.Thread(target=self._pass_on, args=(process.stdout,), daemon=True)
            reading.start()
            self._num_starts, self._pid = self._num_starts + 1, process.pid
            self._say("running", "")
            num_looks, is_stale = 0, False
            while process.poll() is None and not (self._ending.is_set() or is_stale):
                self._ending.wait(_LOOK_S)
                num_looks += 1
                is_stale = self._is_stale()
            if process.poll() is None:
                self._terminate(process)
            reading.join(1.0)
            self._pid = 0
            return (None if is_stale else process.returncode), num_looks

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(self._drain_s + _END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _pass_on(self, stream: IO[bytes]) -> None:
        """What it says, to where this process speaks; the last line is kept, which is the reason if it ends."""
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            self._last_line = text or self._last_line
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"{self.name}: {text}\n")

    def _say(self, state: str, reason: str) -> None:
        self._state, self._reason = state, reason
