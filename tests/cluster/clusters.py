"""Clusters as most tests of this folder want them: a head without workers and a node per role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from boxes import Box, Boxes, Clients
from machines import Network

SLOW = {"RELEVO_FAKE_BASE_S": "0.03"}  # so that answers take seconds
SPLIT = {  # by role: so that the router has prompts computed on the boxes for that
    "1p": {**SLOW, "RELEVO_FAKE_PER_TOKEN_S": "0.00001"},
    "1d": {**SLOW, "RELEVO_FAKE_PER_TOKEN_S": "0.001"},
}


def cluster(
    net: Network,
    boxes: Boxes,
    *roles: str,
    env: dict[str, str] | None = None,
    envs: Mapping[str, dict[str, str]] | None = None,
    flags: Sequence[str] = (),
) -> tuple[Box, list[Box]]:
    """Returns when every worker gets requests. `env`: of all nodes; `envs`: by role."""
    head = boxes.serve(net.machines[0], "--topology", "none")
    nodes = [
        boxes.join(machine, [net.machines[0]], role, *flags, env={**(env or {}), **(envs or {}).get(role, {})})
        for machine, role in zip(net.machines[1:], roles, strict=True)
    ]
    num_workers = sum(2 if role == "1p1d" else 1 for role in roles)
    boxes.until(lambda: len(head.ready_workers()) == num_workers, what=f"{num_workers} workers that are ready")
    return head, nodes


def answers(head: Box, texts: Sequence[str], max_tokens: int, model: str = "fake") -> list[str]:
    """To all at once."""
    with Clients(head, model).open() as clients:
        for text in texts:
            clients.ask(text, max_tokens)
        return clients.all_answered(300)


def handoffs(head: Box) -> float:
    return head.metric("relevo:handoffs_total", outcome="completed")


def blocks_are_back(boxes: Boxes, head: Box) -> None:
    boxes.until(
        lambda: head.blocks_in_use() == 0 and head.metric("relevo:requests_in_flight") == 0, 30, "blocks are back"
    )
