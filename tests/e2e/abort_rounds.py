"""Rounds of requests whose clients leave at random moments, and what must be true after each round.

A moment is either a delay after sending or a number of events read, so that every phase is hit: the queue, the
prefill, the handoff, the decode. Clients leave by closing or by resetting their connection.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from stack import Stack, descendants

PROBE = {"prompt": [7, 21, 3, 99, 14, 8, 200, 63, 5, 77] * 4, "max_tokens": 12, "ignore_eos": True}
MEMORY_SLACK_BYTES = 30 * 2**20  # generous; one leaked prompt or answer per request would be far less in one run
ROUND_DEADLINE_S = 90.0  # arbitrary; a client that waits for tokens which never come ends the run here
_MEMORY_LINES = re.compile(r"^(RssAnon|RssFile):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Moment:
    """When a client leaves: after `num_events` events of its stream, or `delay_s` after it has sent its request."""

    num_events: int | None
    delay_s: float
    resets: bool  # a reset, otherwise an orderly close


@dataclass(frozen=True)
class Leaver:
    prompt: list[int]
    stream: bool
    n: int
    moment: Moment

    def request(self, max_tokens: int) -> bytes:
        body = {
            "prompt": self.prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": self.stream,
            "n": self.n,
            "seed": 1,
        }
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n"
        return head.encode() + b"content-type: application/json\r\n\r\n" + data


@dataclass
class Tally:
    """Of all rounds."""

    num_aborted: int = 0
    num_silent: int = 0  # aborted before anything came: in a queue, in prefill, in transfer
    num_decoding: int = 0  # aborted after the first event
    num_ended: int = 0  # had ended by themselves; the run is void if there are many
    refusals: list[str] = field(default_factory=list)  # status lines of what was not let in, or did not come at all
    memory_bytes: list[dict[int, int]] = field(default_factory=list)  # per round, by process

    def __str__(self) -> str:
        return (
            f"{self.num_aborted} aborted ({self.num_silent} before the first token, {self.num_decoding} while decoding)"
        )


def make_leavers(rng: Random, num_leavers: int, *, max_delay_s: float, max_events: int, vocab: int) -> list[Leaver]:
    """Prompts of 20 to 600 tokens, no two alike. A third of the clients leaves by what it has read, others by time."""
    leavers = []
    for _ in range(num_leavers):
        prompt = [rng.randrange(vocab) for _ in range(20 + round(580 * rng.random() ** 2))]
        reads = rng.random() < 0.35
        moment = Moment(rng.randint(1, max_events) if reads else None, rng.uniform(0, max_delay_s), rng.random() < 0.5)
        leavers.append(Leaver(prompt, reads or rng.random() < 0.5, rng.choice((1, 1, 1, 2)), moment))
    return leavers


async def send_and_leave(url: str, leaver: Leaver, max_tokens: int, tally: Tally) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(leaver.request(max_tokens))
    await writer.drain()
    seen: list[bytes] = []
    reading = asyncio.create_task(_read(reader, leaver.moment.num_events, seen))
    done, _ = await asyncio.wait((reading,), timeout=None if leaver.moment.num_events else leaver.moment.delay_s)
    refusal = reading.result() if reading in done else ""
    has_ended = reading in done and (leaver.moment.num_events is None or any(b"[DONE]" in line for line in seen))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    if leaver.moment.resets:
        writer.transport.abort()
    else:
        writer.close()
    if refusal:
        tally.refusals.append(refusal)
        return
    tally.num_ended += has_ended
    tally.num_aborted += not has_ended
    tally.num_silent += not has_ended and not seen
    tally.num_decoding += not has_ended and bool(seen)


async def _read(reader: asyncio.StreamReader, num_events: int | None, seen: list[bytes]) -> str:
    """Until that many events, or (None) until the whole answer: its last event, or its body. Its status line if it is
    a refusal, otherwise empty."""
    status = await reader.readline()
    if b" 200 " not in status:
        return status.decode(errors="replace") or "no answer"
    async for line in reader:
        if line.startswith((b"data: ", b"{")):
            seen.append(line)
            if len(seen) == num_events or b"[DONE]" in line or line.startswith(b"{"):
                break
    return ""


async def run_round(url: str, leavers: list[Leaver], max_tokens: int, tally: Tally) -> None:
    async with asyncio.timeout(ROUND_DEADLINE_S), asyncio.TaskGroup() as group:
        for leaver in leavers:
            group.create_task(send_and_leave(url, leaver, max_tokens, tally))


def check_nothing_is_left(running: Stack, num_blocks: int, probe: Any) -> None:
    """No block in use and nothing in flight within 5 s, every block accounted for, answers as before."""
    running.wait_idle(5.0)
    by_worker: dict[str, float] = {}
    for (name, labels), value in running.metrics().items():
        if name == "relevo:blocks":
            worker = dict(labels)["worker"]
            by_worker[worker] = by_worker.get(worker, 0.0) + value
    assert set(by_worker.values()) == {num_blocks}, by_worker
    assert len(by_worker) == len(running.pids())
    assert running.complete(**PROBE)["choices"] == probe
    running.wait_idle(5.0)


def memory_of(running: Stack) -> dict[int, int]:
    """Resident bytes by process; shared memory is left out, it is the KV arena, whose pages are touched one by one."""
    pids = [running.process.pid, *descendants(running.process.pid)]
    found = {}
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        found[pid] = 1024 * sum(int(kilobytes) for _, kilobytes in _MEMORY_LINES.findall(status))
    return found


def growth_bytes(memory_bytes: list[dict[int, int]]) -> dict[int, float]:
    """By process: median of the last three rounds minus median of rounds 3 to 5."""
    return {
        pid: median(m[pid] for m in memory_bytes[-3:]) - median(m[pid] for m in memory_bytes[2:5])
        for pid in memory_bytes[-1]
    }


def abort_in_rounds(
    running: Stack,
    rounds: list[list[Leaver]],
    *,
    max_tokens: int,
    num_blocks: int,
    say: Callable[[str], None] | None = None,
) -> Tally:
    """All rounds, checked after each and told every ten; a process that was replaced fails the run."""
    tally = Tally()
    probe = running.complete(**PROBE)["choices"]
    pids = running.pids()
    for number, leavers in enumerate(rounds, start=1):
        asyncio.run(run_round(running.url, leavers, max_tokens, tally))
        check_nothing_is_left(running, num_blocks, probe)
        tally.memory_bytes.append(memory_of(running))
        if say is not None and number % 10 == 0:
            say(f"after {number} rounds: {tally}")
    assert running.pids() == pids
    assert all(memory.keys() == tally.memory_bytes[0].keys() for memory in tally.memory_bytes), "a process was replaced"
    assert max(growth_bytes(tally.memory_bytes).values()) < MEMORY_SLACK_BYTES, growth_bytes(tally.memory_bytes)
    return tally
