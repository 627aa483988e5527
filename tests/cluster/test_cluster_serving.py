"""Prompts computed on one box and decoded on another, as if it were one box.

The engine is the fake one, whose tokens are a function of the KV content that it reads: a wrong, missing or foreign
block changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from boxes import Box, Boxes, Clients, prompts
from machines import Network

MakeNetwork = Callable[..., Network]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    with Boxes(tmp_path) as made:
        yield made


def answers(head: Box, texts: list[str], max_tokens: int) -> list[str]:
    with Clients(head).open() as clients:
        for text in texts:
            clients.ask(text, max_tokens)
        return clients.all_answered()


@pytest.mark.parametrize("role", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_prompts_split_between_boxes_end_as_on_one_box(make_network: MakeNetwork, boxes: Boxes, role: str) -> None:
    """300 prompts."""
    net = make_network(3)
    alone = boxes.alone(net.machines[2])
    head = boxes.serve(net.machines[0], "--topology", f"{role}d", "--share-cores")
    boxes.join(net.machines[1], [net.machines[0]], f"{role}p")
    boxes.until(lambda: len(head.ready_workers()) == 2 * int(role), what="workers of both boxes")
    texts = prompts(300)
    boxes.until(lambda: len(alone.ready_workers()) == 1, what="the box that is alone")
    assert answers(head, texts, 8) == answers(alone, texts, 8)
    assert head.metric("relevo:handoffs_total", outcome="completed") > 0, "prompts did not go from box to box"
    boxes.until(lambda: head.blocks_in_use() == 0, 20, "blocks are back")
