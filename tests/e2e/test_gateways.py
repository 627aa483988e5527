"""Two gateways, one port, one ledger: one is killed, the other's clients do not notice, and the bill is right.

Red when a dead gateway's blocks stay held, when the other gateway's streams are cut or changed, when the port is closed
meanwhile, when an answer that a client received whole is missing in the ledger or there twice, and when what was cut is
billed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
from ledger_traffic import PRICES, Sent, compare, make_traffic, read_rows, run_traffic
from stack import Stack, descendants, stack

FLAGS = ("fake", "--topology", "1p1d", "--gateways", "2", "--num-kv-blocks", "1024", "--max-model-len", "2048")
STEPS = ("--fake-base-s", "0.01", "--log-level", "error")
NUM_AT_ONCE = 12
NUM_HELD_AT_ONCE = 4
MAX_TOKENS = 1900  # of a held stream: at least 19 s, so that none ends before its gateway does
NUM_TOKENS_AFTER = 10  # that a held stream of the other gateway must bring after the kill


@dataclass
class Held:
    """A stream without an end in sight, of a gateway that is known."""

    sent: Sent
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gateway_pid: int
    token_ids: list[int] = field(default_factory=list)

    async def read(self, num_tokens: int) -> bool:
        """False: the connection broke off before so many more tokens came."""
        last = len(self.token_ids) + num_tokens
        try:
            while len(self.token_ids) < last:
                line = await self.reader.readline()
                if not line:
                    return False
                if line.startswith(b"data: "):
                    self.token_ids += json.loads(line.removeprefix(b"data: "))["choices"][0]["token_ids"]
        except ConnectionError:
            return False
        return True


@pytest.mark.parametrize(
    ("num_kills", "num_answers"), [(1, 60), pytest.param(6, 400, marks=pytest.mark.slow)], ids=["one kill", "six kills"]
)
def test_a_killed_gateway_disturbs_only_its_own_clients(tmp_path: Path, num_kills: int, num_answers: int) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(PRICES))
    flags = (*FLAGS, *STEPS, "--data-dir", str(tmp_path), "--prices", str(prices))
    traffic = make_traffic(Random(7), num_answers)
    kept: list[Held] = []
    cut: list[Held] = []
    with stack(*flags, env={"RELEVO_DATABASE_URL": ""}) as running:
        for number in range(num_kills):
            share = traffic[number::num_kills]
            wait_until_both_serve(running)
            held, victim = asyncio.run(kill_one_under_load(running, number, share))
            kept += [each for each in held if each.gateway_pid != victim]
            cut += [each for each in held if each.gateway_pid == victim]
        wait_until_both_serve(running)
        again = [
            running.complete(
                each.sent.body["prompt"], max_tokens=len(each.token_ids), ignore_eos=True, return_token_ids=True
            )
            for each in kept[:3]
        ]
        running.wait_idle(60)
    assert [answer["choices"][0]["token_ids"] for answer in again] == [each.token_ids for each in kept[:3]]
    rows = {row["request_id"]: row for row in read_rows(tmp_path / "relevo.db")}
    ours = {answer["id"] for answer in again}
    held_rows = [row for row in rows.values() if row["response_id"].startswith("cmpl-held")]
    mixed_rows = [row for row in rows.values() if row not in held_rows and row["response_id"] not in ours]
    check_held(held_rows, kept)
    num_leaving = sum(sent.leave_after is not None for sent in traffic)
    seen = compare(traffic, mixed_rows, max_num_lost=NUM_AT_ONCE * num_kills + num_leaving)
    assert sum(sent.was_cut for sent in traffic) <= NUM_AT_ONCE * num_kills
    assert seen.num_finished > num_answers // 2
    sys.stdout.write(f"\n{num_kills} kills: {seen}; {len(cut)} held streams cut, {len(kept)} not\n")


def check_held(rows: list[dict[str, Any]], kept: list[Held]) -> None:
    """A row for each whose client left, with what it was sent; none for those that died with their gateway."""
    by_response = {row["response_id"]: row for row in rows}
    assert len(by_response) == len(rows), "a stream is there twice"
    assert by_response.keys() == {each.sent.response_id for each in kept}
    for each in kept:
        row = by_response[each.sent.response_id]
        assert row["outcome"] == "aborted" and row["completion_tokens"] >= len(each.token_ids), row


def test_a_hung_gateway_is_replaced_and_the_streams_of_the_other_go_on() -> None:
    """Stopped, it keeps its connections and says nothing. Red when the supervisor looks only at what has ended."""
    with stack(*FLAGS, *STEPS, "--heartbeat-timeout-s", "2") as running:
        wait_until_both_serve(running)
        asyncio.run(stop_one_under_load(running))
        wait_until_both_serve(running)
        running.wait_idle(60)


async def stop_one_under_load(running: Stack) -> None:
    pids = gateway_pids(running)
    held: list[Held] = []
    async with asyncio.timeout(120):
        while {each.gateway_pid for each in held} < set(pids):  # whoever accepts first serves
            names = [f"hung-{len(held) + i}" for i in range(NUM_HELD_AT_ONCE)]
            held += await asyncio.gather(*(hold(running, name, pids) for name in names))
        os.kill(pids[0], signal.SIGSTOP)
        for each in held:
            if each.gateway_pid == pids[0]:
                assert not await each.read(MAX_TOKENS), (
                    "a stopped gateway finished a stream"
                )  # it ends when it is ended
            else:
                assert await each.read(NUM_TOKENS_AFTER), "a stream of the other gateway was cut"
            each.writer.close()


@pytest.mark.parametrize("num_gateways", [1, 2])
def test_a_server_that_drains_answers_at_once_and_its_streams_end_well(num_gateways: int) -> None:
    """503 with Retry-After while a stream runs, on every connection, and no connection at all after that. Red when
    the supervisor goes on listening for gateways that do not accept any more."""
    flags = (*FLAGS, "--gateways", str(num_gateways), *STEPS, "--shutdown-timeout-s", "100")
    with stack(*flags) as running:
        num_seen = asyncio.run(drain_under_a_stream(running, 300))
        assert num_seen == 300
        assert running.process.wait(timeout=60) == 0


async def drain_under_a_stream(running: Stack, num_tokens: int) -> int:
    """The number of tokens of a stream that ran when the server was asked to end."""
    address = urlsplit(running.url)
    pids = gateway_pids(running)
    stream = await hold(running, "drained", pids, num_tokens)
    running.process.send_signal(signal.SIGTERM)
    while (await raw(address.port, "GET /ready"))[0] != 503:  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.02)
    for head in ["GET /ready", "POST /v1/completions", "POST /v1/chat/completions", "GET /ready"] * 5:
        status, headers = await raw(address.port, head)
        assert (status, "retry-after" in headers) == (503, True), (head, status, headers)
    assert (await raw(address.port, "GET /health"))[0] == 200, "it is alive"
    await stream.read(num_tokens - len(stream.token_ids))
    stream.writer.close()
    with contextlib.suppress(ConnectionError):  # what comes at the very end
        while True:
            assert (await raw(address.port, "GET /ready"))[0] in (503, 0)
            await asyncio.sleep(0.02)
    return len(stream.token_ids)


async def raw(port: int | None, head: str) -> tuple[int, str]:
    """Status and headers of an answer on a connection of its own; 0 if it is closed without one. Raises OSError if
    nobody listens."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}".encode())
    try:
        async with asyncio.timeout(30.0):  # an answer that never comes
            answer = (await reader.read()).decode()
    except ConnectionResetError:
        return 0, ""
    finally:
        writer.close()
    return int(answer.split(" ", 2)[1]) if answer else 0, answer.partition("\r\n\r\n")[0].lower()


