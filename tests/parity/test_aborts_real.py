"""Clients of the real model leave at random moments; nothing stays behind, and the model answers as before.

The steps are long here, so that a client often leaves in the middle of one: what that step still writes must not reach
the next owner of its blocks. `tests/e2e/test_aborts_fake.py` runs more requests through shorter steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest
from abort_rounds import abort_in_rounds, growth_bytes, make_leavers
from stack import stack

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(4 * 3600)]

NUM_ROUNDS = int(os.environ.get("RELEVO_ABORT_ROUNDS", "10"))  # of ten clients each, per transport; 250: 5,000 in all
NUM_BLOCKS = 96  # four prompts of middle length: others wait for room
FLAGS = ("smollm2", "--topology", "1p1d", "--dtype", "float32", "--num-kv-blocks", str(NUM_BLOCKS))


@pytest.mark.parametrize(("transport", "seed"), [("shm", 3), ("tcp", 4)])
def test_aborts_leave_nothing_behind(transport: str, seed: int, say: Callable[[str], None]) -> None:
    rng = Random(seed)
    rounds = [make_leavers(rng, 10, max_delay_s=4.0, max_events=12, vocab=49152) for _ in range(NUM_ROUNDS)]
    with stack(*FLAGS, "--max-model-len", "1536", "--kv-transport", transport) as running:
        tally = abort_in_rounds(running, rounds, max_tokens=900, num_blocks=NUM_BLOCKS, say=say)
        num_cut = running.metric("relevo:handoffs_total", outcome="aborted")
        assert running.metric("relevo:worker_restarts_total") == 0
    largest = max(growth_bytes(tally.memory_bytes).values())
    say(
        f"aborts over {transport}: {tally}, {num_cut:.0f} in a handoff; after each of {len(rounds)} rounds no block in "
        f"use, nothing in flight, the same answer; memory grew by {largest / 2**20:.1f} MiB at most"
    )
    assert (tally.num_ended, tally.refusals) == (0, [])
    assert tally.num_silent > 10 and tally.num_decoding > 10, str(tally)
    assert num_cut > 5, f"{num_cut} handoffs were under way when their client left"
