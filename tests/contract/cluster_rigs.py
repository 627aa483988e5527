"""A head in this process, and nodes that join it over the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec

from relevo.cluster.enroller import Enroller, found_cluster
from relevo.cluster.enrolment import enrol, enrolment_handlers
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.opening import Purpose
from relevo.cluster.peer import NodeRole, Refusal
from relevo.cluster.stream import FramedStream
from relevo.cluster.stream_guard import StreamGuard
from relevo.cluster.stream_server import Handler, StreamServer
from relevo.core.host_port import HostPort

PATIENCE_S = 10.0


class Word(msgspec.Struct, frozen=True, tag=True, array_like=True):
    number: int
    padding: bytes = b""


WORD = msgspec.msgpack.Decoder(Word)


async def echo(stream: FramedStream, _about: bytes) -> None:
    while True:
        stream.send(await stream.receive(WORD))


class Head:
    """A box that signs, and its control port."""

    def __init__(self, folder: Path, *, life_s: float = 3600, stranger_timeout_s: float = 5.0) -> None:
        self.enroller: Enroller = found_cluster(folder, "head-a", life_s=life_s)
        self.identity = NodeIdentity.load(folder)
        self.guard = StreamGuard(self.identity)
        self.stranger_timeout_s = stranger_timeout_s

    def serve(self, handlers: Mapping[Purpose, Handler] | None = None, *, host: str = "127.0.0.1") -> None:
        own = {**enrolment_handlers(self.identity, self.enroller), Purpose.PROBE: echo, Purpose.ADMIN: echo}
        self.server = StreamServer(
            self.identity, self.guard, {**own, **(handlers or {})}, stranger_timeout_s=self.stranger_timeout_s
        )
        self.server.listen(HostPort(host, 0))
        self.place = HostPort(host, self.server.port)

    async def join(self, folder: Path, name: str, role: NodeRole = NodeRole.NODE) -> NodeIdentity:
        token = self.enroller.new_token(role=role)
        return await enrol([self.place], token, folder=folder, name=name, role=role)

    def refused(self, reason: Refusal) -> int:
        return self.server.num_refused.get(reason, 0)


@contextlib.asynccontextmanager
async def running_head(
    folder: Path, handlers: Mapping[Purpose, Handler] | None = None, *, life_s: float = 3600,
    stranger_timeout_s: float = 5.0, host: str = "127.0.0.1",
) -> AsyncIterator[Head]:  # fmt: skip
    head = Head(folder, life_s=life_s, stranger_timeout_s=stranger_timeout_s)
    head.serve(handlers, host=host)
    try:
        yield head
    finally:
        await head.server.close()


async def until(condition: Callable[[], bool]) -> None:
    """`condition()` becomes true within `PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # it is of the kernel, or of a file
            await asyncio.sleep(0.005)


def client_with(folder: Path) -> ssl.SSLContext:
    """What a program of another kind could make of a node's folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(folder / "node.pem")
    return context
