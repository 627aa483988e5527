"""A server under mixed load for a long time, its workers killed now and then: is every request accounted for, and does
memory grow?

Clients ask questions whose answers were noted while the server was quiet, leave other requests at random moments, and
send nonsense; every few minutes a worker gets SIGKILL. At the end every request is looked up in the usage ledger, and a
line is fitted through each process's resident memory (shared memory left out: it is the KV arena). Knows the server by
its HTTP interface, its processes and its ledger file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from relevo.bench.memory_track import MemoryTrack, children_of
from relevo.bench.server_process import ServerProcess, free_port, serve_command
from relevo.core.errors import StartError

SAMPLE_INTERVAL_S = 2.0  # arbitrary
IDLE_TIMEOUT_S = 60.0  # after the last request nothing may be in flight for longer
REQUEST_TIMEOUT_S = 120.0
NONSENSE: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"n": 0},
    {"max_tokens": "many"},
    {"stop": 5},
    {"model": "nobody"},
    {"prompt": {}},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    model: str
    serve_flags: tuple[str, ...]
    folder: Path  # of the ledger and the server's log
    duration_s: float
    kill_every_s: float  # 0: never
    warm_up_s: float  # memory before that is not counted
    num_clients: int = 12
    num_questions: int = 24
    max_tokens: int = 48
    abort_fraction: float = 0.25
    nonsense_fraction: float = 0.05
    seed: int = 0


@dataclass(slots=True)
class Asked:
    """One request and what its client saw of it."""

    request_id: str
    kind: str  # question, leaver, nonsense
    path: str
    status: int = 0  # 0: no answer
    has_begun: bool = False  # the head of an answer, or an event, has come
    is_complete: bool = False
    num_completion_tokens: int | None = None
    wrong: str = ""

    @property
    def response_id(self) -> str:
        return ("chatcmpl-" if "chat" in self.path else "cmpl-") + self.request_id


@dataclass(slots=True)
class SoakResult:
    asked: list[Asked] = field(default_factory=list)
    kills: list[tuple[float, str]] = field(default_factory=list)  # seconds since the start, worker
    memory: MemoryTrack = field(default_factory=MemoryTrack)
    unaccounted: list[str] = field(default_factory=list)
    leftovers: str = ""  # what is still in use after the end

    def count(self, kind: str, *, complete: bool | None = None) -> int:
        return sum(1 for a in self.asked if a.kind == kind and complete in (None, a.is_complete))

    @property
    def wrong(self) -> list[str]:
        return [f"{a.response_id}: {a.wrong}" for a in self.asked if a.wrong]


@dataclass(slots=True)
class _Soak:
    options: SoakOptions
    server: ServerProcess
    session: aiohttp.ClientSession
    result: SoakResult
    rng: random.Random
    ends_at_s: float = 0.0
    started_at_s: float = 0.0
    questions: list[tuple[str, dict[str, Any], list[str]]] = field(default_factory=list)
    num_asked: int = 0

    # ---- requests ----------------------------------------------------------------------------------------------------

    def prompt(self) -> list[int]:
        return [self.rng.randrange(256) for _ in range(self.rng.randint(4, 400))]

    async def note_answers(self) -> None:
        """While nothing disturbs the server."""
        for number in range(self.options.num_questions):
            body: dict[str, Any] = {
                "max_tokens": self.rng.randint(1, self.options.max_tokens),
                "n": 2 if number % 6 == 5 else 1,
                "temperature": 0.8 if number % 3 == 2 else 0,
                "seed": number,
                "stream": number % 2 == 0,
            }
            path = "/v1/chat/completions" if number % 4 == 3 else "/v1/completions"
            if "chat" in path:
                body["messages"] = [{"role": "user", "content": f"Tell me about the number {number}. " * (1 + number)}]
            else:
                body |= {"prompt": self.prompt(), "ignore_eos": True}
            if body["stream"]:
                body["stream_options"] = {"include_usage": True}
            asked, texts = await self.ask("question", path, body, None)
            if not asked.is_complete:
                raise StartError(f"the server did not answer a question while nothing disturbed it: {asked.wrong}")
            self.questions.append((path, body, texts))

    async def client(self) -> None:
        while time.monotonic() < self.ends_at_s:
            draw = self.rng.random()
            if draw < self.options.nonsense_fraction:
                body = {"prompt": [1, 2], "max_tokens": 2} | self.rng.choice(NONSENSE)
                asked, _ = await self.ask("nonsense", "/v1/completions", body, None)
                if not 400 <= asked.status < 500:
                    asked.wrong = f"nonsense was answered {asked.status}"
            elif draw < self.options.nonsense_fraction + self.options.abort_fraction:
                body = {"prompt": self.prompt(), "max_tokens": 400, "ignore_eos": True, "stream": True}
                await self.ask("leaver", "/v1/completions", body, self.rng.uniform(0.0, 1.5))
            else:
                path, body, expected = self.rng.choice(self.questions)
                asked, texts = await self.ask("question", path, body, None)
                if asked.is_complete and texts != expected:
                    asked.wrong = f"{texts} instead of {expected}"
            await asyncio.sleep(self.rng.expovariate(20.0))

    async def ask(
        self, kind: str, path: str, body: dict[str, Any], leave_after_s: float | None
    ) -> tuple[Asked, list[str]]:
        """Errors are noted, never raised."""
        self.num_asked += 1
        asked = Asked(f"soak{self.num_asked}", kind, path)
        self.result.asked.append(asked)
        texts = [""] * int(body["n"] if isinstance(body.get("n"), int) else 1)
        try:
            async with asyncio.timeout(leave_after_s):
                await self._exchange(asked, body, texts)
        except TimeoutError:
            if leave_after_s is None:
                asked.wrong = f"no answer within {REQUEST_TIMEOUT_S:.0f} s"
        except (aiohttp.ClientError, ConnectionError) as error:
            asked.wrong = f"{type(error).__name__}: {error}"
        return asked, texts

    async def _exchange(self, asked: Asked, body: dict[str, Any], texts: list[str]) -> None:
        headers = {"x-request-id": asked.request_id}
        async with self.session.post(self.server.url + asked.path, json=body, headers=headers) as answer:
            asked.status, asked.has_begun = answer.status, True
            if answer.status != 200:
                told = (await answer.read())[:200].decode(errors="replace")
                if asked.kind != "nonsense":
                    asked.wrong = f"HTTP {answer.status} {told}"
                return
            if not body.get("stream"):
                self._take(asked, orjson.loads(await answer.read()), texts)
                asked.is_complete = True
                return
            async for line in answer.content:
                if line.startswith(b"data: [DONE]"):
                    asked.is_complete = True
                elif line.startswith(b"data: "):
                    self._take(asked, orjson.loads(line[6:]), texts)

    def _take(self, asked: Asked, part: dict[str, Any], texts: list[str]) -> None:
        if "error" in part:
            asked.wrong = f"error event: {part['error']}"
        for choice in part.get("choices", ()):
            words = choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            texts[choice["index"]] += words
        if part.get("usage"):
            asked.num_completion_tokens = int(part["usage"]["completion_tokens"])

    # ---- disturbances and looks --------------------------------------------------------------------------------------

    async def kill_workers(self, say: Callable[[str], None]) -> None:
        while self.options.kill_every_s:
            await asyncio.sleep(self.options.kill_every_s)
            workers = await self._workers()
            if time.monotonic() < self.ends_at_s and workers:
                name = self.rng.choice(sorted(workers))
                self.result.kills.append((time.monotonic() - self.started_at_s, name))
                say(f"{self.result.kills[-1][0]:.0f} s: kill -9 of {name}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(workers[name], signal.SIGKILL)

    async def watch_memory(self) -> None:
        assert self.server.pid is not None
        while True:
            names = {pid: worker_id for worker_id, pid in (await self._workers()).items()}
            children = {pid: names.get(pid, name) for pid, name in children_of(self.server.pid).items()}
            at_s = time.monotonic() - self.started_at_s
            self.result.memory.look(at_s, {self.server.pid: "supervisor", **children})
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def wait_idle(self) -> str:
        """What is still in use at the end; empty if nothing is."""
        deadline_s = time.monotonic() + IDLE_TIMEOUT_S
        while True:
            left = _in_use((await self._text("/metrics")).splitlines())
            if not left or time.monotonic() > deadline_s:
                return left
            await asyncio.sleep(0.2)

    async def _workers(self) -> dict[str, int]:
        """Process ids by worker, of those that have one."""
        ready = orjson.loads(await self._text("/ready"))
        return {worker["worker_id"]: worker["pid"] for worker in ready.get("workers", ()) if worker["pid"]}

    async def _text(self, path: str) -> str:
        async with self.session.get(self.server.url + path) as answer:
            return await answer.text()


async def soak(options: SoakOptions, result: SoakResult, say: Callable[[str], None]) -> None:
    """Run it and fill `result`. Raises StartError if the server cannot be started."""
    port = free_port()
    flags = ("--data-dir", str(options.folder), *options.serve_flags)
    server = ServerProcess(
        serve_command(options.model, port, flags),
        port,
        options.folder / "server.log",
        environment={"RELEVO_DATABASE_URL": ""},
    )
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with server, aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        run = _Soak(options, server, session, result, random.Random(options.seed))
        await run.note_answers()
        run.started_at_s = time.monotonic()
        run.ends_at_s = run.started_at_s + options.duration_s
        say(f"{len(run.questions)} answers noted; {options.num_clients} clients for {options.duration_s:.0f} s")
        aside = [asyncio.create_task(run.kill_workers(say)), asyncio.create_task(run.watch_memory())]
        try:
            async with asyncio.TaskGroup() as clients:
                for _ in range(options.num_clients):
                    clients.create_task(run.client())
        finally:
            for task in aside:
                task.cancel()
            await asyncio.gather(*aside, return_exceptions=True)
        result.leftovers = await run.wait_idle()
    result.memory.end(options.warm_up_s)
    result.unaccounted = compare_with_ledger(result.asked, options.folder / "relevo.db")


def _in_use(metrics: list[str]) -> str:
    held = [
        line
        for line in metrics
        if (line.startswith("relevo:blocks{") and ('"held"' in line or '"quarantined"' in line))
        or line.startswith("relevo:requests_in_flight")
    ]
    return "; ".join(line for line in held if float(line.rsplit(" ", 1)[1]) != 0)


def compare_with_ledger(asked: list[Asked], database: Path) -> list[str]:
    """Requests whose rows do not say what their clients saw, in words.

    A complete answer has one row, finished, with its tokens; one that had begun has one row, however it ended; one that
    was left before its head came may have one; a refused one has none; and there are no others.
    """
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT response_id, outcome, completion_tokens FROM usage_ledger").fetchall()
    by_id: dict[str, list[tuple[str, int]]] = {}
    for response_id, outcome, num_tokens in rows:
        by_id.setdefault(response_id, []).append((outcome, num_tokens))
    wrong = [
        f"{response_id}: a row that nobody asked for" for response_id in by_id.keys() - {a.response_id for a in asked}
    ]
    for one in asked:
        found = by_id.get(one.response_id, [])
        must_have = one.is_complete or (one.has_begun and one.status == 200)
        if len(found) > 1 or (must_have and not found) or (found and 400 <= one.status < 500):
            wrong.append(f"{one.response_id} ({one.kind}, HTTP {one.status}): {len(found)} rows")
        elif one.is_complete and found[0][0] != "finished":
            wrong.append(f"{one.response_id}: complete, but {found[0][0]} in the ledger")
        elif one.is_complete and one.num_completion_tokens not in (None, found[0][1]):
            wrong.append(f"{one.response_id}: {one.num_completion_tokens} tokens, {found[0][1]} in the ledger")
    return wrong
