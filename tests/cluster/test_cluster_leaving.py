"""Boxes with a wrong clock, and those that leave while they serve; two heads of which one is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boxes import Box, Boxes, Clients, prompts
from clusters import SLOW, answers, blocks_are_back, cluster
from machines import Network

MakeNetwork = Callable[..., Network]
NUM_TOKENS = 40
CLOCK = """
import pathlib, time
_time = time.time
time.time = lambda: _time() + float(pathlib.Path({path!r}).read_text())
"""

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def test_a_wrong_clock_is_said_and_joins_once_it_is_set(
    make_network: MakeNetwork, boxes: Boxes, tmp_path: Path
) -> None:
    """Two minutes ahead: more than what certificates forgive for logs and ledger."""
    skew = tmp_path / "skew"
    skew.write_text("120")
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(CLOCK.format(path=str(skew)))
    net = make_network(2, names=("gate", "ahead"))
    head = boxes.serve(net.machines[0], "--topology", "unified")
    boxes.until(lambda: len(head.ready_workers()) == 1, what="the head")
    ahead = boxes.join(net.machines[1], [net.machines[0]], "unified", env={"PYTHONPATH": str(tmp_path / "python")})
    boxes.until(lambda: "set both by NTP" in ahead.log, what="it says that its clock is wrong")
    assert head.metric("relevo:node_joins_denied_total", reason="clock") > 0
    assert len(head.ready_workers()) == 1
    skew.write_text("0")
    boxes.until(lambda: len(head.ready_workers()) == 2, 60, "it joins once its clock is right")


def test_a_node_that_is_told_to_end_loses_nothing(make_network: MakeNetwork, boxes: Boxes) -> None:
    """SIGTERM under 32 streams. Red when a stream is cut, or a new one goes there."""
    net = make_network(3, names=("gate", "one", "two"))
    head, (one, _) = cluster(net, boxes, "unified", "unified", env=SLOW)
    texts = prompts(32)
    want = answers(head, texts, NUM_TOKENS)
    with Clients(head).open() as clients:
        for text in texts:
            clients.ask(text, NUM_TOKENS)
        boxes.until(lambda: head.metric("relevo:requests_in_flight") == 32, 20, "streams that run")
        one.process.send_signal(signal.SIGTERM)
        for text in texts:
            clients.ask(text, NUM_TOKENS)
        assert clients.all_answered(120) == want * 2
    assert one.process.wait(60) == 0
    assert head.nodes()["one"]["state"] == "left"
    blocks_are_back(boxes, head)


def test_one_of_two_heads_is_killed(make_network: MakeNetwork, boxes: Boxes) -> None:
    """Streams of the other go on; the one that comes back learns its members again, with what they have cached."""
    net = make_network(4, names=("gate", "other", "one", "two"))
    gate, other = net.machines[0], net.machines[1]
    head = boxes.serve(gate, "--topology", "none")
    boxes.until(lambda: "ready:" in head.log, what="the first head")
    second = boxes.serve(other, "--topology", "none", join=head)
    boxes.until(lambda: "ready:" in second.log, what="the second head")
    nodes = [boxes.join(machine, [gate], "unified", env=SLOW) for machine in net.machines[2:]]
    for each in (head, second):
        boxes.until(lambda each=each: len(each.ready_workers()) == 2, what=f"nodes at {each.name}")  # type: ignore[misc]
    pids, epochs = [node.workers_pids() for node in nodes], second.ready_workers()
    texts, long = prompts(32), "a conversation that goes on " * 20
    want, first = answers(second, texts, NUM_TOKENS), _ask(second, long)
    with Clients(second).open() as clients:
        for text in texts:
            clients.ask(text, NUM_TOKENS)
        boxes.until(lambda: second.metric("relevo:requests_in_flight") == 32, 20, "streams that run")
        gate.kill()
        head.process.wait()
        assert clients.all_answered(120) == want
    assert second.ready_workers() == epochs, "no node was given up by the head that lives"
    head = boxes.serve(gate, "--topology", "none", name="gate")
    boxes.until(lambda: "ready:" in head.log, what="the head is back")
    boxes.until(lambda: len(head.ready_workers()) == 2, 15, "its members are learned again")
    again = _ask(head, long)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 400, "what nodes have cached is known again"
    assert [node.workers_pids() for node in nodes] == pids
    blocks_are_back(boxes, head)
    blocks_are_back(boxes, second)


def _ask(head: Box, prompt: str) -> dict[str, Any]:
    with Clients(head).open() as clients:
        number = clients.ask(prompt, 4)
        clients.all_answered()
        return clients.answers[number][1]
