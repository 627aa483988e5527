"""Boxes that start engines of others for a cluster: `relevo serve --engine vllm --cluster` and `relevo join`.

The engine is the server of `component/fake_engines` under the name of vLLM's command; everything else is the real
thing. Red when a box's engine is not reached, when one that was killed costs an answer, or when a box that fits no
cluster of this engine is taken in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from boxes import KEY, Box, Boxes, Clients, prompts
from machines import Network

sys.path += [str(Path(__file__).parents[1] / "e2e"), str(Path(__file__).parents[1] / "component")]
from fake_engines_at_work import BLOCK_SIZE, command, model_folder


def test_boxes_lend_their_engines(make_network: Callable[..., Network], tmp_path: Path) -> None:
    net = make_network(3)
    head_at, b, c = net.machines
    model = str(model_folder(tmp_path / "tiny"))
    with Boxes(tmp_path) as boxes:
        boxes.environment = {"PATH": f"{command(tmp_path)}:{os.environ['PATH']}"}
        flags = ("--engine", "vllm", "--topology", "none", "--block-size", str(BLOCK_SIZE))
        head = boxes.serve(head_at, *flags, model=model)
        node = boxes.join(b, [head_at], "unified")
        boxes.join(c, [head_at], "unified")
        boxes.until(lambda: set(head.ready_workers()) == {"m1/unified-0", "m2/unified-0"}, what="both engines")
        assert {name: len(told["workers"]) for name, told in head.nodes().items()} == {"m0": 0, "m1": 1, "m2": 1}

        first = complete(head)
        b.kill()
        boxes.until(lambda: "m1/unified-0" not in head.ready_workers(), what="the end of m1")
        assert complete(head) == first

        node = boxes.join(b, [head_at], "unified")
        boxes.until(lambda: "m1/unified-0" in head.ready_workers(), what="m1 again")
        assert complete(head) == first
        head.machine.run(sys.executable, "-m", "relevo", "drain", "m1", "--leave", "--api-key", KEY)
        boxes.until(lambda: node.process.poll() is not None, what="the end of the drained box")
        assert complete(head) == first
        assert "m1/unified-0" not in head.ready_workers()

        (tmp_path / "packages" / "sglang").mkdir(parents=True)  # installed, as far as can be seen
        boxes.environment |= {"RELEVO_NUM_KV_BLOCKS": "64", "PYTHONPATH": str(tmp_path / "packages")}
        other = boxes.join(b, [head_at], "unified", "--set", "engine=sglang", name="other")
        boxes.until(lambda: other.process.poll() == 2, what="the refusal")
        boxes.until(lambda: "this cluster computes with vllm, and this box was asked for sglang" in other.log)


def complete(head: Box) -> list[str]:
    """Answers to as many prompts that each engine has some."""
    with Clients(head, model="tiny").open() as clients:
        for prompt in prompts(8, 5):
            clients.ask(prompt)
        return clients.all_answered()
