"""Workers killed, stopped and restarted in numbers, beside clients who know the right answers.

`RELEVO_CHAOS_RUNS=50` sets how often (default 8), per variant. The fake engine: what is tested is what surrounds one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from random import Random

import aiohttp
import pytest
from oracle_clients import Answer, ask, clients, make_prompt, off_loop, wrong
from stack import Stack, stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

NUM_RUNS = int(os.environ.get("RELEVO_CHAOS_RUNS", "8"))
NUM_STACKS = int(os.environ.get("RELEVO_CHAOS_STACKS", "2"))  # side by side, where runs mostly wait
ANSWER_S = 10.0  # after a kill, until every request has its answer or its error
STOP_S = 10.0
Say = Callable[[str], None]


async def wait_for(condition: Callable[[], bool], deadline_s: float, what: str) -> float:
    """Seconds until the condition held; it is asked in a thread."""
    started_s = time.monotonic()
    while not await off_loop(_holds, condition):
        assert time.monotonic() - started_s < deadline_s, what
        await asyncio.sleep(0.05)
    return time.monotonic() - started_s


def _holds(condition: Callable[[], bool]) -> bool:
    with contextlib.suppress(OSError):  # 503: not ready
        return condition()
    return False


def is_back(running: Stack, name: str, old_pid: int) -> bool:
    worker = next(w for w in running.get("/ready")["workers"] if w["worker_id"] == name)
    return worker["pid"] not in (0, old_pid) and worker["ready"]


# ---- kill -9 of the writer -------------------------------------------------------------------------------------------

SLOW_PREFILL = (
    *("fake", "--topology", "1p1d", "--num-kv-blocks", "512", "--max-model-len", "2048", "--log-level", "error"),
    *("--fake-base-s", "0.01", "--fake-per-token-s", "0.001", "--max-num-batched-tokens", "64", "--max-num-seqs", "32"),
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_kill_9_of_a_prefill_worker(transport: str, say: Say) -> None:
    """In mid-prefill and mid-transfer: each request has its right answer, or one error, within 10 s of the kill."""

    async def run(running: Stack) -> tuple[int, int, float, list[str]]:
        rng, found, num_right, num_failed, slowest_s = Random(7), [], 0, 0, 0.0
        async with clients() as session:
            for number in range(NUM_RUNS):
                prompts = [make_prompt(rng, rng.randint(100, 600)) for _ in range(6)]
                asked = [asyncio.create_task(ask(session, running.url, prompt, 8)) for prompt in prompts]
                before = await off_loop(running.metric, "relevo:prefill_tokens_total")
                await wait_for(
                    lambda before=before: running.metric("relevo:prefill_tokens_total") > before, 30, "no prefill"
                )
                await asyncio.sleep(rng.uniform(0.0, 0.8))
                pid = (await off_loop(running.pids))["prefill-0"]
                os.kill(pid, signal.SIGKILL)
                killed_at_s = time.monotonic()
                for answer, prompt in zip(await asyncio.gather(*asked), prompts, strict=True):
                    slowest_s = max(slowest_s, answer.ended_at_s - killed_at_s)
                    if why := wrong(answer, prompt, 8, may_fail=True):
                        found.append(f"kill {number}: {why}")
                    num_failed += bool(answer.num_errors)
                    num_right += not answer.num_errors and not why
                await wait_for(lambda pid=pid: is_back(running, "prefill-0", pid), 30, "the worker did not come back")
                await off_loop(running.wait_idle, 30.0)  # nothing reserved, held or quarantined
        return num_right, num_failed, slowest_s, found

    with stack(*SLOW_PREFILL, "--kv-transport", transport) as running:
        num_right, num_failed, slowest_s, found = asyncio.run(run(running))
    say(
        f"{NUM_RUNS} kills of the prefill worker over {transport}: {num_right} requests equal the oracle, {num_failed} "
        f"got one error, {len(found)} neither; the last answer {slowest_s:.1f} s after its kill; blocks back each time"
    )
    assert not found, found[:5]
    assert slowest_s < ANSWER_S


# ---- a writer that stops and goes on ---------------------------------------------------------------------------------

NUM_BLOCKS = 128
FULL_POOL = (
    *("fake", "--topology", "1p1d", "--num-kv-blocks", str(NUM_BLOCKS), "--max-model-len", "1024"),
    *("--fake-base-s", "0.15", "--max-num-batched-tokens", "64", "--max-num-seqs", "32", "--log-level", "error"),
)
PATIENT = ("--heartbeat-timeout-s", "30", "--drain-lease-s", "20")
IMPATIENT = ("--heartbeat-timeout-s", "4", "--drain-lease-s", "2")


def usage(running: Stack) -> float:
    """Of the decode worker: blocks held or quarantined, as a fraction of all."""
    return running.blocks_in_use().get("decode-0", 0.0) / NUM_BLOCKS


async def stopped_writer(running: Stack, session: aiohttp.ClientSession, rng: Random) -> tuple[list[str], float]:
    """Streams that fill the pool, victims in mid-prefill, their writer stopped, victims gone, others in their place."""
    holders = [make_prompt(rng, 300) for _ in range(5)]
    held = [asyncio.create_task(ask(session, running.url, prompt, 100)) for prompt in holders]
    await wait_for(lambda: running.metric("vllm:num_requests_running") >= len(held), 60, "nothing decodes")
    victims = [asyncio.create_task(ask(session, running.url, make_prompt(rng, 150), 50)) for _ in range(3)]
    await asyncio.sleep(rng.uniform(0.1, 1.0))
    pid = (await off_loop(running.pids))["prefill-0"]
    os.kill(pid, signal.SIGSTOP)
    fullest = await off_loop(usage, running)
    for victim in victims:
        victim.cancel()
    await asyncio.gather(*victims, return_exceptions=True)
    fillers = [make_prompt(rng, rng.randint(20, 150)) for _ in range(6)]
    filling = [asyncio.create_task(ask(session, running.url, prompt, 10)) for prompt in fillers]
    await asyncio.sleep(STOP_S)
    fullest = max(fullest, await off_loop(usage, running))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    found = []
    for prompts, tasks, max_tokens in ((holders, held, 100), (fillers, filling, 10)):
        for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
            found.append(wrong(answer, prompt, max_tokens, may_fail=False))
    await wait_for(lambda: all(w["ready"] for w in running.get("/ready")["workers"]), 60, "a worker did not come back")
    await off_loop(running.wait_idle, 30.0)
    return [why for why in found if why], fullest


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("flags", [PATIENT, IMPATIENT], ids=["goes on", "is replaced"])
def test_a_stopped_writer_writes_into_nobody_elses_blocks(transport: str, flags: tuple[str, ...], say: Say) -> None:
    """SIGSTOP for 10 s in mid-prefill with the pool full, its requests aborted: every other answer is right."""

    async def many(running: Stack, seed: int, num_runs: int) -> list[tuple[list[str], float]]:
        async with clients() as session:
            return [await stopped_writer(running, session, Random(f"{seed} {run}")) for run in range(num_runs)]

    async def side_by_side(stacks: list[Stack]) -> list[tuple[list[str], float]]:
        share = -(-NUM_RUNS // len(stacks))
        all_runs = await asyncio.gather(*(many(running, seed, share) for seed, running in enumerate(stacks)))
        return [one for runs in all_runs for one in runs]

    with contextlib.ExitStack() as kept:
        stacks = [kept.enter_context(stack(*FULL_POOL, *flags, "--kv-transport", transport)) for _ in range(NUM_STACKS)]
        runs = asyncio.run(side_by_side(stacks))
        num_restarts = sum(running.metric("relevo:worker_restarts_total") for running in stacks)
        num_refused = sum(running.metric("relevo:refused_writes_total") for running in stacks)
    found = [why for whys, _ in runs for why in whys]
    fullest = sorted(used for _, used in runs)
    say(
        f"{len(runs)} stops of the writer over {transport}, {' '.join(flags)}: {11 * len(runs) - len(found)} of "
        f"{11 * len(runs)} other answers equal the oracle; pool {fullest[len(fullest) // 2]:.0%} full (median), "
        f"{num_restarts:.0f} restarts, {num_refused:.0f} refused writes"
    )
    assert not found, found[:5]
    assert (num_restarts > 0) == (flags is IMPATIENT)


# ---- restarts under load ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_restarts_of_each_worker_under_load(transport: str, say: Say) -> None:
    """No client sees an error, and answers come again within 10 s of every kill."""

    async def client(running: Stack, session: aiohttp.ClientSession, rng: Random, answers: list[tuple[Answer, str]]):
        while True:
            prompt, max_tokens = make_prompt(rng, rng.randint(10, 200)), rng.randint(1, 30)
            answer = await ask(session, running.url, prompt, max_tokens)
            answers.append((answer, wrong(answer, prompt, max_tokens, may_fail=False)))

    async def run(running: Stack) -> tuple[list[tuple[Answer, str]], list[float]]:
        answers: list[tuple[Answer, str]] = []
        back_s = []
        async with clients() as session:
            load = [asyncio.create_task(client(running, session, Random(seed), answers)) for seed in range(10)]
            for number in range(2 * NUM_RUNS):
                await asyncio.sleep(Random(number).uniform(0.3, 1.5))
                name = ("prefill-0", "decode-0")[number % 2]
                pid = (await off_loop(running.pids))[name]
                os.kill(pid, signal.SIGKILL)
                killed_at_s = time.monotonic()
                await wait_for(lambda name=name, pid=pid: is_back(running, name, pid), 60, f"{name} did not come back")
                num_before = len(answers)
                await wait_for(lambda num=num_before: len(answers) > num, 30, "no answer comes any more")
                back_s.append(time.monotonic() - killed_at_s)
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
            await off_loop(running.wait_idle, 30.0)
        return answers, back_s

    with stack(*SLOW_PREFILL, "--kv-transport", transport, "--max-attempts", "5") as running:
        answers, back_s = asyncio.run(run(running))
        num_restarts = running.metric("relevo:worker_restarts_total")
        num_refused = running.metric("relevo:refused_writes_total")
    found = [why for _, why in answers if why]
    say(
        f"{num_restarts:.0f} restarts over {transport}: {len(answers) - len(found)} of {len(answers)} answers equal "
        f"the oracle; worker and answers back after {max(back_s):.1f} s at most; {num_refused:.0f} refused writes"
    )
    assert not found, found[:5]
    assert num_restarts == 2 * NUM_RUNS
    assert max(back_s) < ANSWER_S


# ---- nonsense beside good traffic ------------------------------------------------------------------------------------

NUM_NONSENSE = 500
BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"prompt": 7}',
    b'{"prompt": [1, "a"]}',
    b'{"prompt": [1, 99999999]}',
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "x", "n": 100000}',
    b'{"prompt": "x", "temperature": "hot"}',
    b'{"prompt": "x", "stop": {"a": 1}}',
    b'{"model": "nobody", "prompt": "x"}',
    b'{"prompt": [' + b"1," * 5000 + b"1]}",
    b"\xff\xfe\x00" * 50,
    b"[" * 5000,
)
RAW = (
    b"GARBAGE\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


def test_nonsense_harms_no_good_request(say: Say) -> None:
    """500 malformed requests, among them broken HTTP: each is refused or hung up on, and every good answer is right."""

    async def nonsense(running: Stack, session: aiohttp.ClientSession, number: int) -> int:
        if number % 4 == 0:
            host, port = running.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(RAW[number // 4 % len(RAW)])
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.5):  # a server may wait for the rest of what it was promised
                    await reader.read(200)
            writer.close()
            return 400
        body = BODIES[number % len(BODIES)]
        path = ("/v1/completions", "/v1/chat/completions")[number % 2]
        headers = {"content-type": "application/json"}
        async with session.post(running.url + path, data=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def good(running: Stack, session: aiohttp.ClientSession, rng: Random, found: list[str]) -> None:
        while True:
            prompt = make_prompt(rng, rng.randint(5, 120))
            found.append(wrong(await ask(session, running.url, prompt, 12), prompt, 12, may_fail=False))

    async def run(running: Stack) -> tuple[list[int], list[str]]:
        found: list[str] = []
        async with clients() as session:
            load = [asyncio.create_task(good(running, session, Random(seed), found)) for seed in range(6)]
            statuses: list[int] = []
            for first in range(0, NUM_NONSENSE, 10):
                statuses += await asyncio.gather(*(nonsense(running, session, first + i) for i in range(10)))
            await wait_for(lambda: len(found) > 30, 120, "good requests are not answered")
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
        return statuses, found

    with stack(*SLOW_PREFILL) as running:
        before = running.pids()
        statuses, found = asyncio.run(run(running))
        assert running.pids() == before, "nonsense ended a worker"
        running.wait_idle(30)
    bad = [why for why in found if why]
    say(f"{len(statuses)} malformed requests: {len(found) - len(bad)} of {len(found)} good answers are right")
    assert not bad, bad[:5]
    assert all(400 <= status < 500 for status in statuses), sorted(set(statuses))
