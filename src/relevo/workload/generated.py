"""Made-up requests of given statistics, sessions of several turns included, as lengths and hash ids.

A turn's answer is part of the next prompt, and sessions of one group share their system prompt. The same generator
state gives the same requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

from relevo.workload.history import History
from relevo.workload.requests import WorkloadRequest
from relevo.workload.sessions import SessionShape


def generate(shape: SessionShape, rng: random.Random, block_size: int) -> Iterator[WorkloadRequest]:
    """Endless. A session's turns follow each other; each waits for the answer before it and for a pause."""
    rows, fresh_ids = count(), count()
    systems = []
    for _ in range(shape.num_groups):
        system = History(block_size, fresh_ids)
        system.add(shape.system_tokens.draw(rng))
        systems.append(system)
    for session in count():
        history = systems[session % len(systems)].fork()
        parent: int | None = None
        for turn in range(shape.num_turns.draw(rng)):
            history.add(shape.turn_tokens.draw(rng))
            num_output_tokens = shape.output_tokens.draw(rng)
            gap_s = rng.expovariate(1 / shape.mean_gap_s) if shape.mean_gap_s else 0.0
            request = WorkloadRequest(
                row=next(rows),
                num_prompt_tokens=history.num_tokens,
                num_output_tokens=num_output_tokens,
                gap_s=gap_s if turn else None,
                parent=parent,
                hash_ids=history.hash_ids,
                hash_block_size=block_size,
                session_id=f"session-{session}",
                turn=turn,
            )
            yield request
            parent = request.row
            history.add(num_output_tokens)
