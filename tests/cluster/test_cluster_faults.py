"""What else happens to boxes than partitions: killed, frozen. Answers are those of a quiet cluster.

Red when an answer is lost or wrong, when the rest does not serve within 6 s of a cut, when a node is not back within
10 s of its healing, or when a block stays behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from boxes import Boxes, Clients, prompts
from clusters import SLOW, answers, blocks_are_back, cluster
from machines import Network

MakeNetwork = Callable[..., Network]

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_node_that_is_gone_costs_no_answer_and_comes_back(
    make_network: MakeNetwork, boxes: Boxes, fault: str
) -> None:
    """32 streams over two boxes, one of which is killed or frozen while they run."""
    net = make_network(3, names=("gate", "one", "two"))
    head, (one, _) = cluster(net, boxes, "1p1d", "unified", env=SLOW)
    texts = prompts(32)
    before, pids = head.ready_workers(), one.workers_pids()
    want = answers(head, texts, 60)
    with Clients(head).open() as clients:
        for text in texts:
            clients.ask(text, 60)
        boxes.until(lambda: head.metric("relevo:requests_in_flight") == 32, 20, "streams that run")
        {"kill": one.machine.kill, "freeze": one.machine.freeze}[fault]()
        at_s = time.monotonic()
        boxes.until(lambda: all("one/" not in worker for worker in head.ready_workers()), 6, "out of rotation")
        extra = clients.ask("what comes after the fault", 1)
        boxes.until(lambda: extra in clients.answers, 6, "traffic that the rest serves")
        assert clients.all_answered(60) == [*want, clients.answers[extra][1]["choices"][0]["text"]]
        boxes.until(lambda: head.nodes()["one"]["state"] == "gone", 8, "the node counts as gone")
        time.sleep(max(0.0, 8.0 - (time.monotonic() - at_s)))
    if fault == "kill":
        boxes.join(one.machine, [net.machines[0]], "1p1d", name="one", env=SLOW)
    else:
        one.machine.thaw()
    limit_s = 60 if fault == "kill" else 10  # processes have to start
    boxes.until(lambda: len(head.ready_workers()) == 3, limit_s, "the node is back in use")
    after = head.ready_workers()
    assert all(after[worker] > before[worker] for worker in after if "one/" in worker), "under a later epoch"
    if fault != "kill":
        assert one.workers_pids() == pids, "processes and weights stay"
    assert answers(head, texts, 60) == want
    blocks_are_back(boxes, head)
