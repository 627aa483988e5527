"""A machine that is cut off from all others while 32 streams run, and comes back.

Red when an answer is lost or differs from that of a quiet cluster, when the rest does not serve within 6 s of the cut,
when the node is not in use within 10 s of the healing, when it comes back under the epoch that was given up, when its
processes were started anew, or when a block stays behind.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from boxes import Box, Boxes, Clients, prompts
from clusters import SLOW, SPLIT, answers, blocks_are_back, cluster, handoffs
from machines import Network
from rotation import Rotation

MakeNetwork = Callable[..., Network]
NUM_STREAMS, NUM_TOKENS = 32, 60
OUT_S, BACK_S = 6.0, 10.0  # on a machine that is idle otherwise
PATIENCE_S = 40.0  # on one that is not


@dataclass(frozen=True)
class Figures:
    node: str
    out_s: float  # from the cut until no request is sent there
    served_s: float  # the longest that a request of the moment of the cut took
    streams_s: float  # from the cut until all streams had ended
    back_s: float  # from the healing until it gets requests

    def __str__(self) -> str:
        return (
            f"{self.node}: out {self.out_s:.2f} s, requests of then {self.served_s:.2f} s, streams "
            f"{self.streams_s:.2f} s, back {self.back_s:.2f} s"
        )


class Trial:
    def __init__(self, net: Network, boxes: Boxes, head: Box, rotation: Rotation) -> None:
        self.net, self.boxes, self.head, self.rotation = net, boxes, head, rotation
        self.texts, self.late_texts = prompts(NUM_STREAMS), prompts(8, num_words=11)
        self.want = answers(head, self.texts, NUM_TOKENS)
        self.late_want = answers(head, self.late_texts, 1)

    def cut(self, node: Box, seconds: float) -> Figures:
        before = {worker: epoch for worker, epoch in self.head.ready_workers().items() if _is_of(node, worker)}
        pids = node.workers_pids()
        with Clients(self.head).open() as clients:
            self._streams(clients)
            self.net.cut(node.machine)
            cut_s = time.monotonic()
            late = [clients.ask(text, 1) for text in self.late_texts]
            out_s = self.rotation.seconds_until(
                lambda ready: not any(_is_of(node, worker) for worker in ready), cut_s, PATIENCE_S, "out of rotation"
            )
            assert clients.all_answered(60) == self.want + self.late_want
            streams_s = time.monotonic() - cut_s
            served_s = max(clients.answers[number][0] for number in late)
            self.boxes.until(
                lambda: self.head.nodes()[node.name]["state"] == "gone", PATIENCE_S, "the node counts as gone"
            )
        time.sleep(max(0.0, cut_s + seconds - time.monotonic()))
        with Clients(self.head).open() as clients:
            self._streams(clients)
            self.net.heal()
            healed_s = time.monotonic()
            back_s = self.rotation.seconds_until(
                lambda ready: all(ready.get(worker, 0) > epoch for worker, epoch in before.items()),
                healed_s,
                PATIENCE_S,
                "the node is back in use, under a later epoch",
            )
            assert clients.all_answered(60) == self.want
        assert node.workers_pids() == pids, "processes and weights stay"
        assert answers(self.head, self.texts, NUM_TOKENS) == self.want
        blocks_are_back(self.boxes, self.head)
        return Figures(node.name, out_s, served_s, streams_s, back_s)

    def _streams(self, clients: Clients) -> None:
        for text in self.texts:
            clients.ask(text, NUM_TOKENS)
        self.boxes.until(
            lambda: self.head.metric("relevo:requests_in_flight") >= NUM_STREAMS, 20, "streams that all run at once"
        )


def _is_of(node: Box, worker: str) -> bool:
    return worker.startswith(f"{node.name}/")


@pytest.mark.timeout(400)
def test_a_partition_costs_no_answer_and_the_node_comes_back(make_network: MakeNetwork, boxes: Boxes) -> None:
    """Twice, for 8 s: longer than it takes to be gone."""
    net = make_network(3, names=("gate", "one", "two"))
    head, (one, _) = cluster(net, boxes, "1p1d", "unified", env=SLOW)
    with Rotation(head) as rotation:
        trial = Trial(net, boxes, head, rotation)
        for _ in range(2):
            trial.cut(one, 8.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(4))
def test_twenty_partitions_of_thirty_seconds(
    make_network: MakeNetwork, boxes: Boxes, part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five on each of four clusters: of a box that computes prompts for another one, and of the one that decodes them,
    in turn."""
    net = make_network(4, names=("gate", "one", "two", "three"))
    head, (one, two, _) = cluster(net, boxes, "1p", "1d", "1p1d", env=SLOW, envs=SPLIT)
    found = []
    with Rotation(head) as rotation:
        trial = Trial(net, boxes, head, rotation)
        for number in range(5 * part, 5 * part + 5):
            found.append(trial.cut(one if number % 2 == 0 else two, 30.0))
            with capsys.disabled():
                print(f"\ncut {number + 1}: {found[-1]}", end="", flush=True)  # noqa: T201
    with capsys.disabled():
        for name in ("out_s", "served_s", "streams_s", "back_s"):
            values = sorted(getattr(each, name) for each in found)
            print(f"\n{name}: median {statistics.median(values):.2f}, most {values[-1]:.2f}", end="")  # noqa: T201
        print(f"\n{handoffs(head):.0f} handoffs")  # noqa: T201
    assert all(each.out_s < OUT_S and each.served_s < OUT_S for each in found), "the rest does not serve in time"
    assert all(each.back_s < BACK_S for each in found), "the node is not back in time"
    assert handoffs(head) > 20, "prompts did not go from box to box"
