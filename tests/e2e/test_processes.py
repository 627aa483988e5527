"""What happens to processes: kill -9, Ctrl-C, impossible settings."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stack import Stack, descendants, is_alive, stack

SLOW_STEPS = ("--fake-base-s", "0.02", "--num-kv-blocks", "512", "--max-model-len", "2048")


def wait_until(condition: object, deadline_s: float, what: str) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_a_killed_worker_loses_no_request(victim: str) -> None:
    """Every stream continues with the tokens an undisturbed run gives; the worker comes back under a new epoch."""
    prompts = [[(i * 31 + j) % 256 for j in range(50)] for i in range(12)]
    with stack("fake", "--topology", "1p1d", *SLOW_STEPS) as running:
        expected = [running.complete(p, max_tokens=30, ignore_eos=True)["choices"] for p in prompts]
        pid = running.pids()[victim]
        fresh = [[*p[::-1], i] for i, p in enumerate(prompts)]
        with ThreadPoolExecutor(24) as pool:
            again = [pool.submit(running.complete, p, max_tokens=30, ignore_eos=True) for p in prompts]
            new = [pool.submit(running.complete, p, max_tokens=60, ignore_eos=True) for p in fresh]
            wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 10, "nothing ran")
            os.kill(pid, signal.SIGKILL)
            answers = [future.result()["choices"] for future in again]
            new_answers = [future.result()["choices"] for future in new]
        assert answers == expected
        wait_until(lambda: running.pids().get(victim) not in (pid, 0), 10, "the worker did not come back")
        running.wait_ready(10)
        assert new_answers == [running.complete(p, max_tokens=60, ignore_eos=True)["choices"] for p in fresh]
        running.wait_idle()


@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_a_stopped_worker_is_replaced_and_loses_no_request(victim: str) -> None:
    """Its connection stays open, so only its silence tells; it comes back as a new process, its streams go on."""
    prompts = [[(i * 17 + j) % 256 for j in range(60)] for i in range(8)]
    with stack("fake", "--topology", "1p1d", "--heartbeat-timeout-s", "2", *SLOW_STEPS) as running:
        expected = [running.complete(p, max_tokens=30, ignore_eos=True)["choices"] for p in prompts]
        pid = running.pids()[victim]
        with ThreadPoolExecutor(8) as pool:
            again = [pool.submit(running.complete, p, max_tokens=30, ignore_eos=True) for p in prompts]
            wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 10, "nothing ran")
            os.kill(pid, signal.SIGSTOP)
            assert [future.result()["choices"] for future in again] == expected
        wait_until(lambda: running.pids().get(victim) not in (pid, 0), 30, "the worker did not come back")
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
                [sys.executable, "-m", "relevo", "drain", "--all", "--url", running.url], capture_output=True, text=True
            )
            assert drained.returncode == 0, drained.stderr
            assert [future.result()["choices"] for future in rounds] == expected * 3
        after = running.pids()
        assert after.keys() == before.keys() and not set(after.values()) & set(before.values())
        running.wait_idle(30)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "http://127.0.0.1:9"], "--url"),
        (["decode-7"], "no worker decode-7"),
        ([], "--all"),
    ],
)
def test_drain_says_what_is_wrong(arguments: list[str], said: str) -> None:
    with stack("fake", "--topology", "1p1d", *SLOW_STEPS) as running:
        where = [] if "--url" in arguments else ["--url", running.url]
        done = subprocess.run(
            [sys.executable, "-m", "relevo", "drain", *arguments, *where], capture_output=True, text=True
        )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_gateway_comes_back_and_workers_forget_its_requests() -> None:
    with stack("fake", "--topology", "1p1d", *SLOW_STEPS) as running:
        gateway = next(pid for pid in descendants(running.process.pid) if b"gateway" in _cmdline(pid))
        with ThreadPoolExecutor(4) as pool:
            lost = [pool.submit(running.complete, [i] * 40, max_tokens=500, ignore_eos=True) for i in range(4)]
            wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 10, "nothing ran")
            os.kill(gateway, signal.SIGKILL)
            assert all(future.exception() is not None for future in lost)
        running.wait_ready(20)
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
        running.process.wait(timeout=20)
        wait_until(lambda: not any(is_alive(pid) for pid in children), 10, "a process stayed behind")
    assert set(Path("/dev/shm").glob("*")) == shared_before


def test_ctrl_c_lets_running_requests_finish() -> None:
    with stack("fake", "--topology", "1p1d", *SLOW_STEPS) as running, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(running.complete, [5] * 30, max_tokens=40, ignore_eos=True)
        wait_until(lambda: running.metric("vllm:num_requests_running") > 0, 10, "nothing ran")
        running.process.send_signal(signal.SIGINT)
        assert answer.result()["usage"]["completion_tokens"] == 40
        assert running.process.wait(timeout=20) == 0


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fake", "--topology", "3x"), "topology"),
        pytest.param(("smollm2", "--topology", "9p9d"), "cores", marks=pytest.mark.model),
        (("fake", "--port", "99999"), "--port"),
        (("fake", "--port", "many"), "--port"),
        (("fake", "--dtype", "int3"), "--dtype"),
        (("fake", "--block-size", "0"), "--block-size"),
        (("fake", "--max-model-len", "9999999"), "--max-model-len"),
        (("fake", "--num-kv-blocks", "4", "--max-model-len", "2048"), "--num-kv-blocks"),
        (("fake", "--max-num-batched-tokens", "8", "--max-num-seqs", "64"), "--max-num-batched-tokens"),
        (("fake", "--kv-cache-memory-bytes", "900GiB"), "--kv-cache-memory-bytes"),
        (("fake", "--host", "no.such.host.invalid"), "--host"),
        (("fake", "--cores", "0,999"), "--cores"),
        (("/no/such/model.gguf",), "/no/such/model.gguf"),
        (("fake", "--device", "cuda"), "cuda"),
    ],
)
def test_impossible_settings_fail_at_once_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    done = run_serve(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_flag_is_refused() -> None:
    done = run_serve("fake", "--tensor-paralel-size", "2")
    assert done.returncode == 2
    assert "--tensor-paralel-size" in done.stderr


def test_a_broken_model_file_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 64)
    done = run_serve(str(broken))
    assert done.returncode == 2
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named_before_anything_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_serve("fake", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "--port" in done.stderr


def test_options_come_from_the_environment_too(split: Stack) -> None:
    with stack("fake", "--topology", "unified", env={"RELEVO_SERVED_MODEL_NAME": "alpha,beta"}) as named:
        assert [model["id"] for model in named.get("/v1/models")["data"]] == ["alpha", "beta"]
        assert named.post("/v1/completions", {"model": "beta", "prompt": [1, 2], "max_tokens": 2})["model"]
