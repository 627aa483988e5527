"""A thousand clients leave at random moments: nothing stays behind, and those that stay get their answers.

Red when an abort in any phase forgets a block, a reservation, a charge or a flight, over either transport.
"""

from __future__ import annotations

from random import Random

import pytest
from abort_rounds import abort_in_rounds, make_leavers
from stack import stack

NUM_BLOCKS = 256  # a dozen prompts: most of a round waits for room
FLAGS = (
    *("fake", "--topology", "1p1d", "--num-kv-blocks", str(NUM_BLOCKS), "--max-model-len", "2048"),
    *("--fake-base-s", "0.002", "--fake-per-token-s", "0.0001", "--log-level", "warning"),
)


@pytest.mark.parametrize(("transport", "seed"), [("shm", 1), ("tcp", 2)])
def test_aborts_leave_nothing_behind(transport: str, seed: int) -> None:
    rng = Random(seed)
    rounds = [make_leavers(rng, 50, max_delay_s=0.5, max_events=8, vocab=256) for _ in range(10)]
    with stack(*FLAGS, "--kv-transport", transport) as running:
        tally = abort_in_rounds(running, rounds, max_tokens=1200, num_blocks=NUM_BLOCKS)
        num_cut = running.metric("relevo:handoffs_total", outcome="aborted")
        assert running.metric("relevo:worker_restarts_total") == 0
    assert (tally.num_ended, tally.refusals) == (0, [])
    assert tally.num_silent > 50 and tally.num_decoding > 50, str(tally)
    assert num_cut > 20, f"{num_cut} handoffs were under way when their client left"
