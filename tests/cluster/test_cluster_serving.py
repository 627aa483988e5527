"""Prompts computed on one box and decoded on another, as if it were one box.

The fake engine's tokens are a function of the KV content that it reads: a wrong, missing or foreign block changes the
answer. Boxes that decode are told to compute slowly, so that the router has every prompt computed on the other box.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from boxes import Boxes, prompts
from clusters import answers, blocks_are_back, handoffs
from machines import Network

MakeNetwork = Callable[..., Network]
SLOW_PROMPTS = {"RELEVO_FAKE_PER_TOKEN_S": "0.001"}  # 0.2 s for one of 220 tokens
FAST_PROMPTS = {"RELEVO_FAKE_PER_TOKEN_S": "0.00001"}

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_prompts_split_between_boxes_end_as_on_one_box(make_network: MakeNetwork, boxes: Boxes, number: int) -> None:
    """300 prompts over 1p1d and 2p2d, most of which travel. Red when a prompt of those ends otherwise than alone, when
    the router keeps them on the box that decodes, or when a block stays behind."""
    net = make_network(3)
    alone = boxes.alone(net.machines[2])
    head = boxes.serve(net.machines[0], "--topology", f"{number}d", "--share-cores", env=SLOW_PROMPTS)
    boxes.join(net.machines[1], [net.machines[0]], f"{number}p", env=FAST_PROMPTS)
    boxes.until(lambda: len(head.ready_workers()) == 2 * number, what="workers of both boxes")
    boxes.until(lambda: len(alone.ready_workers()) == 1, what="the box that is alone")
    texts = prompts(300)
    waves = [texts[at : at + 100] for at in range(0, len(texts), 100)]  # a box takes 256 in line
    for wave in waves:
        assert answers(head, wave, 8) == answers(alone, wave, 8)
    assert handoffs(head) > 200, "prompts did not go from box to box"
    blocks_are_back(boxes, head)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1200)
def test_a_real_model_split_between_boxes_ends_as_on_one_box(make_network: MakeNetwork, boxes: Boxes) -> None:
    """Bits of the native backend do not depend on who computed them, so texts are equal."""
    flags = ("--dtype", "float32", "--no-enable-prefix-caching")
    net = make_network(3)
    alone = boxes.alone(net.machines[2], *flags, model="smollm2")
    head = boxes.serve(net.machines[0], "--topology", "1d", *flags, model="smollm2")
    boxes.join(net.machines[1], [net.machines[0]], "1p", "--set", "enable_prefix_caching=false")
    boxes.until(lambda: len(head.ready_workers()) == 2, 300, what="workers of both boxes")
    boxes.until(lambda: len(alone.ready_workers()) == 1, 300, what="the box that is alone")
    texts = prompts(36, num_words=12)
    waves = [texts[at : at + 12] for at in range(0, len(texts), 12)]
    want = [text for wave in waves for text in answers(alone, wave, 12, "smollm2")]
    alone.process.terminate()
    assert [text for wave in waves for text in answers(head, wave, 12, "smollm2")] == want
    assert handoffs(head) > 10, "prompts did not go from box to box"
    blocks_are_back(boxes, head)
