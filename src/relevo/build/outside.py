"""What the world outside is told of a supervisor: probes over a port of its own, a service manager over its socket.

Both are answered by the supervisor's own loop, which computes nothing and reads no request: a long prompt cannot delay
them, and a peer's death never shows in them. Whether requests are served is the gateway's `GET /ready`, another
question. Sources: Kubernetes' "Liveness, Readiness, and Startup Probes"; sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from relevo.build.listening import open_listener
from relevo.core.errors import SettingsError

_LOOK_S = 1.0  # arbitrary: how late a service manager may learn of it
_MAX_PROBES = (
    64  # arbitrary, at once; more, and the one that has been there longest has to go: a probe is gone in no time
)
_PROBE_DEADLINE_S = 5.0
_MAX_HEAD_BYTES = 8192
_READY: tuple[str, dict[str, object]] = ("200 OK", {"ready": True})
_NO_PROBE: tuple[str, dict[str, object]] = ("404 Not Found", {"error": "GET /live or GET /ready"})


class Supervised(Protocol):
    """What is asked of `relevo.supervisor.Supervisor`."""

    @property
    def is_stopping(self) -> bool: ...

    def waited_for(self) -> list[str]: ...


def open_probe_port(host: str, port: int | None) -> socket.socket | None:
    """Bound and listening; None where none is wanted. Raises SettingsError."""
    if port is None:
        return None
    try:
        return open_listener(host, port)
    except SettingsError as error:
        raise SettingsError(f"--probe-port {port}: {error.message}") from error


@contextlib.asynccontextmanager
async def told_outside(
    supervisor: Supervised, probed: socket.socket | None, environ: MutableMapping[str, str] = os.environ
) -> AsyncIterator[None]:
    """Probes and the service manager are answered while this is open; `probed` is closed with it."""
    manager = ServiceManager.named_in(environ)
    async with contextlib.AsyncExitStack() as open_until:
        if probed is not None:
            server = await asyncio.start_server(_Probes(supervisor).answer, sock=probed, limit=_MAX_HEAD_BYTES)
            open_until.callback(server.close)
        if manager is not None:
            telling = asyncio.create_task(_tell(manager, supervisor))
            open_until.callback(telling.cancel)
        yield


@contextlib.contextmanager
def answered_meanwhile(waited_for: str, probed: socket.socket | None) -> Iterator[None]:
    """Before there is a supervisor probes are answered from a thread: who waits for others is alive, and not ready.
    `probed` stays open."""
    if probed is None:
        yield
        return
    ending: Future[Callable[[], object]] = Future()
    port = probed.dup()

    async def answer() -> None:
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()
        async with told_outside(_Waiting(waited_for), port, {}):
            ending.set_result(lambda: loop.call_soon_threadsafe(is_over.set))
            await is_over.wait()

    def run() -> None:
        try:
            asyncio.run(answer())
        except Exception as error:
            if ending.done():
                raise
            ending.set_exception(error)  # which is waited for

    thread = threading.Thread(target=run, name="probes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.result()()
        thread.join()


@dataclass(frozen=True, slots=True)
class _Waiting:
    for_whom: str
    is_stopping: bool = False

    def waited_for(self) -> list[str]:
        return [self.for_whom]


def why_not_ready(supervisor: Supervised) -> str:
    """Empty: every process of this supervisor is ready. Does not ask who else is there."""
    if supervisor.is_stopping:
        return "it is being stopped"
    waited_for = supervisor.waited_for()
    return f"not ready: {', '.join(waited_for)}" if waited_for else ""


# ---- probes ----------------------------------------------------------------------------------------------------------


class _Probes:
    """One request per connection; what is asked for is in its first line."""

    def __init__(self, supervisor: Supervised) -> None:
        self._supervisor = supervisor
        self._open: dict[asyncio.StreamWriter, None] = {}  # in the order in which they came

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > _MAX_PROBES:
            longest = next(iter(self._open))
            del self._open[longest]
            longest.transport.abort()
        try:
            async with asyncio.timeout(_PROBE_DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer_to(head.split(b"\r\n", 1)[0].split()))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it left, or it is no probe
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _answer_to(self, words: list[bytes]) -> bytes:
        method, target = (*words[:2], b"", b"")[:2]
        path = target.partition(b"?")[0]
        reason = why_not_ready(self._supervisor)
        answers: dict[bytes, tuple[str, dict[str, object]]] = {
            b"/live": ("200 OK", {"live": True}),
            b"/ready": ("503 Service Unavailable", {"ready": False, "reason": reason}) if reason else _READY,
        }
        if method not in (b"GET", b"HEAD"):
            return _reply("405 Method Not Allowed", {"error": "GET /live or GET /ready"}, with_body=True)
        return _reply(*answers.get(path, _NO_PROBE), with_body=method == b"GET")


def _reply(status: str, said: Mapping[str, object], *, with_body: bool) -> bytes:
    body = json.dumps(said).encode() + b"\n"
    head = (f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join((*head, "", "")).encode() + (body if with_body else b"")


# ---- service manager -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """systemd, or what speaks as it does. `watchdog_s`: a longer silence and it ends us; None: it does not watch."""

    address: str
    watchdog_s: float | None

    @classmethod
    def named_in(cls, environ: MutableMapping[str, str]) -> ServiceManager | None:
        """Its variables are taken out: they are for this process alone, not for children."""
        address = environ.pop("NOTIFY_SOCKET", "")
        watchdog_us, watched_pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        if not address.startswith(("/", "@")):
            return None
        is_watched = watchdog_us.isdecimal() and int(watchdog_us) > 0 and watched_pid in ("", str(os.getpid()))
        return cls(address, int(watchdog_us) / 1e6 if is_watched else None)

    def tell(self, *lines: str) -> None:
        """It may be gone, which is no reason to end."""
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)


async def _tell(manager: ServiceManager, supervisor: Supervised) -> None:
    was_ready, told = False, ""
    interval_s = _LOOK_S if manager.watchdog_s is None else min(_LOOK_S, manager.watchdog_s / 3)
    while True:
        reason = why_not_ready(supervisor)
        lines = [] if reason == told and (was_ready or reason) else [f"STATUS={reason or 'ready'}"]
        if supervisor.is_stopping:
            lines.append("STOPPING=1")
        elif not reason and not was_ready:
            was_ready = True
            lines.append("READY=1")
        if manager.watchdog_s is not None:
            lines.append("WATCHDOG=1")
        if lines:
            manager.tell(*lines)
        told = reason
        await asyncio.sleep(interval_s)
