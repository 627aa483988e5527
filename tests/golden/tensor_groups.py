"""Ranks of a tensor group as threads of one process, over one cache, for the golden tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tiny_decoders import BLOCK_SIZE, TINY_LATENT, VOCAB, hf_model, prompt, row, small_layout

from kept_folders import kept_folder
from relevo.core.events import ExpertLoads
from relevo.core.kv import KVLayout
from relevo.core.model import ExpertRanks
from relevo.core.plan import ScheduledRow
from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import spec_of
from relevo.engine.models.slices import Share, share_of
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.protocol import Ops
from relevo.engine.ops.ranks import RankSums
from relevo.engine.ops.torch.ops import TorchOps

NUM_BLOCKS = 16
LONGEST_WAIT_S = 120
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}  # fewer KV heads than slices
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 64}
LATENT = {
    **TINY_LATENT,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 16,
    "moe_intermediate_size": 48,
}
Step = Sequence[ScheduledRow]


def saved_files(family: str, changes: dict[str, Any]) -> ModelFiles:
    """Of a tiny random model, in a folder that is kept until the tests end."""
    folder = kept_folder("groups")
    hf_model(family, **changes).save_pretrained(folder)
    return load_model_files(str(folder))


class ThreadSums:
    """Implements RankSums: every rank sees all parts, and adds neighbours first."""

    def __init__(
        self, rank: int, parts: list[np.ndarray], rows: list[list[np.ndarray]], barrier: threading.Barrier
    ) -> None:
        self.rank, self.size = rank, len(parts)
        self._parts, self._rows, self._barrier = parts, rows, barrier

    @classmethod
    def of(cls, size: int) -> list[ThreadSums]:
        barrier, parts = threading.Barrier(size, timeout=LONGEST_WAIT_S), [np.zeros(0)] * size
        rows: list[list[np.ndarray]] = [[]] * size
        return [cls(rank, parts, rows, barrier) for rank in range(size)]

    def all_reduce(self, array: np.ndarray) -> None:
        self._parts[self.rank] = array.copy()
        self._barrier.wait()
        sums = list(self._parts)
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        self._barrier.wait()
        array[...] = sums[0]

    def exchange_rows(self, outgoing: Sequence[np.ndarray], incoming: Sequence[np.ndarray], most_rows: int) -> None:
        self._rows[self.rank] = list(outgoing)
        assert all(len(rows) <= most_rows for rank, rows in enumerate(outgoing) if rank != self.rank)
        self._barrier.wait()
        for rank, rows in enumerate(incoming):
            if rank != self.rank:
                rows[...] = self._rows[rank][self.rank]
        self._barrier.wait()

    def leave(self) -> None:
        """The others' calls raise."""
        self._barrier.abort()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of some steps: the logits of each on every rank, and what the cache holds at the end."""

    logits: list[list[np.ndarray]]  # by rank, by step
    cache: bytes
    loads: list[ExpertLoads]  # by rank

    def equals(self, other: Outcome) -> bool:
        """To the bit, on every rank of both."""
        expected = [step.tobytes() for step in self.logits[0]]
        ranks = [*self.logits, *other.logits]
        return self.cache == other.cache and all([step.tobytes() for step in rank] == expected for rank in ranks)


def make_rank(backend: str, ranks: RankSums | None) -> Ops:
    if backend == "torch":
        return TorchOps(ranks=ranks)
    return NativeOps("float32", cores=(0, 1), ranks=ranks)


def mixed_steps() -> list[Step]:
    """A prompt in chunks, another one beside it, single tokens of both, and a row that ends inside a block."""
    one, two = prompt(40, seed=1), prompt(40, seed=2)
    blocks_of_one, blocks_of_two = [3, 1, 7, 5, 9, 11], [2, 8, 4, 6, 10]
    assert max(one + two) < VOCAB
    return [
        [row(one[:9], 0, blocks_of_one)],
        [row(one[9:14], 9, blocks_of_one), row(two[:7], 0, blocks_of_two)],
        [row(one[14:15], 14, blocks_of_one), row(two[7:8], 7, blocks_of_two)],
        [row(two[8:15], 8, blocks_of_two), row(one[15:16], 15, blocks_of_one)],
        [row(one[16:17], 16, blocks_of_one)],
        [row(one[17:18], 17, blocks_of_one), row(two[15:16], 15, blocks_of_two)],
    ]


def computed(
    files: ModelFiles,
    backend: str,
    size: int | None,
    *,
    whole_experts: bool = False,
    expert_ranks: ExpertRanks = (),
    shares: Callable[[Share], Share] = lambda share: share,
    steps: Sequence[Step] = (),
    layout: KVLayout | None = None,
    num_blocks: int = NUM_BLOCKS,
    sums: type[ThreadSums] = ThreadSums,
) -> Outcome:
    """`size`: None: one rank without slices. `shares`: what a rank is made to compute in place of its own share.
    `layout`: None: one group of all layers. `sums`: of ranks, if there are several."""
    config, num_ranks = files.config, size or 1
    steps = steps or mixed_steps()
    layout = layout or small_layout(config)
    memory = bytearray(num_blocks * layout.bytes_per_block)
    np.frombuffer(memory, dtype=np.float32)[:] = np.nan
    groups: list[RankSums | None] = [None] if size is None or size == 1 else list(sums.of(size))
    models = []
    for rank, each in enumerate(groups):
        share = None
        if size is not None:
            whole = whole_experts or bool(expert_ranks)
            share = shares(share_of(config, rank, size, whole_experts=whole, expert_ranks=expert_ranks))
        ops = make_rank(backend, each)
        models.append(spec_of(config).load(config, files.tensors(), ops, config.max_position, share))
    logits: list[list[np.ndarray]] = [[] for _ in range(num_ranks)]
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            kv = models[rank].ops.kv_cache(layout, num_blocks, memoryview(memory))
            for step in steps:
                inputs = pack_rows(step, BLOCK_SIZE)
                asked = [last - 1 for last in inputs.row_first_token[1:].tolist()]
                logits[rank].append(models[rank].forward(inputs, kv, asked).values.copy())
        except BaseException as failure:  # of a thread: raised by who waits for it
            failures.append(failure)
            if isinstance(groups[rank], ThreadSums):
                groups[rank].leave()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(1, num_ranks)]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return Outcome(logits, bytes(memory), [model.expert_counts.loads() for model in models])
