"""One number, however it was computed: chunked = whole, batched = alone, prefix hit = miss, split = together.

The cache starts full of NaN, so a read of a slot that the row does not own shows. Red if block tables, slots, masks,
windows or the grouping of rows mix anything up. The native backend owes more than closeness: the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_decoders import BACKENDS, BLOCK_SIZE, LOCAL, TINY_LATENT, PagedDecoder, hf_logits, hf_model, prompt, row

from relevo.core.plan import ScheduledRow
from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files

NUM_BLOCKS = 40
TOLERANCE = {"torch": {"atol": 2e-5, "rtol": 2e-5}, "native": {"atol": 0.0, "rtol": 0.0}}


def equal(backend: str, actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, **TOLERANCE[backend])


@dataclass
class Sequence:
    tokens: list[int]
    blocks: list[int]
    whole: np.ndarray  # logits [T, V] of the whole sequence in one go
    done: int = 0
    logits: list[np.ndarray] = field(default_factory=list)

    def next_row(self, count: int) -> ScheduledRow:
        chunk = self.tokens[self.done : self.done + count]
        return row(chunk, self.done, self.blocks)

    def took(self, logits: np.ndarray) -> None:
        self.logits.append(logits)
        self.done += len(logits)


CHANGES = {"llama": {}, "mistral": {"sliding_window": 6}, "deepseek_v3": TINY_LATENT, **LOCAL}


@pytest.fixture(scope="module", params=CHANGES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    changes: dict[str, Any] = CHANGES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    hf_model(request.param, **changes).save_pretrained(folder)
    return load_model_files(str(folder))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def wholes(files: ModelFiles, backend: str) -> list[tuple[list[int], np.ndarray]]:
    """Prompts of different lengths, each with the logits of a run alone and in one piece."""
    runs = []
    for seed, length in enumerate((1, 3, 4, 9, 18, 33)):
        tokens = prompt(length, seed)
        runs.append((tokens, PagedDecoder(files, backend=backend).step(row(tokens, 0, list(range(NUM_BLOCKS))))))
    return runs


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_schedule_gives_the_logits_of_each_sequence_alone(
    files: ModelFiles, backend: str, wholes: list[tuple[list[int], np.ndarray]], data: st.DataObject
) -> None:
    """Chunks of any size, rows in any order and company, blocks anywhere in the arena."""
    pool = data.draw(st.permutations(range(NUM_BLOCKS)))
    chosen = data.draw(st.lists(st.sampled_from(wholes), min_size=1, max_size=4))
    sequences = []
    for tokens, whole in chosen:
        count = -(-len(tokens) // BLOCK_SIZE)
        sequences.append(Sequence(tokens, pool[:count], whole))
        pool = pool[count:]
    paged = PagedDecoder(files, NUM_BLOCKS, backend=backend)
    while unfinished := [sequence for sequence in sequences if sequence.done < len(sequence.tokens)]:
        company = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique_by=id))
        rows = [sequence.next_row(data.draw(st.sampled_from((1, 1, 2, 5, 16)))) for sequence in company]
        logits = paged.step(*rows)
        for sequence, part in zip(
            company, np.split(logits, np.cumsum([len(r.token_ids) for r in rows])[:-1]), strict=True
        ):
            sequence.took(part)
    for sequence in sequences:
        equal(backend, np.concatenate(sequence.logits), sequence.whole)


def test_many_decodes_of_different_lengths_in_one_step(files: ModelFiles, backend: str) -> None:
    """Nine rows over several powers of two of blocks, and a chunk between them."""
    paged = PagedDecoder(files, 128, backend=backend)
    sequences, free = [], iter(range(1, 128))
    for seed in range(9):
        tokens = prompt(2 + 5 * seed, 100 + seed)
        sequences.append(Sequence(tokens, [next(free) for _ in range(-(-len(tokens) // BLOCK_SIZE))], np.empty(0)))
    for sequence in sequences:
        paged.step(row(sequence.tokens[:-1], 0, sequence.blocks))
    chunk = prompt(10, 7)
    chunk_row = row(chunk, 0, [next(free) for _ in range(3)])
    decodes = [row(sequence.tokens[-1:], len(sequence.tokens) - 1, sequence.blocks) for sequence in sequences]
    together = paged.step(*decodes[:4], chunk_row, *decodes[4:])
    last = np.concatenate((together[:4], together[14:]))
    for sequence, logits in zip(sequences, last, strict=True):
        alone = PagedDecoder(files, backend=backend).step(row(sequence.tokens, 0, list(range(20))))
        equal(backend, logits, alone[-1])
    equal(backend, together[4:14], PagedDecoder(files, backend=backend).step(row(chunk, 0, list(range(3)))))


def test_prefix_hit_equals_miss(files: ModelFiles, backend: str) -> None:
    """Two requests share the blocks of a common prefix; the second computes its own tail only."""
    prefix, first, second = prompt(3 * BLOCK_SIZE, 1), prompt(5, 2), prompt(6, 3)
    paged = PagedDecoder(files, backend=backend)
    paged.step(row(prefix + first, 0, [5, 9, 2, 7, 8]))
    hit = paged.step(row(second, len(prefix), [5, 9, 2, 11, 12]))
    miss = PagedDecoder(files, backend=backend).step(row(prefix + second, 0, [0, 1, 2, 3, 4]))
    equal(backend, hit, miss[len(prefix) :])


def test_blocks_moved_to_another_worker_continue_there(files: ModelFiles, backend: str) -> None:
    """Prefill on one worker, bytes of its blocks copied elsewhere, decode there."""
    tokens = prompt(15, 4)
    sender, receiver = PagedDecoder(files, backend=backend), PagedDecoder(files, backend=backend)
    sender.step(row(tokens[:-1], 0, [3, 4, 5, 6]))
    block_bytes = len(sender.memory) // 64
    for source, target in zip([3, 4, 5, 6], [10, 2, 30, 7], strict=True):
        receiver.memory[target * block_bytes : (target + 1) * block_bytes] = sender.memory[
            source * block_bytes : (source + 1) * block_bytes
        ]
    split = receiver.step(row(tokens[-1:], 14, [10, 2, 30, 7]))
    together = PagedDecoder(files, backend=backend).step(row(tokens, 0, [0, 1, 2, 3]))
    equal(backend, split[0], together[-1])


def test_a_former_owners_infinities_do_not_reach_the_next(files: ModelFiles, backend: str) -> None:
    """Decoding into fresh blocks one by one: unused slots of each were NaN, and count for nothing."""
    tokens = prompt(2 * BLOCK_SIZE + 1, 5)
    paged = PagedDecoder(files, backend=backend)
    logits = np.concatenate([paged.step(row([token], index, [1, 2, 3])) for index, token in enumerate(tokens)])
    assert np.isfinite(logits).all()


def test_paged_equals_naive(backend: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Token by token through scattered blocks against `transformers` without any cache."""
    folder = tmp_path_factory.mktemp("naive")
    model = hf_model("qwen3", head_dim=16)
    model.save_pretrained(folder)
    paged, tokens = PagedDecoder(load_model_files(str(folder)), backend=backend), prompt(14, 6)
    logits = np.concatenate([paged.step(row([token], at, [9, 3, 20, 1])) for at, token in enumerate(tokens)])
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_packing_places_every_token() -> None:
    inputs = pack_rows([row([7, 8, 9], 3, [5, 2]), row([4], 8, [1, 3, 6, 99])], BLOCK_SIZE)
    assert inputs.token_ids.tolist() == [7, 8, 9, 4]
    assert inputs.positions.tolist() == [3, 4, 5, 8]
    assert inputs.block_of_token.tolist() == [[5, 2, 2, 6]]
    assert inputs.offset_of_token.tolist() == [3, 0, 1, 0]
    assert inputs.row_first_token.tolist() == [0, 3, 4]
    assert inputs.context_lengths.tolist() == [6, 9]
    assert inputs.block_tables.tolist() == [[[5, 2, 0], [1, 3, 6]]]
    assert inputs.fresh_tail_blocks() == [[2, 6]]
