"""Heads and node processes that die and come back: nodes are found again, with what they have cached."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boxes import Box, Boxes, Clients
from machines import Machine, Network

MakeNetwork = Callable[..., Network]

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def ask(head: Box, prompt: str) -> dict[str, Any]:
    with Clients(head).open() as clients:
        number = clients.ask(prompt, 4)
        clients.all_answered()
        return clients.answers[number][1]


def processes_of(machine: Machine, kind: str) -> list[int]:
    found = []
    for pid in machine.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"relevo.cli.child" in words and words[words.index(b"relevo.cli.child") + 1] == kind.encode():
                found.append(pid)
    return found


def test_a_head_that_restarts_finds_its_nodes_and_their_caches(make_network: MakeNetwork, boxes: Boxes) -> None:
    """Then its node process alone, then that of the node. Red when weights are loaded again, or a turn misses its
    cache."""
    net = make_network(2, names=("gate", "one"))
    gate, one = net.machines
    head = boxes.serve(gate, "--topology", "none")
    node = boxes.join(one, [gate], "unified")
    boxes.until(lambda: len(head.ready_workers()) == 1, what="the worker of the node")
    pids, prompt = node.workers_pids(), "a conversation that goes on " * 20
    first = ask(head, prompt)
    gate.kill()
    head.process.wait()
    head = boxes.serve(gate, "--topology", "none", name="gate")
    boxes.until(lambda: "ready:" in head.log, what="the head is back")
    boxes.until(lambda: len(head.ready_workers()) == 1, 10, "the node is found again")
    again = ask(head, prompt)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 400, "what the node has cached is known again"
    assert node.workers_pids() == pids
    end_node_process(gate)
    boxes.until(lambda: ask_is_served(head), 15, "served while the head's node process is away, or soon after")
    before = head.ready_workers()
    end_node_process(one)
    boxes.until(lambda: head.ready_workers() not in ({}, before), 15, "the node is there under a later epoch")
    assert ask(head, prompt)["choices"][0]["text"] == first["choices"][0]["text"]
    assert node.workers_pids() == pids, "workers and weights stay"


def end_node_process(machine: Machine) -> None:
    (pid,) = processes_of(machine, "node")
    os.kill(pid, signal.SIGKILL)


def ask_is_served(head: Box) -> bool:
    return "choices" in ask(head, "is it served?")
