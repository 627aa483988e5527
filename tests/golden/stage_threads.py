"""Ranks of a pipeline as threads of one process, over one cache, for the golden tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from tiny_decoders import make_ops

from relevo.core.kv import KVLayout
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.models.families import spec_of
from relevo.engine.models.spec import Model
from relevo.engine.ops.protocol import Ops
from relevo.engine.ranks.collectives import RankLost
from relevo.engine.ranks.pairwise import PairwiseCollectives
from relevo.engine.ranks.pipeline import PipelinedModel
from relevo.engine.ranks.stage_rank import StageRank
from relevo.policy.perf.stages import even_stages


def load(files: ModelFiles, ops: Ops, stage: range | None = None) -> Model:
    spec = spec_of(files.config)
    wanted = None if stage is None else {name for group in spec.weights(files.config, stage) for name in group}
    return spec.load(files.config, files.tensors(wanted=wanted), ops, files.config.max_position, stage=stage)


def lost(error: RankLost) -> NoReturn:
    raise error


@contextmanager
def pipeline(
    files: ModelFiles, size: int, backend: str, memory: bytearray | memoryview, layout: KVLayout
) -> Iterator[PipelinedModel]:
    """Every rank but the last in a thread of its own, over one memory."""
    stages = even_stages([1.0] * files.config.num_layers, (0.0, 0.0), size)
    ranks = PairwiseCollectives.local(size)
    num_blocks, threads = len(memory) // layout.bytes_per_block, []
    for stage, own in zip(stages[:-1], ranks, strict=False):
        ops = make_ops(backend, layout.dtype)
        kv = ops.kv_cache(layout, num_blocks, memoryview(memory))
        rank = StageRank(load(files, ops, stage), kv, own, ops.use_cores)
        threads.append(threading.Thread(target=_run, args=(rank,), daemon=True))
        threads[-1].start()
    try:
        yield PipelinedModel(load(files, make_ops(backend, layout.dtype), stages[-1]), ranks[-1], lost)
    finally:
        for own in ranks:
            own.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a rank outlives its worker"


def _run(rank: StageRank) -> None:
    with pytest.raises(RankLost):
        rank.run()
