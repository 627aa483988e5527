"""Makes a split server hand prompts over, however cheap its machine says that computing them in place is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stack import Stack

NUM_CLIENTS = (4, 8, 16, 32, 64)  # the more streams run on a decode worker, the more wait for a prompt that it keeps


def answers_until_handed_over(server: Stack, answer: Callable[[Stack, int], Any], expected: Sequence[Any]) -> float:
    """Every answer is the expected one of its seed. Returns the completed handoffs, at least one."""
    for num_clients in NUM_CLIENTS:
        seeds = [number % len(expected) for number in range(2 * num_clients)]
        with ThreadPoolExecutor(num_clients) as pool:
            answers = list(pool.map(lambda seed: answer(server, seed), seeds))
        assert answers == [expected[seed] for seed in seeds]
        server.wait_idle()
        if handed := server.metric("relevo:handoffs_total", outcome="completed"):
            return handed
    raise AssertionError(f"{NUM_CLIENTS[-1]} clients at once, and no prompt was handed over")
