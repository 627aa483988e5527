"""A real vLLM on CPUs as prefill and decode engine, on two machines of one box, and Relevo on the second of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines import Machine, Network

VLLM = Path(os.environ.get("RELEVO_VLLM") or Path(__file__).parents[2] / "build" / "vllm").absolute()
MODEL = VLLM / "tiny"
SMOLLM2 = VLLM / "smollm2"
LEASE_S = 12
BLOCK_SIZE = 32
NUM_BLOCKS = 400  # few, so that what is freed is soon written over
START_S = 900.0  # two engines on two cores under load
PORT, DOOR, EVENTS, REPLAY, SIDE_CHANNEL = 8100, 8200, 5557, 5607, 5600
WITH_TICKET = '"remote_block_ids":['  # in an ask for a decode with KV that another engine holds


def until(condition: Callable[[], object], wait_s: float = START_S, what: str = "it") -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {wait_s:.0f} s"
        time.sleep(0.2)


@dataclass
class Engine:
    """`vllm serve` on a machine."""

    machine: Machine
    role: str
    log: Path
    model: Path = MODEL
    has_own_api: bool = False  # chats and completions beside token ids
    process: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.machine.address}:{PORT}"

    def start(self) -> None:
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_producer" if self.role == "prefill" else "kv_consumer",
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
        }
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{EVENTS}"}
        events["replay_endpoint"] = f"tcp://*:{REPLAY}"
        words = ["--enable-scale-out"] if self.has_own_api else ["--tokens-only", "--skip-tokenizer-init"]
        words += ["--enable-prompt-tokens-details"]
        words += ["--kv-transfer-config", json.dumps(transfer), "--kv-events-config", json.dumps(events)]
        words += ["--num-gpu-blocks-override", str(NUM_BLOCKS), "--shutdown-timeout", "60"]
        more = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": self.machine.address,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL),
            "UCX_TLS": "tcp,self",
        }
        self.process = serve(self.machine, self.log, self.model, PORT, words, more)

    def is_well(self, asker: Machine) -> bool:
        """It says so itself, to another machine."""
        words = ("curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", f"{self.url}/health")
        return asker.run(*words, check=False).stdout == "200"

    def kill(self) -> None:
        """kill -9 of all its processes, if there are any left."""
        assert self.process is not None
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)

    def end(self, wait_s: float = 120.0) -> None:
        """SIGTERM, and its end."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(wait_s)


def serve(
    machine: Machine, log: Path, model: Path, port: int, words: Sequence[str], more: dict[str, str] | None = None
) -> subprocess.Popen[Any]:
    """`vllm serve`, with what is needed on a CPU that others use, too."""
    command = ["serve", str(model), "--host", "0.0.0.0", "--port", str(port), "--served-model-name", "tiny"]
    command += ["--dtype", "float32", "--block-size", str(BLOCK_SIZE), "--max-model-len", "2048"]
    command += ["--enforce-eager", "--max-num-seqs", "16"]
    environment = {
        **os.environ,
        "VLLM_HOST_IP": machine.address,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **(more or {}),
    }
    with log.open("ab") as to:
        program = str(VLLM / "bin" / "vllm")
        # they spin while idle, and share these cores with the gateway, which keeps the clock of leases
        return machine.start("nice", "-n", "5", program, *command, *words, env=environment, stdout=to, stderr=to)


