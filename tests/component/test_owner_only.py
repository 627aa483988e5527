"""What a server makes for itself belongs to its user alone: sockets, folders, files, descriptors, secrets.

Under every umask, because a service manager sets one and a shell another.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process_stack import until

from relevo.build.clock import MonotonicClock
from relevo.build.event_loop import LoopTimers
from relevo.build.listening import open_listener
from relevo.build.serve import plan_serving, serving
from relevo.cli.child import StatusPipe
from relevo.core.events import WireRefusal
from relevo.gateway.metering.database import SqliteDatabase
from relevo.kv import arena_file
from relevo.kv.huge_pages import SharedFile
from relevo.orchestrator import gossip_sockets
from relevo.orchestrator.gossip import Gossip
from relevo.orchestrator.gossip_sockets import GossipSockets, Peer
from relevo.settings import Settings
from relevo.wire import messages as wire
from relevo.wire import server as server_module
from relevo.wire import unix_socket
from relevo.wire.framing import encode_frame
from relevo.wire.gateway_links import PeerGone
from relevo.wire.gossip import Ask, Follow
from relevo.wire.server import WireServer
from relevo.wire.status import Status

UMASKS = (0o000, 0o022, 0o077, 0o777)
NOBODY = 65534
WAIT_S = 10.0


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to everybody, so that only what lies in it is in the way. Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="o") as path:
        Path(path).chmod(0o777)
        yield Path(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def connects_as_another_user(path: Path) -> str:
    """What comes of it when a process of another user of the machine connects."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:  # nothing but system calls: this process has threads that the copy has not
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            socket.socket(socket.AF_UNIX).connect(str(path))
            os.write(write_fd, b"connected")
        except BaseException as error:
            os.write(write_fd, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    os.waitpid(pid, 0)
    with os.fdopen(read_fd, "rb") as told:
        return told.read().decode()


# ---- sockets ---------------------------------------------------------------------------------------------------------


def test_a_workers_socket_is_its_users_alone(folder: Path, umask: int) -> None:
    server = WireServer(lambda: pytest.fail("nobody is to be greeted"))
    server.listen(f"unix:{folder}/w")
    assert mode(folder / "w") == 0o600
    server.close()


def test_a_workers_socket_is_never_open_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if the file is made with the umask's mode and mended afterwards: who connected in between stays."""
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    before = os.umask(0)
    server = WireServer(lambda: pytest.fail("nobody is to be greeted"))
    server.listen(f"unix:{folder}/w")
    os.umask(before)
    assert mode(folder / "w") == 0o600
    server.close()


def test_another_user_does_not_reach_a_workers_socket(folder: Path) -> None:
    server = WireServer(lambda: pytest.fail("nobody is to be greeted"))
    server.listen(f"unix:{folder}/w")
    assert connects_as_another_user(folder / "w") == "PermissionError"
    (folder / "w").chmod(0o666)  # somebody opened it
    assert connects_as_another_user(folder / "w") == "connected"
    while not server.num_refused_connections:
        server.poll(0)
    assert server.num_refused_connections == {WireRefusal.USER: 1}
    server.close()


def test_another_user_who_reaches_the_socket_is_sent_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if the file's mode is the only bar: a folder or socket that somebody opened would open the worker."""
    monkeypatch.setattr(unix_socket.os, "geteuid", lambda: os.getuid() + 1)
    server = WireServer(lambda: pytest.fail("nobody is to be greeted"))
    server.listen(f"unix:{folder}/w")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"{folder}/w")
        while not server.num_refused_connections:
            server.poll(0)
        assert stranger.recv(1) == b""
    assert server.num_refused_connections == {WireRefusal.USER: 1}
    assert server.peer_ids == ()
    server.close()


