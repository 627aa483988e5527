"""The real command in front of engines that are not ours: running ones, and one that it starts.

Red when anything of a client's gets into a request to an engine, when an engine that Relevo started stays behind or is
not started again, or when an operator's slip gets no sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engines_at_work import BLOCK_SIZE, command, engines_at_work, model_folder
from stack import Stack, descendants, is_alive, stack

from relevo.policy.handoff.dialects import TRANSFER_FIELDS

MARK, MARK_NUMBER = "poison-of-a-client", 66_613_666


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("engines") / "tiny")


@contextlib.contextmanager
def pair(folder: Path) -> Iterator[tuple[Stack, list[Any]]]:
    with engines_at_work("prefill", "decode") as engines:
        workers = [f"{each.url},role={each.role},engine=vllm" for each in engines]
        flags = [word for worker in workers for word in ("--worker", worker)]
        with stack(str(folder), *flags, "--block-size", str(BLOCK_SIZE)) as server:
            deadline = time.monotonic() + 30.0
            while server.metric("relevo:engine_pairs", state="paired") < 2.0:
                assert time.monotonic() < deadline, "".join(server.log)
                time.sleep(0.05)
            for each in engines:
                each.bodies.clear()
            yield server, engines


def poisons() -> list[dict[str, Any]]:
    """Every field of every dialect, in several spellings and places."""
    names = sorted(TRANSFER_FIELDS)
    spelled = [*names, *(n.upper() for n in names), *(n.replace("_", "-") for n in names), *(n.title() for n in names)]
    flat: dict[str, Any] = dict.fromkeys(spelled, MARK) | {"bootstrap_room": MARK_NUMBER}
    params = {"do_remote_prefill": True, "remote_engine_id": MARK, "remote_block_ids": [[MARK_NUMBER]]}
    return [
        flat,
        {"kv_transfer_params": params},
        {"kv_transfer_params": [params, [params]]},
        {"extra_body": {"kv_transfer_params": params, **flat}},
        {"extra_body": json.dumps({"kv_transfer_params": params})},
        {"sampling_params": {"extra_args": {"kv_transfer_params": params}}},
        {"vllm_xargs": {"kv_transfer_params": params}, "metadata": {"bootstrap_room": MARK}},
        {"stream_options": {"include_usage": True, "kv_transfer_params": params}},
        {"user": MARK, "request_id": MARK, "rid": MARK, "cache_salt": MARK},
    ]


def test_nothing_of_a_client_gets_into_a_handoff(folder: Path) -> None:
    message = {"role": "user", "content": "hello there", "kv_transfer_params": {"remote_host": MARK}}
    asks: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "hello there, engine", "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [message], "max_tokens": 3}),
        ("/v1/responses", {"input": "hello there", "max_output_tokens": 3}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}),
    ]
    num_answered = 0
    with pair(folder) as (server, engines):
        for path, body in asks:
            for poison in poisons():
                with contextlib.suppress(urllib.error.HTTPError):  # a refusal is as good
                    server.post(path, {"model": server.model, **body, **poison})
                    num_answered += 1
        assert num_answered >= 16
        sent = [body for each in engines for body in each.bodies]
        assert sent
        for body in sent:
            told = json.dumps(body)
            assert MARK not in told
            assert str(MARK_NUMBER) not in told
            known = {"request_id", "model", "token_ids", "sampling_params", "stream", "stream_options", "cache_salt"}
            assert set(body) <= known | {"kv_transfer_params"}
        assert not any(each.is_broken for each in engines)
        assert server.metric("relevo:engine_handoffs_total", outcome="completed") > 0


def test_usage_is_that_of_the_prefill_engine(folder: Path) -> None:
    with pair(folder) as (server, engines):
        first = server.complete("the same prompt twice", max_tokens=4, ignore_eos=True)["usage"]
        again = server.complete("the same prompt twice", max_tokens=4, ignore_eos=True)["usage"]
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        assert again["prompt_tokens_details"]["cached_tokens"] == 20
        assert server.recorded_cached_tokens() == 20
        assert not engines[0].leases


def test_an_engine_is_started_and_started_again_and_ends_with_the_server(folder: Path, tmp_path: Path) -> None:
    path = f"{command(tmp_path)}:{os.environ['PATH']}"
    flags = ("--engine", "vllm", "--topology", "unified", "--block-size", str(BLOCK_SIZE))
    with stack(str(folder), *flags, env={"PATH": path}) as server:
        server.wait_ready()
        said = server.complete("hello", max_tokens=5, ignore_eos=True)
        below = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(server.process.pid)}
        (engine,) = (pid for pid, words in below.items() if "fake_engines_at_work" in words)
        os.kill(engine, signal.SIGKILL)
        deadline = time.monotonic() + 30.0
        while True:
            with contextlib.suppress(urllib.error.HTTPError):
                assert server.complete("hello", max_tokens=5, ignore_eos=True)["choices"] == said["choices"]
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        processes = descendants(server.process.pid)
    deadline = time.monotonic() + 10.0
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_engine_that_is_killed_before_it_answers_is_started_again(folder: Path, tmp_path: Path) -> None:
    """A signal (of the kernel, say, for want of memory) names nothing that a person got wrong."""
    path, killed = f"{command(tmp_path)}:{os.environ['PATH']}", tmp_path / "killed"
    flags = ("--engine", "vllm", "--topology", "unified", "--block-size", str(BLOCK_SIZE))
    with stack(str(folder), *flags, "--", "--killed-unless", str(killed), env={"PATH": path}) as server:
        server.wait_ready()
        assert killed.exists()
        assert server.complete("hello", max_tokens=5, ignore_eos=True)["choices"]
        assert any("vllm was ended by a signal: Killed" in line for line in server.log)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--engine", "vllm"), "the command vllm is not in PATH; install vllm beside Relevo"),
        (("--engine", "sglang"), "Python finds no package sglang"),
        (("--worker", "http://a:1,role=prefill,engine=vllm"), "none of them decodes"),
        (("--worker", "http://a:1,role=unified,engine=vllm", "--engine", "vllm"), "keep one of the two"),
        (("--worker", "http://a:1,role=unified,engine=vllm", "--quantization", "int8"), "of Relevo's own engine"),
        (("--", "--tensor-parallel-size", "2"), "is for an engine that Relevo starts"),
        (("--engine", "vllm", "--", "--fail-at-start"), "ended with status 1 before it answered; its own log above"),
    ],
)
def test_slips_of_an_operator(folder: Path, tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    path = f"{command(tmp_path)}:/usr/bin:/bin" if "--fail-at-start" in flags else "/usr/bin:/bin"
    environment = {**os.environ, "PATH": path}
    tried = subprocess.run(
        [sys.executable, "-m", "relevo", "serve", str(folder), "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert tried.returncode == 2
    assert words in re.sub(r"\s+", " ", tried.stderr)
