"""Generated and mutated requests against a running server, beside clients that mean well.

`RELEVO_FUZZ_REQUESTS=100000 RELEVO_FUZZ_SEED=1 pytest tests/e2e/test_fuzz_server.py -s` for the long one.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter
from pathlib import Path

import aiohttp
import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from stack import stack

sys.path.insert(0, str(Path(__file__).parents[1] / "component"))
from http_mutations import conversations

NUM_REQUESTS = int(os.environ.get("RELEVO_FUZZ_REQUESTS", "2000"))
SEED = int(os.environ.get("RELEVO_FUZZ_SEED", "1"))
TOGETHER = 64  # conversations at a time, of two requests each on average
QUIET_S = 0.15  # a connection on which nothing comes for so long has no answer under way


async def converse(port: int, segments: list[bytes], statuses: Counter[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for segment in segments:
            writer.write(segment)
            await asyncio.sleep(0)
        answer = b""
        while True:
            async with asyncio.timeout(QUIET_S):
                if not (data := await reader.read(65536)):
                    break
            answer += data
    except TimeoutError:
        statuses["waits for more"] += not answer
    except ConnectionError:
        statuses["reset"] += 1
    finally:
        writer.close()
    statuses.update(status.decode() for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer))


async def talk(url: str, stop: asyncio.Event) -> tuple[int, int]:
    """Good completions until `stop`: how many there were, and how many were not as they should be."""
    num, num_bad = 0, 0
    body = {"model": "fake", "prompt": "a good prompt", "max_tokens": 8, "temperature": 0}
    async with aiohttp.ClientSession() as client:
        expected = None
        while not stop.is_set():
            async with client.post(f"{url}/v1/completions", json=body) as answer:
                text = (await answer.json())["choices"][0]["text"] if answer.status == 200 else None
            expected = expected or text
            num += 1
            num_bad += text is None or text != expected
            await asyncio.sleep(0.02)
    return num, num_bad


def resident_kib(pid: int) -> dict[str, int]:
    """Of the processes below `pid`, by what they are."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{child}/status").read_text().splitlines())
        kind = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[-2].decode()
        found[f"{kind} {child}"] = int(lines["VmRSS"].split()[0])
    return found


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_no_bytes_make_the_server_fail_and_good_clients_notice_nothing() -> None:
    """Red if any input were a 500, ended a process, or disturbed an answer beside it."""
    statuses: Counter[str] = Counter()
    with stack("fake", "--database-url", "memory", "--stall-timeout-s", "2", "--header-timeout-s", "2") as server:
        port = int(server.url.rpartition(":")[2])
        before = resident_kib(server.process.pid)
        with asyncio.Runner() as runner:
            stop = asyncio.Event()
            pending: list[list[bytes]] = []

            async def together() -> None:
                await asyncio.gather(*(converse(port, segments, statuses) for segments in pending))

            talking = runner.get_loop().create_task(talk(server.url, stop))

            @hypothesis.seed(SEED)
            @settings(
                max_examples=NUM_REQUESTS // 2,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[hypothesis.Phase.generate],
            )
            @given(conversations())
            def fuzz(segments: list[bytes]) -> None:
                pending.append(segments)
                if len(pending) == TOGETHER:
                    runner.run(together())
                    assert not statuses["500"], pending
                    pending.clear()

            fuzz()
            stop.set()
            num_good, num_bad = runner.run(_result(talking))
        after = resident_kib(server.process.pid)
        sys.stdout.write(f"\nseed {SEED}, {NUM_REQUESTS} requests: {dict(sorted(statuses.items()))}\n")
        sys.stdout.write(f"good answers beside them: {num_good}, bad: {num_bad}; KiB before {before}, after {after}\n")
        assert num_good and not num_bad
        assert after.keys() == before.keys(), "a process was replaced"
        log = "\n".join(server.log)
        assert "unexpected failure" not in log and "Traceback" not in log, log[-8000:]
        assert server.metric("relevo:http_connections") <= 2
        server.wait_idle()


async def _result(task: asyncio.Task[tuple[int, int]]) -> tuple[int, int]:
    return await task
