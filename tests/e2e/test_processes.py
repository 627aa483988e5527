"""What happens to processes: kill -9, SIGSTOP, drain, Ctrl-C. Commands that cannot work: test_impossible_commands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stack import OPERATOR, Stack, descendants, is_alive, stack

SLOW_STEPS = ("--fake-base-s", "0.02", "--num-kv-blocks", "512", "--max-model-len", "2048")


def wait_until(condition: object, deadline_s: float, what: str) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def slow() -> Iterator[Stack]:
    """What is killed of it is back when a test ends."""
    with stack("fake", "--topology", "1p1d", *SLOW_STEPS) as running:
        yield running


@pytest.fixture(scope="module")
def watchful() -> Iterator[Stack]:
    with stack("fake", "--topology", "1p1d", "--heartbeat-timeout-s", "2", *SLOW_STEPS) as running:
        yield running


@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_a_killed_worker_loses_no_request(slow: Stack, victim: str) -> None:
    """Every stream continues with the tokens an undisturbed run gives; the worker comes back under a new epoch."""
    running, salt = slow, len(victim)  # prompts that nobody has cached
    prompts = [[(i * 31 + j * salt) % 256 for j in range(50)] for i in range(12)]
    expected = [running.complete(p, max_tokens=30, ignore_eos=True)["choices"] for p in prompts]
    pid = running.pids()[victim]
    fresh = [[*p[::-1], i] for i, p in enumerate(prompts)]
    with ThreadPoolExecutor(24) as pool:
        again = [pool.submit(running.complete, p, max_tokens=30, ignore_eos=True) for p in prompts]
        new = [pool.submit(running.complete, p, max_tokens=60, ignore_eos=True) for p in fresh]
        wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 60, "nothing ran")
        os.kill(pid, signal.SIGKILL)
        answers = [future.result()["choices"] for future in again]
        new_answers = [future.result()["choices"] for future in new]
    assert answers == expected
    wait_until(lambda: running.pids().get(victim) not in (pid, 0), 60, "the worker did not come back")
    running.wait_ready()
    assert new_answers == [running.complete(p, max_tokens=60, ignore_eos=True)["choices"] for p in fresh]
    running.wait_idle()


@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_a_stopped_worker_is_replaced_and_loses_no_request(watchful: Stack, victim: str) -> None:
    """Its connection stays open, so only its silence tells; it comes back as a new process, its streams go on."""
    running, salt = watchful, len(victim)
    prompts = [[(i * 17 + j * salt) % 256 for j in range(60)] for i in range(8)]
    expected = [running.complete(p, max_tokens=30, ignore_eos=True)["choices"] for p in prompts]
    pid = running.pids()[victim]
    with ThreadPoolExecutor(8) as pool:
        again = [pool.submit(running.complete, p, max_tokens=30, ignore_eos=True) for p in prompts]
        wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 60, "nothing ran")
        os.kill(pid, signal.SIGSTOP)
        assert [future.result()["choices"] for future in again] == expected
    wait_until(lambda: running.pids().get(victim) not in (pid, 0), 60, "the worker did not come back")
    assert not is_alive(pid)
    running.wait_idle(30)


@pytest.mark.parametrize("drain_timeout_s", ["30", "0"])
def test_draining_every_worker_under_load_fails_no_request(drain_timeout_s: str) -> None:
    """With patience requests finish where they are, without any they move; the tokens are the same."""
    prompts = [[(i * 29 + j) % 256 for j in range(40)] for i in range(24)]
    with stack("fake", "--topology", "1p1d", "--drain-timeout-s", drain_timeout_s, *SLOW_STEPS) as running:
        expected = [running.complete(p, max_tokens=40, ignore_eos=True)["choices"] for p in prompts]
        before = running.pids()
        with ThreadPoolExecutor(6) as pool:
            rounds = [pool.submit(running.complete, p, max_tokens=40, ignore_eos=True) for p in prompts * 3]
            drained = subprocess.run(
                [sys.executable, "-m", "relevo", "drain", "--all", "--url", running.url],
                capture_output=True,
                text=True,
                env={**os.environ, **OPERATOR, "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"},
            )
            assert drained.returncode == 0, drained.stderr
            assert [future.result()["choices"] for future in rounds] == expected * 3
        after = running.pids()
        assert after.keys() == before.keys() and not set(after.values()) & set(before.values())
        running.wait_idle(30)


@pytest.mark.parametrize(("arguments", "said"), [(["decode-7"], "no worker decode-7"), ([], "--all")])
def test_drain_says_what_is_wrong(split: Stack, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relevo", "drain", *arguments, "--url", split.url], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_gateway_comes_back_and_workers_forget_its_requests(slow: Stack) -> None:
    running = slow
    gateway = next(pid for pid in descendants(running.process.pid) if b"gateway" in _cmdline(pid))
    with ThreadPoolExecutor(4) as pool:
        lost = [pool.submit(running.complete, [i] * 40, max_tokens=500, ignore_eos=True) for i in range(4)]
        wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 60, "nothing ran")
        os.kill(gateway, signal.SIGKILL)
        assert all(future.exception() is not None for future in lost)
    running.wait_ready()
    running.wait_idle()
    assert running.complete([1, 2, 3], max_tokens=5)["usage"]["completion_tokens"] >= 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_behind(how: signal.Signals) -> None:
    """No process and no shared memory, however the supervisor ends."""
    shared_before = set(Path("/dev/shm").glob("*"))
    with stack("fake", "--topology", "1p1d", *SLOW_STEPS) as running:
        children = descendants(running.process.pid)
        assert len(children) >= 3
        running.process.send_signal(how)
        running.process.wait(timeout=60)
        wait_until(lambda: not any(is_alive(pid) for pid in children), 60, "a process stayed behind")
    assert set(Path("/dev/shm").glob("*")) == shared_before


def test_ctrl_c_lets_running_requests_finish() -> None:
    with stack("fake", "--topology", "1p1d", *SLOW_STEPS) as running, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(running.complete, [5] * 30, max_tokens=40, ignore_eos=True)
        wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 60, "nothing ran")
        running.process.send_signal(signal.SIGINT)
        assert answer.result()["usage"]["completion_tokens"] == 40
        assert running.process.wait(timeout=60) == 0


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relevo", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "RELEVO_DATABASE_URL": "memory"},
    )


def test_a_taken_port_is_named_before_anything_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_serve("fake", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_options_come_from_the_environment_too() -> None:
    with stack("fake", "--topology", "unified", env={"RELEVO_SERVED_MODEL_NAME": "alpha,beta"}) as named:
        assert [model["id"] for model in named.get("/v1/models")["data"]] == ["alpha", "beta"]
        assert named.post("/v1/completions", {"model": "beta", "prompt": [1, 2], "max_tokens": 2})["model"]