async def kill_one_under_load(running: Stack, number: int, share: list[Sent]) -> tuple[list[Held], int]:
    """The held streams and the gateway that was killed. The last third of `share` is sent while it comes back."""
    before, after = share[: 2 * len(share) // 3], share[2 * len(share) // 3 :]
    enough = asyncio.Event()

    def count(num_complete: int) -> None:
        if num_complete >= len(before) // 2:
            enough.set()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        mixed = group.create_task(run_traffic(running.url, before, num_at_once=NUM_AT_ONCE, after_each=count))
        pids = gateway_pids(running)
        held: list[Held] = []
        while {each.gateway_pid for each in held} < set(pids):  # whoever accepts first serves
            names = [f"held-{number}-{len(held) + i}" for i in range(NUM_HELD_AT_ONCE)]
            held += await asyncio.gather(*(hold(running, name, pids) for name in names))
        await enough.wait()
        victim = pids[number % 2]
        os.kill(victim, signal.SIGKILL)
        killed_at_s = time.monotonic()
        for each in held:
            if each.gateway_pid == victim:
                assert not await each.read(MAX_TOKENS), "a dead gateway finished a stream"
            else:
                assert await each.read(NUM_TOKENS_AFTER), "a stream of the other gateway was cut"
            each.writer.close()
        await mixed
        await asyncio.to_thread(running.wait_idle, 60.0)
        idle_s = time.monotonic() - killed_at_s
        sys.stdout.write(f"\nblocks at baseline {idle_s:.2f} s after the kill, the others' answers included\n")
        await run_traffic(running.url, after, num_at_once=NUM_AT_ONCE)
    return held, victim


async def hold(running: Stack, name: str, pids: list[int], max_tokens: int = MAX_TOKENS) -> Held:
    """Returns once tokens come."""
    address = urlsplit(running.url)
    prompt = [sum(name.encode()) % 256, *(i * 7 % 256 for i in range(40))]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    sent = Sent(name, "/v1/completions", body | {"stream": True, "return_token_ids": True})
    data = json.dumps(sent.body).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {sent.path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\nx-request-id: {name}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + data)
    held = Held(sent, reader, writer, 0)
    assert await held.read(1)
    held.gateway_pid = server_pid(writer.get_extra_info("sockname")[1], pids)
    return held


def server_pid(client_port: int, pids: list[int]) -> int:
    """Whose socket is at the other end of a connection from this port of the same machine (proc_net_tcp(5))."""
    lines = [*Path("/proc/net/tcp").read_text().splitlines()[1:], *Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    ends = (line.split() for line in lines)
    inodes = {f"socket:[{fields[9]}]" for fields in ends if int(fields[2].rpartition(":")[2], 16) == client_port}
    return next(pid for pid in pids if not inodes.isdisjoint(open_files(pid)))


def open_files(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield str(link.readlink())


def gateway_pids(running: Stack) -> list[int]:
    pids = descendants(running.process.pid)
    return [pid for pid in pids if b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_until_both_serve(running: Stack) -> None:
    """Meanwhile /ready is 200 all the time."""
    while sum(gateway["ready"] for gateway in running.get("/ready")["gateways"]) < 2:
        time.sleep(0.02)