def test_peers_of_a_worker_are_bounded_in_number_and_in_what_they_announce(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_PEERS", 2)
    server = WireServer(lambda: wire.Leaving())  # type: ignore[arg-type, return-value]  # anything to greet with
    server.listen(f"unix:{folder}/w")
    socks = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for sock in socks:
        sock.connect(f"{folder}/w")
    while server.num_refused_connections != {WireRefusal.LIMIT: 1}:
        server.poll(0)
    assert len(server.peer_ids) == 2
    socks[0].sendall(struct.pack("<I", 2**32 - 1) + b"x")
    arrived: list[object] = []
    while not arrived:
        arrived += [message for _, message in server.poll(None)]
    assert isinstance(arrived[0], PeerGone)
    assert server.num_refused_connections[WireRefusal.PROTOCOL] == 1
    assert len(server.peer_ids) == 1, "the other one stays"
    for sock in socks:
        sock.close()
    server.close()


# ---- gossip ----------------------------------------------------------------------------------------------------------


def gossip_of(folder: Path) -> GossipSockets:
    clock = MonotonicClock()
    return GossipSockets(
        gossip=Gossip(sources={}, clock=clock, timers=LoopTimers(clock)),
        path=f"{folder}/g",
        peers=[Peer("other", f"{folder}/nobody")],
        answers={"name": lambda: b"me"},
    )


async def talk(folder: Path, said: bytes) -> bytes:
    """What a gateway answers to these bytes, until it ends the connection."""
    sockets = gossip_of(folder)
    running = asyncio.create_task(sockets.run())
    try:
        await asyncio.sleep(0)  # it listens
        assert mode(folder / "g") == 0o600
        return await asyncio.to_thread(exchange, f"{folder}/g", said)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def exchange(path: str, said: bytes) -> bytes:
    received = b""
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.settimeout(WAIT_S)
        sock.connect(path)
        if said:
            sock.sendall(said)
        while data := sock.recv(65536):
            received += data
    return received


async def test_a_question_between_gateways_is_answered_to_the_own_user(folder: Path) -> None:
    assert b"me" in await talk(folder, encode_frame(Ask("name")))


async def test_another_user_is_told_nothing_by_a_gateway(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket.os, "geteuid", lambda: os.getuid() + 1)
    assert await talk(folder, encode_frame(Ask("name"))) == b""


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(struct.pack("<I", 2**32 - 1), id="huge-length"),
        pytest.param(encode_frame(Ask("x" * 1000)), id="long-question"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(encode_frame(Follow()) + b"more", id="a-follower-that-talks"),
        pytest.param(encode_frame(Follow()) * 2, id="twice"),
    ],
)
async def test_nonsense_ends_the_connection_to_a_gateway(folder: Path, said: bytes) -> None:
    """Red if a peer's bytes are gathered without bound: a follower could once fill the memory."""
    assert await talk(folder, said) == b""


async def test_a_follower_that_talks_on_is_cut_off(folder: Path) -> None:
    """Red if what it says is gathered until it leaves."""
    sockets = gossip_of(folder)
    running = asyncio.create_task(sockets.run())
    await asyncio.sleep(0)  # it listens
    reader, writer = await asyncio.open_unix_connection(f"{folder}/g")
    writer.write(encode_frame(Follow()))
    await until(lambda: bool(sockets._followers))
    writer.write(b"x")
    async with asyncio.timeout(WAIT_S):
        await reader.read()  # what it was told, and then the end
    writer.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_silent_connection_to_a_gateway_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_sockets, "QUESTION_S", 0.01)
    assert await talk(folder, b"") == b""


async def test_connections_to_a_gateway_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_sockets, "MAX_CONNECTIONS", 0)
    assert await talk(folder, encode_frame(Ask("name"))) == b""


# ---- folders, descriptors, secrets -----------------------------------------------------------------------------------