@dataclass
class Pair:
    prefill: Engine
    decode: Engine
    gateway: Machine
    folder: Path
    url: str = ""
    process: subprocess.Popen[Any] | None = None
    door: subprocess.Popen[Any] | None = None

    def ask_all(self, asks: Sequence[dict[str, Any]], width: int = 4) -> list[tuple[int, Any]]:
        asking = self.gateway.start(sys.executable, "-c", _POST_ALL, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        said, _ = asking.communicate(json.dumps({"asks": asks, "width": width}).encode(), timeout=1800.0)
        return [(status, told) for status, told in json.loads(said)]

    def behind(self, prompt: list[int], max_tokens: int = 16, **fields: Any) -> dict[str, Any]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, **fields}
        return {"url": f"{self.url}/v1/completions", "body": body}

    def alone(self, engine: Engine, prompt: list[int], max_tokens: int = 16, **more: Any) -> dict[str, Any]:
        """vLLM by itself, under a salt of its own so that nothing is found in its cache."""
        sampling = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "detokenize": False, **more}
        body = {"token_ids": prompt, "sampling_params": sampling, "cache_salt": f"alone-{random.getrandbits(64)}"}
        return {"url": f"{engine.url}/inference/v1/generate", "body": body}

    def metric(self, url: str, name: str, label: str = "") -> float:
        text = self.gateway.run("curl", "-s", f"{url}/metrics", check=False).stdout
        lines = [line for line in text.splitlines() if line.startswith(name + "{") and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def handoffs(self, outcome: str) -> float:
        return self.metric(self.url, "relevo:engine_handoffs_total", f'outcome="{outcome}"')

    def usage(self) -> dict[str, int]:
        """Of the ledger: all that was ever used."""
        told = json.loads(self.gateway.run("curl", "-s", f"{self.url}/v1/usage").stdout)["total"]
        return {name: value for name, value in told.items() if isinstance(value, int)}

    def wait_paired(self, wait_s: float = START_S) -> None:
        until(lambda: self.metric(self.url, "relevo:engine_pairs", 'state="paired"') >= 2.0, wait_s, "a handoff")

    @contextlib.contextmanager
    def holding(self) -> Iterator[Callable[[], int]]:
        """Asks for a decode with a ticket reach the decode engine's door and go no further; how many do."""
        hold, held = self.folder / "hold", self.folder / "held"
        held.write_text("")
        hold.touch()
        try:
            yield lambda: len(held.read_text().splitlines())
        finally:
            hold.unlink(missing_ok=True)

    @contextlib.contextmanager
    def asked(self, asks: Sequence[dict[str, Any]], width: int) -> Iterator[list[tuple[int, Any]]]:
        """Answers meanwhile; they are complete when the context ends."""
        told: list[tuple[int, Any]] = []
        asking = threading.Thread(target=lambda: told.extend(self.ask_all(asks, width)))
        asking.start()
        try:
            yield told
        finally:
            asking.join(1200)

    def revived(self) -> list[str]:
        """Roles of engines that had ended, and have been started again."""
        ended = [engine for engine in (self.prefill, self.decode) if not engine.is_well(self.gateway)]
        for engine in ended:
            engine.kill()
            engine.start()
        until(lambda: all(engine.is_well(self.gateway) for engine in ended), what="engines that are started again")
        return [engine.role for engine in ended]

    def num_running(self, engine: Engine) -> float:
        return self.metric(engine.url, "vllm:num_requests_running")

    def start_relevo(self) -> None:
        workers = []
        for engine, port in ((self.prefill, PORT), (self.decode, DOOR)):
            address = engine.machine.address
            told = f"http://{address}:{port},role={engine.role},engine=vllm,name={engine.role},lease_s={LEASE_S}"
            workers += ["--worker", f"{told},events=tcp://{address}:{EVENTS},replay=tcp://{address}:{REPLAY}"]
        words = ["serve", str(self.decode.model), "--served-model-name", "tiny", "--host", "0.0.0.0", "--port", "8000"]
        words += ["--block-size", str(BLOCK_SIZE), "--data-dir", str(self.folder / "data")]
        words += ["--no-conditional-disaggregation"]  # else a slow machine keeps short prompts on the decode engine
        words += ["--max-queue-ttft-s", "3600", "--queue-timeout-s", "900", "--shutdown-timeout-s", "120"]
        words += ["--heartbeat-timeout-s", "60"]  # a gateway that a test stops is not ended for it
        with (self.folder / "relevo.log").open("ab") as log:
            self.process = self.gateway.start(sys.executable, "-m", "relevo", *words, *workers, stdout=log, stderr=log)


_POST_ALL = """
import json, sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
told = json.load(sys.stdin)
def ask(each):
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(each["url"], json.dumps(each["body"]).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=1000) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, repr(error)
with ThreadPoolExecutor(told["width"]) as pool:
    print(json.dumps(list(pool.map(ask, told["asks"]))))
"""


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


@contextlib.contextmanager
def vllm_pair(network: Network, folder: Path, model: Path = MODEL, has_own_api: bool = False) -> Iterator[Pair]:
    first, second = network.machines[:2]
    prefill = Engine(first, "prefill", folder / "prefill.log", model, has_own_api)
    decode = Engine(second, "decode", folder / "decode.log", model, has_own_api)
    for engine in (prefill, decode):
        engine.start()
    pair = Pair(prefill, decode, second, folder, f"http://{second.address}:8000")
    script = str(Path(__file__).with_name("held_door.py"))
    pair.door = second.start(sys.executable, script, str(DOOR), str(PORT), WITH_TICKET, str(folder))
    pair.start_relevo()
    try:
        pair.wait_paired()
        yield pair
    finally:
        assert pair.process is not None
        pair.process.terminate()
        pair.process.wait(150)
