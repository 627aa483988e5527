"""Two and three boxes with what happens to boxes: killed, frozen, cut off, late. Answers are those of one box alone.

Red when an answer is lost or wrong, when the rest does not serve within 6 s of a cut, when a node is not back within
10 s of its healing, or when a block stays behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from boxes import Box, Boxes, Clients, prompts
from machines import Network

MakeNetwork = Callable[..., Network]
SLOW = ("--set", "fake_base_s=0.03")  # so that answers take seconds

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    with Boxes(tmp_path) as made:
        yield made


def cluster(net: Network, boxes: Boxes, *roles: str, flags: tuple[str, ...] = ()) -> tuple[Box, list[Box]]:
    """A head without workers and a node per role; returns when every worker gets requests."""
    head = boxes.serve(net.machines[0], "--topology", "none")
    nodes = [
        boxes.join(machine, [net.machines[0]], role, *flags)
        for machine, role in zip(net.machines[1:], roles, strict=True)
    ]
    num_workers = sum(2 if role == "1p1d" else 1 for role in roles)
    boxes.until(lambda: len(head.ready_workers()) == num_workers, what=f"{num_workers} workers that are ready")
    return head, nodes


def answers(head: Box, texts: list[str], max_tokens: int) -> list[str]:
    """Where nothing happens."""
    with Clients(head).open() as clients:
        for text in texts:
            clients.ask(text, max_tokens)
        return clients.all_answered()


def blocks_are_back(boxes: Boxes, head: Box) -> None:
    boxes.until(
        lambda: head.blocks_in_use() == 0 and head.metric("relevo:requests_in_flight") == 0, 20, "blocks are back"
    )


@pytest.mark.parametrize(
    "fault", ["cut", pytest.param("kill", marks=pytest.mark.slow), pytest.param("freeze", marks=pytest.mark.slow)]
)
def test_a_node_that_is_gone_costs_no_answer_and_comes_back(
    make_network: MakeNetwork, boxes: Boxes, fault: str
) -> None:
    """32 streams over two boxes, one of which is killed, frozen or cut off while they run."""
    net = make_network(3, names=("gate", "one", "two"))
    head, (one, _) = cluster(net, boxes, "1p1d", "unified", flags=SLOW)
    texts = prompts(32)
    before, pids = head.ready_workers(), one.workers_pids()
    want = answers(head, texts, 60)
    with Clients(head).open() as clients:
        for text in texts:
            clients.ask(text, 60)
        boxes.until(lambda: head.metric("relevo:requests_in_flight") == 32, 20, "streams that run")
        {"kill": one.machine.kill, "freeze": one.machine.freeze, "cut": lambda: net.cut(one.machine)}[fault]()
        at_s = time.monotonic()
        boxes.until(lambda: all("one/" not in worker for worker in head.ready_workers()), 6, "out of rotation")
        extra = clients.ask("what comes after the fault", 1)
        boxes.until(lambda: extra in clients.answers, 6, "traffic that the rest serves")
        assert clients.all_answered(60) == [*want, clients.answers[extra][1]["choices"][0]["text"]]
        boxes.until(lambda: head.nodes()["one"]["state"] == "gone", 8, "the node counts as gone")
        time.sleep(max(0.0, 8.0 - (time.monotonic() - at_s)))
    if fault == "kill":
        boxes.join(one.machine, [net.machines[0]], "1p1d", *SLOW, name="one")
    elif fault == "freeze":
        one.machine.thaw()
    else:
        net.heal()
    limit_s = 60 if fault == "kill" else 10  # processes have to start
    boxes.until(lambda: len(head.ready_workers()) == 3, limit_s, "the node is back in use")
    after = head.ready_workers()
    assert all(after[worker] > before[worker] for worker in after if "one/" in worker), "under a later epoch"
    if fault != "kill":
        assert one.workers_pids() == pids, "processes and weights stay"
    assert answers(head, texts, 60) == want
    blocks_are_back(boxes, head)