def settings_of(transport: str) -> Settings:
    return Settings(
        model="fake",
        topology="1p1d",
        kv_transport=(transport,),
        database_url="memory",
        share_cores=True,
        gateways=2,
        num_kv_blocks=8,
        max_model_len=64,
    )


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_children_are_given_what_they_need_and_nothing_else(transport: str, umask: int) -> None:
    """Red if the folder opens under some umask, if a gateway inherits the KV, or if gateways learn the KV secret."""
    settings = settings_of(transport)
    listener = open_listener("127.0.0.1", 0)
    starts = []
    for _ in range(2):
        with serving(settings, plan_serving(settings), listener, lambda name, status: None) as supervisor:
            runtime = Path(str(supervisor.workers[0].config["address"]).removeprefix("unix:")).parent
            assert mode(runtime) == 0o700
            secrets = {str(worker.config["kv_secret"]) for worker in supervisor.workers}
            assert len(secrets) == 1, "workers of one start share it"
            starts.append(secrets.pop())
            for gateway in supervisor.gateways:
                assert gateway.inherited_fds == (listener.fileno(),)
                assert "kv_secret" not in gateway.config
                assert not starts[-1] or starts[-1] not in str(gateway.config)
            for worker in supervisor.workers:
                arena_fd = int(str(worker.config["arena_fd"]))
                assert worker.inherited_fds == ((arena_fd,) if transport == "shm" else ())
                assert not starts[-1] or starts[-1] not in repr(worker)
    listener.close()
    if transport == "tcp":
        assert len(set(starts)) == 2, "each start draws its own"
        assert all(len(bytes.fromhex(secret)) == 32 for secret in starts)
    else:
        assert starts == ["", ""], "there is nothing to open"


@pytest.mark.parametrize("pages", ["huge", "small"])
def test_the_shared_arena_keeps_its_size_and_is_its_users_alone(pages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if one process can shrink it: every other one would end with a bus error at its next touch. A file of a tmpfs
    cannot be sealed: there it is only its user's alone."""
    if pages == "small":
        monkeypatch.setattr(arena_file, "huge_page_file", lambda: SharedFile(-1, "small pages"))
    settings = settings_of("shm")
    listener = open_listener("127.0.0.1", 0)
    with serving(settings, plan_serving(settings), listener, lambda name, status: None) as supervisor:
        fd = int(str(supervisor.workers[0].config["arena_fd"]))
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
        assert not os.get_inheritable(fd)
        size = os.fstat(fd).st_size
        is_memfd = "memfd:" in str(Path("/proc/self/fd", str(fd)).readlink())
        assert is_memfd or pages == "huge"
        for other in (0, size // 2, size + 4096) if is_memfd else ():
            with pytest.raises(PermissionError):
                os.ftruncate(fd, other)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    listener.close()


# ---- the usage database ----------------------------------------------------------------------------------------------


def test_the_usage_database_and_what_lies_beside_it_are_its_users_alone(folder: Path, umask: int) -> None:
    connection = SqliteDatabase(folder / "state" / "relevo.db").connect()
    connection.write([("CREATE TABLE t (a TEXT)", ())])
    assert mode(folder / "state") == 0o700
    modes = {path.name: mode(path) for path in (folder / "state").iterdir()}
    assert modes == {"relevo.db": 0o600, "relevo.db-wal": 0o600, "relevo.db-shm": 0o600}
    connection.close()


def test_a_usage_database_is_never_open_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if SQLite makes the file and its mode is mended afterwards: who opened it in between keeps reading it."""
    from relevo.gateway.metering import database

    seen: list[int] = []
    before, really_open = os.umask(0), database._open
    monkeypatch.setattr(database, "_open", lambda name: (seen.append(mode(Path(name))), really_open(name))[1])
    SqliteDatabase(folder / "relevo.db").connect().close()
    os.umask(before)
    assert seen == [0o600]


def test_a_usage_database_of_a_former_version_is_closed_to_others(folder: Path) -> None:
    SqliteDatabase(folder / "relevo.db").connect()  # stays open, so that what lies beside it stays
    for path in folder.iterdir():
        path.chmod(0o644)
    SqliteDatabase(folder / "relevo.db").connect().close()
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def test_a_status_after_the_supervisor_is_gone_is_written_nowhere(tmp_path: Path) -> None:
    """Red if a child goes on to use the number of a pipe that it has closed: it may be a client's by then."""
    read_fd, write_fd = os.pipe()
    report = StatusPipe(write_fd)
    os.close(read_fd)
    report(Status(kind="note", message="to nobody"))
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), write_fd)
        report(Status(kind="note", message="to nobody"))
        os.close(write_fd)
    assert (tmp_path / "other").read_bytes() == b""
