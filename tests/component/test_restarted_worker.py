"""What a restarted worker does to the shared arena before it serves anybody."""

from __future__ import annotations

from contextlib import closing

import msgspec

from relevo.build.serve import plan_serving
from relevo.build.worker import build_fake
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import Reservation
from relevo.engine.fake_runner import fake_layout
from relevo.kv.arena import Arena
from relevo.kv.transports.shm import ShmTransport
from relevo.settings import Settings


def test_rights_of_an_earlier_incarnation_end_before_the_warm_up() -> None:
    """Red if a writer that still computes in its blocks may tell what it read there after the warm-up wrote into them.
    The other worker's blocks stay as they are."""
    plan = plan_serving(Settings(model="fake", topology="1p1d", num_kv_blocks=4))
    config = plan.workers[1]
    with closing(Arena.create(fake_layout(config.block_size), config.num_arena_blocks, shared=True)) as arena:
        transport = ShmTransport(arena)
        rights = [reservation(block_id) for block_id in (0, config.first_block_id)]
        for right in rights:
            transport.reserve(right)
        restarted = build_fake(msgspec.structs.replace(config, arena_fd=arena.fd, epoch=2)).arena
        restarted.close()
        assert [transport.may_write(right) for right in rights] == [True, False]


def reservation(block_id: int) -> Reservation:
    return Reservation(
        request_id=RequestId("r"),
        worker_id=WorkerId("w"),
        epoch=1,
        block_size=16,
        block_ids=(block_id,),
        generations=(0,),
        num_hit_tokens=0,
    )
