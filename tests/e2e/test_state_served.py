"""GET /v1/state/stream of a real server: its numbers are those of /metrics, a killed gateway's viewers come back to the
other one, and an open stream does not hold up Ctrl-C."""

from __future__ import annotations

import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stack import Stack, descendants, stack

FLAGS = (
    "--topology",
    "1p1d",
    "--share-cores",
    "--gateways",
    "2",
    "--num-kv-blocks",
    "256",
    "--shutdown-timeout-s",
    "300",
)


class Events:
    """A stream, read as its lines come."""

    def __init__(self, running: Stack) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=30)
        self._connection.request("GET", "/v1/state/stream")
        self._response = self._connection.getresponse()
        assert self._response.status == 200

    def next_state(self) -> Any:
        """None: the stream has ended."""
        try:
            while line := self._response.readline():
                if line.startswith(b"data: "):
                    return json.loads(line.removeprefix(b"data: "))
        except (OSError, http.client.HTTPException):
            pass
        return None


def gateway_pid(running: Stack, gateway_id: str) -> int:
    """They are started in the order of their names."""
    below = descendants(running.process.pid)
    pids = [pid for pid in below if b"\0gateway\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return sorted(pids)[int(gateway_id.rpartition("-")[2])]


def test_viewers_see_the_servers_numbers_through_the_loss_of_a_gateway_until_it_ends() -> None:
    """Red if the state counts otherwise than /metrics, if the stream of a dead gateway hangs, if what it showed cannot
    be had from the other, or if the server waits for pages that are open."""
    with stack("fake", *FLAGS) as running:
        for _ in range(4):
            running.complete(list(range(60)), max_tokens=8, ignore_eos=True)
        running.wait_idle()
        events = Events(running)
        first = events.next_state()
        assert {each["gateway_id"]: each["answers"] for each in first["gateways"]} == {
            "gateway-0": True,
            "gateway-1": True,
        }
        for name, member in {
            "relevo:prefill_tokens_total": "num_prefill_tokens",
            "relevo:decode_tokens_total": "num_generation_tokens",
            "relevo:steps_total": "num_steps",
            "relevo:kv_transfer_bytes_total": "transferred_bytes",
        }.items():
            assert running.by_worker(name) == {each["worker_id"]: each["totals"][member] for each in first["workers"]}
        assert sum(first["models"][0]["totals"]["num_requests"].values()) == 4
        assert first["history"] is not None and events.next_state()["at_unix_s"] > first["at_unix_s"]

        os.kill(gateway_pid(running, first["server"]["gateway_id"]), signal.SIGKILL)
        while events.next_state() is not None:
            pass
        again = Events(running)
        whole = again.next_state()
        assert whole["history"] is not None and whole["workers"]
        assert {each["gateway_id"] for each in whole["gateways"]} == {"gateway-0", "gateway-1"}

        running.process.send_signal(signal.SIGINT)
        while again.next_state() is not None:
            pass
        running.process.wait(timeout=30)  # with a page held open: minutes
