"""A real vLLM on CPUs as prefill and decode engine, on two machines of one box, and Relevo on the second of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines import Machine, Network

VLLM = Path(__file__).parents[2] / "build" / "vllm"
MODEL = VLLM / "tiny"
LEASE_S = 12
BLOCK_SIZE = 32
START_S = 900.0  # two engines on two cores under load
PORT, EVENTS, REPLAY, SIDE_CHANNEL = 8100, 5557, 5607, 5600


@dataclass
class Engine:
    """`vllm serve` on a machine."""

    machine: Machine
    role: str
    log: Path
    process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_producer" if self.role == "prefill" else "kv_consumer",
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
        }
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{EVENTS}"}
        events["replay_endpoint"] = f"tcp://*:{REPLAY}"
        words = ["serve", str(MODEL), "--host", "0.0.0.0", "--port", str(PORT), "--served-model-name", "tiny"]
        words += ["--tokens-only", "--skip-tokenizer-init", "--enable-prompt-tokens-details", "--dtype", "float32"]
        words += ["--block-size", str(BLOCK_SIZE), "--shutdown-timeout", "60", "--max-model-len", "2048"]
        words += ["--enforce-eager", "--max-num-seqs", "16", "--kv-transfer-config", json.dumps(transfer)]
        words += ["--kv-events-config", json.dumps(events)]
        environment = {
            **os.environ,
            "VLLM_NIXL_SIDE_CHANNEL_HOST": self.machine.address,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL),
            "VLLM_HOST_IP": self.machine.address,
            "UCX_TLS": "tcp,self",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self.log.open("ab") as log:
            program = str(VLLM / "bin" / "vllm")
            self.process = self.machine.start(program, *words, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9 of all its processes."""
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        assert self.process is not None
        self.process.wait(30)

    def terminate(self) -> None:
        assert self.process is not None
        self.process.terminate()

    def _processes(self) -> list[int]:
        assert self.process is not None
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
        return found


@dataclass
class Pair:
    prefill: Engine
    decode: Engine
    gateway: Machine
    url: str = ""
    process: subprocess.Popen[Any] | None = None

    def ask_all(self, asks: Sequence[dict[str, Any]], width: int = 4) -> list[tuple[int, Any]]:
        done = self.gateway.run(
            sys.executable, "-c", _POST_ALL, json.dumps({"asks": asks, "width": width}), timeout_s=1800.0
        )
        return [(status, told) for status, told in json.loads(done.stdout)]

    def behind(self, prompt: list[int], max_tokens: int = 16, **fields: Any) -> dict[str, Any]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, **fields}
        return {"url": f"{self.url}/v1/completions", "body": body}

    def alone(self, engine: Engine, prompt: list[int], max_tokens: int = 16) -> dict[str, Any]:
        """vLLM by itself, under a salt of its own so that nothing is found in its cache."""
        sampling = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "detokenize": False}
        body = {"token_ids": prompt, "sampling_params": sampling, "cache_salt": f"alone-{random.getrandbits(64)}"}
        return {"url": f"http://{engine.machine.address}:{PORT}/inference/v1/generate", "body": body}

    def metric(self, url: str, name: str, label: str = "") -> float:
        text = self.gateway.run("curl", "-s", f"{url}/metrics").stdout
        lines = [line for line in text.splitlines() if line.startswith(name + "{") and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def handoffs(self, outcome: str) -> float:
        return self.metric(self.url, "relevo:engine_handoffs_total", f'outcome="{outcome}"')

    def wait_paired(self, wait_s: float = START_S) -> None:
        deadline = time.monotonic() + wait_s
        while self.metric(self.url, "relevo:engine_pairs", 'state="paired"') < 2.0:
            assert time.monotonic() < deadline, "no handoff between the engines in time"
            time.sleep(1.0)


_POST_ALL = """
import json, sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
told = json.loads(sys.argv[1])
def ask(each):
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(each["url"], json.dumps(each["body"]).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
with ThreadPoolExecutor(told["width"]) as pool:
    print(json.dumps(list(pool.map(ask, told["asks"]))))
"""


@contextlib.contextmanager
def vllm_pair(network: Network, folder: Path) -> Iterator[Pair]:
    first, second = network.machines[:2]
    prefill = Engine(first, "prefill", folder / "prefill.log")
    decode = Engine(second, "decode", folder / "decode.log")
    for engine in (prefill, decode):
        engine.start()
    pair = Pair(prefill, decode, second, f"http://{second.address}:8000")
    workers = []
    for engine in (prefill, decode):
        address = engine.machine.address
        told = f"http://{address}:{PORT},role={engine.role},engine=vllm,name={engine.role},lease_s={LEASE_S}"
        workers += ["--worker", f"{told},events=tcp://{address}:{EVENTS},replay=tcp://{address}:{REPLAY}"]
    words = ["-m", "relevo", "serve", str(MODEL), "--served-model-name", "tiny", "--host", "0.0.0.0", "--port", "8000"]
    words += ["--block-size", str(BLOCK_SIZE), "--max-queue-ttft-s", "3600", "--database-url", "memory"]
    with (folder / "relevo.log").open("wb") as log:
        pair.process = second.start(sys.executable, *words, *workers, stdout=log, stderr=log)
        try:
            pair.wait_paired()
            yield pair
        finally:
            pair.process.terminate()
            pair.process.wait(60)
