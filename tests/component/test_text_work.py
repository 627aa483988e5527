"""Long texts are worked on by threads, and so many wait for one at most."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from scripted_gateway import rig

from relevo.core.errors import Overloaded
from relevo.gateway.http import call
from relevo.gateway.text.text_work import INLINE_BYTES, LIMITS, TextWork


async def test_short_texts_stay_in_the_event_loop() -> None:
    assert await TextWork().run(INLINE_BYTES, threading.current_thread) is threading.main_thread()


async def test_long_texts_run_on_threads_and_wait_in_a_bounded_queue() -> None:
    """Red when long texts hold up the event loop, pile up without bound, or keep their place when they are done."""
    texts, gate = TextWork(replace(LIMITS, max_working_jobs=1, max_waiting_jobs=2)), threading.Event()

    def work() -> threading.Thread:
        gate.wait(60)
        return threading.current_thread()

    unfinished = [asyncio.create_task(texts.run(INLINE_BYTES + 1, work)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await texts.run(INLINE_BYTES + 1, work)
    assert refused.value.retry_after_s
    gate.set()
    threads = await asyncio.gather(*unfinished)
    assert len(set(threads)) == 1 and threading.main_thread() not in threads
    assert await texts.run(INLINE_BYTES + 1, work) in threads


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    texts, gate = TextWork(replace(LIMITS, max_working_jobs=1, max_waiting_jobs=1)), threading.Event()
    at_work, waits = [asyncio.create_task(texts.run(INLINE_BYTES + 1, gate.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    another = asyncio.create_task(texts.run(INLINE_BYTES + 1, lambda: "read"))
    await asyncio.sleep(0)
    gate.set()
    assert await another == "read" and await at_work


async def test_probes_are_answered_while_every_thread_works_on_long_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when liveness waits behind what clients send: a busy server would be ended, and its load end the next."""
    gate, num_at_work, parse = threading.Event(), threading.Semaphore(0), call.parse_object

    def blocked(body: bytes) -> dict[str, object]:
        if threading.current_thread() is not threading.main_thread():
            num_at_work.release()
            gate.wait(60)
        return parse(body)

    monkeypatch.setattr(call, "parse_object", blocked)
    r = rig()
    prompts = ["x" * 400_000] * LIMITS.max_working_jobs + ["x" * 8_000_000] * 2
    sending = [asyncio.create_task(r.complete(prompt=prompt)) for prompt in prompts]
    try:
        for _ in range(LIMITS.max_working_jobs):
            assert await asyncio.to_thread(num_at_work.acquire, timeout=60)
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            async with asyncio.timeout(60):
                assert (await r.get(path)).status_code == 200
        assert not any(each.done() for each in sending)
    finally:
        gate.set()
    assert {answer.status_code for answer in await asyncio.gather(*sending)} == {400}, "too long for this model"
