"""Paged attention against numpy in double precision, and its bits against themselves however a context is cut.

Caches are filled with not-a-number first, so that any look at a slot that nobody wrote shows. Red when: the form for
few queries and the one for many add in different orders, a hidden key or an unused slot leaks in, the merge of splits
depends on who computed them or counts a head's sink once for each, a block table is read past its row, a store writes
outside its slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

native = pytest.importorskip("relevo_native._native")

PATHS = native.available_paths()
KV_TYPES = ["f32", "f16", "bf16", "i8"]
LAYERS, LAYER = 2, 1
SPLIT = 256  # keys after which a new partial sum begins
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

each_path = pytest.mark.parametrize("path", PATHS)
each_kv_type = pytest.mark.parametrize("kv_type", KV_TYPES)


@dataclass(frozen=True)
class Shape:
    kv_type: str
    num_kv_heads: int
    heads_per_kv: int
    head_size: int
    block_size: int
    window: int = 0
    has_sinks: bool = False

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.heads_per_kv


@dataclass
class Row:
    """One sequence: its blocks, all its keys and values, and a query for every position."""

    blocks: Ints
    k: Floats  # [C, K * D]
    v: Floats
    q: Floats  # [C, H * D]


class Case:
    """Sequences in one cache whose blocks are scattered, every slot that is not theirs being no number."""

    def __init__(self, path: str, shape: Shape, contexts: list[int], seed: int) -> None:
        self.path, self.shape = path, shape
        random = np.random.default_rng(seed)
        needed = [-(-context // shape.block_size) for context in contexts]
        num_blocks = sum(needed) + 2
        arguments = (shape.num_kv_heads, shape.block_size, shape.head_size)
        block_bytes = native.kv_block_bytes(shape.kv_type, LAYERS, *arguments)
        self.memory = np.full((num_blocks, block_bytes), 0xFF, dtype=np.uint8)
        self.cache = native.PagedCache(shape.kv_type, self.memory, LAYERS, *arguments)
        blocks = np.split(random.permutation(num_blocks)[: sum(needed)].astype(np.int64), np.cumsum(needed)[:-1])
        kv_width, width = shape.num_kv_heads * shape.head_size, shape.num_heads * shape.head_size
        self.rows = [
            Row(
                own,
                random.standard_normal((context, kv_width)).astype(np.float32),
                random.standard_normal((context, kv_width)).astype(np.float32),
                2 * random.standard_normal((context, width)).astype(np.float32),
            )
            for own, context in zip(blocks, contexts, strict=True)
        ]
        sinks = (4 * random.standard_normal(shape.num_heads)).astype(np.float32)  # below and above most scores
        self.sinks = sinks if shape.has_sinks else None
        for index, context in enumerate(contexts):
            self.store(index, 0, context)

    def step(self, spans: list[tuple[int, int, int]]) -> Any:
        """`spans`: (row, first, end) positions that are queries; the row's context ends at `end`."""
        size = self.shape.block_size
        lengths = [end - first for _, first, end in spans]
        width = max(len(self.rows[row].blocks) for row, _, _ in spans)
        tables = np.full((len(spans), width), -1, dtype=np.int64)
        positions = [np.arange(first, end) for _, first, end in spans]
        for place, (row, first, end) in enumerate(spans):
            first_key = max(0, first + 1 - self.shape.window) if self.shape.window else 0
            used = slice(first_key // size, -(-end // size))  # the other entries may be anything
            tables[place, used] = self.rows[row].blocks[used]
        return native.AttentionRows(
            np.cumsum([0, *lengths]),
            np.array([end for _, _, end in spans], dtype=np.int64),
            tables,
            np.concatenate(
                [self.rows[row].blocks[at // size] for (row, _, _), at in zip(spans, positions, strict=True)]
            ),
            np.concatenate([at % size for at in positions]),
            self.shape.window,
            self.shape.num_heads,
            self.sinks,
        )

    def store(self, row: int, first: int, end: int) -> None:
        k, v = self.rows[row].k[first:end], self.rows[row].v[first:end]
        wide = [np.pad(x, ((0, 0), (0, 3))) for x in (k, v)]  # a stride wider than the heads
        native.attention_store(self.path, self.cache, self.step([(row, first, end)]), LAYER, *wide, 0, end - first)

    def attend(self, spans: list[tuple[int, int, int]], num_threads: int = 1) -> tuple[list[Floats], tuple[int, int]]:
        """Results per span [end - first, H * D], and how many tasks and merges it took."""
        q = np.concatenate([self.rows[row].q[first:end] for row, first, end in spans])
        q = np.pad(q, ((0, 0), (0, 5)))
        out = np.full((len(q), q.shape[1] + 2), 7, dtype=np.float32)
        counts = native.attention(self.path, self.cache, self.step(spans), LAYER, q, out, num_threads)
        width = self.shape.num_heads * self.shape.head_size
        assert (out[:, width:] == 7).all()
        ends = np.cumsum([end - first for _, first, end in spans])[:-1]
        return np.split(out[:, :width], ends), counts

    def stored(self, row: int, which: int) -> npt.NDArray[np.float64]:
        """Keys (0) or values (1) of a row as the cache holds them: [C, K, D]."""
        shape = self.shape
        runs = self.memory.reshape(len(self.memory), LAYERS, 2, shape.num_kv_heads, -1)[:, LAYER, which]
        slots = shape.block_size * shape.head_size
        if shape.kv_type == "i8":
            numbers = runs[..., :slots].view(np.int8).astype(np.float64)
            scales = np.ascontiguousarray(runs[..., slots:]).view(np.float32).astype(np.float64)
        elif shape.kv_type == "bf16":
            numbers = (runs.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        else:
            numbers = runs.view(np.float32 if shape.kv_type == "f32" else np.float16).astype(np.float64)
        numbers = numbers.reshape(*numbers.shape[:2], shape.block_size, shape.head_size)
        if shape.kv_type == "i8":
            numbers = numbers * scales[..., None]
        of_row = numbers[self.rows[row].blocks]  # [blocks, K, S, D]
        tokens = of_row.transpose(0, 2, 1, 3).reshape(-1, shape.num_kv_heads, shape.head_size)
        return tokens[: len(self.rows[row].k)]

    def expected(self, row: int, first: int, end: int) -> npt.NDArray[np.float64]:
        shape = self.shape
        k, v = (np.repeat(self.stored(row, which)[:end], shape.heads_per_kv, axis=1) for which in (0, 1))
        q = self.rows[row].q[first:end].reshape(-1, shape.num_heads, shape.head_size).astype(np.float64)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(shape.head_size)
        query, key = np.arange(first, end)[:, None], np.arange(end)
        hidden = key > query
        if shape.window:
            hidden |= key <= query - shape.window
        scores[:, hidden] = -np.inf
        if self.sinks is not None:  # a key more, whose value is 0
            sinks = np.broadcast_to(self.sinks[:, None, None].astype(np.float64), (*scores.shape[:2], 1))
            scores, v = np.concatenate([scores, sinks], axis=2), np.concatenate([v, 0 * v[:1]])
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, v).reshape(end - first, -1)


SHAPES = st.builds(
    Shape,
    kv_type=st.sampled_from(KV_TYPES),
    num_kv_heads=st.integers(1, 3),
    heads_per_kv=st.sampled_from([1, 2, 3, 4, 5, 7]),
    head_size=st.sampled_from([8, 24, 64, 72, 80, 96]),
    block_size=st.sampled_from([1, 3, 8, 16, 32]),
    window=st.sampled_from([0, 0, 1, 5, 100, 300]),
    has_sinks=st.booleans(),
)
CONTEXTS = st.one_of(st.integers(1, 40), st.integers(SPLIT - 3, SPLIT + 3), st.integers(2 * SPLIT - 3, 700))


@each_path
@settings(max_examples=80, deadline=None)
@given(data=st.data(), shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_equals_the_formula(path: str, data: st.DataObject, shape: Shape, seed: int) -> None:
    contexts = data.draw(st.lists(CONTEXTS, min_size=1, max_size=3))
    case = Case(path, shape, contexts, seed)
    spans = [
        (row, context - data.draw(st.integers(1, min(context, 20))), context) for row, context in enumerate(contexts)
    ]
    results, _ = case.attend(spans, num_threads=data.draw(st.integers(1, 3)))
    for result, span in zip(results, spans, strict=True):
        np.testing.assert_allclose(result, case.expected(*span), rtol=1e-4, atol=2e-5)


@each_path
@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=SHAPES, context=CONTEXTS, seed=st.integers(0, 2**32 - 1))
def test_bits_do_not_depend_on_chunks_batches_or_threads(
    path: str, data: st.DataObject, shape: Shape, context: int, seed: int
) -> None:
    """Chunks of one and two queries take the form for few queries, longer ones the form for many."""
    case = Case(path, shape, [context, data.draw(st.integers(1, 300))], seed)
    first = max(0, context - 24)
    whole = case.attend([(0, first, context)])[0][0]
    start, chunk = first, st.integers(1, 9)
    while start < context:
        end = min(start + data.draw(chunk), context)
        beside = (1, data.draw(st.integers(0, len(case.rows[1].k) - 1)), len(case.rows[1].k))
        threads = data.draw(st.integers(1, 3))
        alone = case.attend([(0, start, end)])[0][0]
        shared = case.attend([beside, (0, start, end)], threads)[0][1]
        assert np.array_equal(alone, whole[start - first : end - first])
        assert np.array_equal(shared, alone)
        start = end


@each_path
@each_kv_type
@pytest.mark.parametrize("num_queries", [1, 2, 3, 40])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_splitting_a_context_over_tasks_changes_no_bit(
    path: str, kv_type: str, num_queries: int, has_sinks: bool
) -> None:
    case = Case(path, Shape(kv_type, 1, 3, 64, 16, has_sinks=has_sinks), [1100], seed=num_queries)
    span = (0, 1100 - num_queries, 1100)
    (whole,), (num_tasks, num_merges) = case.attend([span], num_threads=1)
    assert (num_tasks, num_merges) == (1, 0)
    (pieces,), (num_tasks, num_merges) = case.attend([span], num_threads=4)
    assert num_tasks > 1 and num_merges == 1
    assert np.array_equal(pieces, whole)
    np.testing.assert_allclose(pieces, case.expected(*span), rtol=1e-4, atol=2e-5)


@each_path
@each_kv_type
@pytest.mark.parametrize("num_queries", [1, 2])
def test_kv_heads_of_one_task_have_the_bits_that_each_has_alone(path: str, kv_type: str, num_queries: int) -> None:
    """One task for all heads, tasks for pieces of the context, tasks for single heads where there is one piece only."""
    shape = Shape(kv_type, 5, 4, 64, 16)
    for context, plan in ((1500, (6, 5)), (1400, (6, 5)), (200, (5, 0))):
        case = Case(path, shape, [context], seed=context + num_queries)
        span = (0, context - num_queries, context)
        (together,), counts = case.attend([span], num_threads=1)
        assert counts == (1, 0)
        np.testing.assert_allclose(together, case.expected(*span), rtol=1e-4, atol=2e-5)
        (apart,), counts = case.attend([span], num_threads=2)
        assert counts == plan
        assert np.array_equal(apart, together)


@each_path
def test_a_window_that_hides_whole_splits(path: str) -> None:
    """Queries of one chunk see different splits: the first task of a row must not see what only its last query does."""
    case = Case(path, Shape("f16", 1, 2, 64, 16, window=30), [800], seed=5)
    (whole,), _ = case.attend([(0, 0, 800)])
    np.testing.assert_allclose(whole, case.expected(0, 0, 800), rtol=1e-4, atol=2e-5)
    for position in range(0, 800, 37):
        assert np.array_equal(case.attend([(0, position, position + 1)])[0][0][0], whole[position])
    assert np.array_equal(case.attend([(0, 0, 800)], num_threads=4)[0][0], whole)


@each_path
@each_kv_type
@pytest.mark.parametrize("head_size", [8, 64, 72])
def test_store_rounds_to_nearest_and_touches_nothing_else(path: str, kv_type: str, head_size: int) -> None:
    case = Case(path, Shape(kv_type, 2, 1, head_size, 4), [11], seed=head_size)
    row = case.rows[0]
    specials = [0.0, -0.0, 1.0, 65504.0, -65519.9, 1e-7, 5.96e-8, 2.9e-8, -3e-8, 6.1e-5, 1.00048828125, 3.14159, 1e-41]
    row.k[3, : min(head_size, len(specials))] = specials[:head_size]
    before = case.memory.copy()
    case.store(0, 3, 4)
    k = row.k.reshape(11, 2, head_size)
    if kv_type == "i8":
        unit = np.abs(k).max(axis=2, keepdims=True).astype(np.float64) / 127
        assert (np.abs(case.stored(0, 0) - k) <= 0.5001 * unit).all()
    else:
        assert np.array_equal(case.stored(0, 0), _rounded(k, kv_type))
    changed = np.flatnonzero((case.memory != before).any(axis=1))
    assert set(changed) <= {row.blocks[0]}
    assert (case.memory.reshape(len(before), LAYERS, -1)[:, 1 - LAYER] == 0xFF).all()


def _rounded(x: Floats, kv_type: str) -> npt.NDArray[np.float64]:
    if kv_type == "f32":
        return x.astype(np.float64)
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float64)
    bits = x.view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint32) << 16
    return nearest.astype(np.uint32).view(np.float32).astype(np.float64)


@each_path
def test_a_row_of_zeros_in_int8(path: str) -> None:
    case = Case(path, Shape("i8", 1, 1, 16, 4), [3], seed=0)
    case.rows[0].k[1] = 0
    case.store(0, 1, 2)
    assert (case.stored(0, 0)[1] == 0).all()


def test_what_does_not_fit_is_refused() -> None:
    path, shape = PATHS[0], Shape("f16", 2, 2, 16, 4)
    case = Case(path, shape, [9], seed=1)
    q, out = np.zeros((9, 64), np.float32), np.zeros((9, 64), np.float32)
    step = case.step([(0, 0, 9)])
    with pytest.raises(ValueError, match="no such layer"):
        native.attention(path, case.cache, step, LAYERS, q, out, 1)
    with pytest.raises(ValueError, match="room for the heads"):
        native.attention(path, case.cache, step, 0, q[:, :60].copy(), out, 1)
    with pytest.raises(ValueError, match="multiple of 8"):
        native.PagedCache("f16", case.memory, LAYERS, 2, 4, 12)
    with pytest.raises(ValueError, match="none of f32"):
        native.PagedCache("f8", case.memory, LAYERS, 2, 4, 16)
    ids = [np.array(x, dtype=np.int64) for x in ([0, 1], [9], [[0, 1, 99]], [0], [0])]
    with pytest.raises(ValueError, match="no such block"):
        native.attention(path, case.cache, native.AttentionRows(*ids, 0, 4), 0, q, out, 1)
    ids[2] = np.array([[0, 1]], dtype=np.int64)
    with pytest.raises(ValueError, match="longer than its block table"):
        native.attention(path, case.cache, native.AttentionRows(*ids, 0, 4), 0, q, out, 1)
    with pytest.raises(ValueError, match=r"sinks must be \[H\]"):
        native.AttentionRows(*ids, 0, 4, np.zeros(3, np.float32))
