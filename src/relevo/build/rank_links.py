"""The ways between the ranks of a worker, by what was asked for: shared memory, or a process group of torch's."""

from __future__ import annotations

import os

from relevo.build.configs import WorkerConfig
from relevo.core.errors import StartError
from relevo.engine.ranks import shared_memory
from relevo.engine.ranks.pairwise import PairwiseCollectives
from relevo.engine.ranks.shared_memory import RankEnds


def open_ends(config: WorkerConfig) -> list[RankEnds]:
    """Of all ranks. Raises OSError, StartError."""
    if config.collectives == "shm":
        return shared_memory.open_ends(config.num_ranks)
    if not hasattr(os, "memfd_create"):
        raise StartError(f"--collectives {config.collectives} needs Linux; leave it out")
    store_fd = os.memfd_create("relevo-ranks", os.MFD_CLOEXEC)  # in which ranks find each other
    return [RankEnds(store_fd, {})] * config.num_ranks


def join_ranks(config: WorkerConfig, rank: int, ends: RankEnds) -> PairwiseCollectives:
    """The sockets are its own from now on; the memory's descriptor may be closed."""
    if config.collectives == "shm":
        return shared_memory.join_ranks(rank, ends)
    from relevo.engine.ops.torch import process_group  # who does not ask for it does not load torch

    return process_group.join_ranks(config.collectives, rank, config.num_ranks, ends.memory_fd)
