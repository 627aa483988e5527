"""What every backend of `Ops` must compute, against plain numpy. A new backend is one more entry in BACKENDS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup, KVLayout
from relevo.core.model import Routing
from relevo.core.plan import ScheduledRow
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.inputs import StepInputs, pack_rows
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.protocol import Buffer, HostTensor, Operations, Ops, Program, Router
from relevo.engine.ops.torch.ops import TorchOps

BACKENDS: dict[str, Callable[[], Ops]] = {
    "torch-cpu-float32": lambda: TorchOps("float32"),
    "torch-cpu-bfloat16": lambda: TorchOps("bfloat16"),
    "torch-cpu-float16": lambda: TorchOps("float16"),
    "native-float32": lambda: NativeOps("float32", (0, 1)),
    "native-portable-float32": lambda: NativeOps("float32", (0,), path="portable"),
}
if torch.cuda.is_available():
    BACKENDS["torch-cuda-float32"] = lambda: TorchOps("float32", "cuda")
    BACKENDS["torch-cuda-bfloat16"] = lambda: TorchOps("bfloat16", "cuda")

TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}
VOCAB, LAYERS, KV_HEADS, GROUP, HEAD_SIZE, BLOCK_SIZE, NUM_BLOCKS = 11, 2, 2, 3, 8, 4, 9
HEADS = KV_HEADS * GROUP

Body = Callable[[Operations], Buffer]


@pytest.fixture(params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Ops:
    return BACKENDS[request.param]()


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def host(array: np.ndarray) -> HostTensor:
    return HostTensor(array.astype(np.float32), "float32")


def close(ops: Ops, actual: np.ndarray, expected: np.ndarray) -> None:
    tolerance = TOLERANCE[ops.dtype]
    np.testing.assert_allclose(actual, expected, atol=tolerance * max(1.0, float(np.abs(expected).max())))


def layout(dtype: str = "float32") -> KVLayout:
    return KVLayout("m", dtype, BLOCK_SIZE, (KVGroup.full(range(LAYERS), KV_HEADS, HEAD_SIZE),))


def inputs(*rows: tuple[list[int], int, list[int]]) -> StepInputs:
    """Rows of (token ids, start, blocks)."""
    asked = EngineRequest(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0))
    return pack_rows([ScheduledRow(asked, ids, start, blocks) for ids, start, blocks in rows], BLOCK_SIZE)


class Cache:
    """A cache in every place a backend may keep it; `array` shows host memory as [N, L, 2, K, S, D]."""

    def __init__(self, ops: Ops) -> None:
        kind = layout(ops.dtype)
        self.memory = bytearray(NUM_BLOCKS * kind.bytes_per_block)
        self.buffer = ops.kv_cache(kind, NUM_BLOCKS, memoryview(self.memory) if ops.kv_in_host_memory else None)

    def array(self) -> np.ndarray:
        return np.frombuffer(self.memory, dtype=np.float32).reshape(
            NUM_BLOCKS, LAYERS, 2, KV_HEADS, BLOCK_SIZE, HEAD_SIZE
        )


def run(
    ops: Ops, body: Body, width: int, step: StepInputs, cache: Cache | None = None, window: int | None = None
) -> np.ndarray:
    """What `body` computes, [T, width], read the one way there is: as logits against the identity."""
    identity = ops.weight([host(np.eye(width, dtype=np.float32))])
    program = ops.program(lambda operations: operations.logits(body(operations), identity), window, range(LAYERS))
    return program.run(step, (cache or Cache(ops)).buffer, range(step.num_tokens)).values.copy()


def naive_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None) -> np.ndarray:
    """One row: q [Q, H, D] are the last queries over k, v [C, K, D] -> [Q, H * D]."""
    k, v = k.repeat(GROUP, axis=1), v.repeat(GROUP, axis=1)
    scores = np.einsum("qhd,chd->hqc", q, k) * HEAD_SIZE**-0.5
    query = np.arange(len(k) - len(q), len(k))[:, None]
    key = np.arange(len(k))
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqc,chd->qhd", weights, v).reshape(len(q), HEADS * HEAD_SIZE)


def test_linear_norm_activation_and_embedding(ops: Ops) -> None:
    table, matrix, bias, gain = values(VOCAB, 6), values(10, 6, seed=1), values(10, seed=2), 1 + values(6, seed=3)
    step = inputs(([3, 0, 7], 0, [1]))
    x, ids = table[[3, 0, 7]], ops.weight([host(table)])
    by, plus, times = ops.weight([host(matrix)]), ops.weight([host(bias)]), ops.weight([host(gain)])
    close(ops, run(ops, lambda o: o.embed(ids), 6, step), x)
    close(ops, run(ops, lambda o: o.linear(o.embed(ids), by, plus), 10, step), x @ matrix.T + bias)
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain
    close(ops, run(ops, lambda o: o.rms_norm(o.embed(ids), times, 1e-5), 6, step), normed)
    close(
        ops, run(ops, lambda o: o.linear(o.rms_norm(o.embed(ids), times, 1e-5), by, None), 10, step), normed @ matrix.T
    )
    gate, up = x[:, :3], x[:, 3:]
    close(ops, run(ops, lambda o: o.activate(o.embed(ids)), 3, step), gate / (1 + np.exp(-gate)) * up)
    close(ops, run(ops, lambda o: o.add(o.embed(ids), o.embed(ids)), 6, step), 2 * x)


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_residual_takes_a_product_of_itself(ops: Ops, num_tokens: int) -> None:
    """x + W x: red if a backend overwrites x while it is still read."""
    table, matrix = values(VOCAB, 48), values(48, 48, seed=1)
    ids, by = ops.weight([host(table)]), ops.weight([host(matrix)])

    def body(o: Operations) -> Buffer:
        x = o.embed(ids)
        return o.add(x, o.linear(x, by, None))

    x = table[[3, 0, 7][:num_tokens]]
    close(ops, run(ops, body, 48, inputs(([3, 0, 7][:num_tokens], 0, [1]))), x + x @ matrix.T)


ROUTINGS = {
    "softmax": Routing(num_active=2),
    "plain": Routing(num_active=3, normalises=False, scale=0.5),
    "sigmoid": Routing(num_active=2, scoring="sigmoid", has_bias=True, scale=2.5),
    "groups": Routing(num_active=3, scoring="sigmoid", has_bias=True, num_groups=4, num_used_groups=2),
    "best of a group": Routing(num_active=3, normalises=False, num_groups=4, num_used_groups=2, group_sum_of=1),
    "all": Routing(num_active=8),
}


def naive_experts(
    x: np.ndarray, router: np.ndarray, bias: np.ndarray | None, rule: Routing, up: np.ndarray, down: np.ndarray
) -> np.ndarray:
    """Token by token, expert by expert. x [T, E], up [experts, 2I, E], down [experts, E, I]."""
    out = np.zeros_like(x)
    for token, row in enumerate(x):
        logits = router @ row
        scores = 1 / (1 + np.exp(-logits))
        if rule.scoring == "softmax":
            scores = np.exp(logits - logits.max())
            scores /= scores.sum()
        choice = scores if bias is None else scores + bias
        if rule.num_used_groups < rule.num_groups:
            groups = choice.reshape(rule.num_groups, -1)
            sums = np.sort(groups, axis=1)[:, -rule.group_sum_of :].sum(axis=1)
            lost = np.argsort(-sums)[rule.num_used_groups :]
            groups = groups.copy()
            groups[lost] = -np.inf
            choice = groups.reshape(-1)
        chosen = np.argsort(-choice)[: rule.num_active]
        weights = scores[chosen] / (scores[chosen].sum() if rule.normalises else 1.0) * rule.scale
        for expert, weight in zip(chosen, weights, strict=True):
            gate, value = np.split(up[expert] @ row, 2)
            out[token] += weight * (down[expert] @ (gate / (1 + np.exp(-gate)) * value))
    return out


@pytest.mark.parametrize("kind", ROUTINGS)
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_experts_are_chosen_by_scores_and_weighed_without_the_bias(ops: Ops, kind: str, num_tokens: int) -> None:
    """Red when a bias reaches a weight, a group is left in, an expert has another's rows, a sum is scaled twice."""
    if ops.dtype != "float32":
        pytest.skip("roundings choose other experts")
    rule, width, inner, count = ROUTINGS[kind], 32, 24, 8
    table, router = values(VOCAB, width), values(count, width, seed=1)
    bias = 0.3 * values(count, seed=2) if rule.has_bias else None
    up, down = 0.3 * values(count, 2 * inner, width, seed=3), 0.3 * values(count, width, inner, seed=4)
    ids = ops.weight([host(table)])
    by = Router(
        ops.weight([host(router)], is_exact=True),
        None if bias is None else ops.weight([host(bias)], is_exact=True),
        rule,
    )
    ups = [ops.weight([host(gate), host(value)]) for gate, value in (np.split(each, 2) for each in up)]
    downs = [ops.weight([host(each)]) for each in down]
    tokens = [3, 0, 7, 7, 1, 2, 10, 4, 5][:num_tokens]
    step = inputs((tokens, 0, [1, 2, 3]))
    found = run(ops, lambda o: o.experts(o.embed(ids), by, ups, downs)[0], width, step)
    close(ops, found, naive_experts(table[tokens], router, bias, rule, up, down))
    alone = run(ops, lambda o: o.experts(o.embed(ids), by, ups, downs)[0], width, inputs((tokens[-1:], 0, [1])))
    if isinstance(ops, NativeOps):  # torch does not promise it
        np.testing.assert_array_equal(alone[0], found[-1])


def test_many_rows_pass_experts_in_runs(ops: Ops) -> None:
    """More rows than one run has, so that the last rows of a run and the first of the next are right."""
    if not isinstance(ops, NativeOps):
        pytest.skip("only the native backend cuts runs")
    rule, width, inner, count, num_rows = Routing(num_active=2), 32, 16, 4, 1030
    table, router = values(VOCAB, width), values(count, width, seed=1)
    up, down = 0.3 * values(count, 2 * inner, width, seed=3), 0.3 * values(count, width, inner, seed=4)
    ids, by = ops.weight([host(table)]), Router(ops.weight([host(router)], is_exact=True), None, rule)
    ups, downs = [ops.weight([host(each)]) for each in up], [ops.weight([host(each)]) for each in down]
    tokens = (np.arange(num_rows) % VOCAB).tolist()
    rows = [([token], 0, [index % NUM_BLOCKS]) for index, token in enumerate(tokens)]
    found = run(ops, lambda o: o.experts(o.embed(ids), by, ups, downs)[0], width, inputs(*rows))
    close(ops, found, naive_experts(table[tokens], router, None, rule, up, down))


def test_heads_are_rotated_in_part(ops: Ops) -> None:
    """The tail of a head is as it was."""
    table = values(VOCAB, 3 * 8)
    ids = ops.weight([host(table)])
    frequencies = np.array([1.0, 0.25], dtype=np.float32)

    def body(o: Operations) -> Buffer:
        (heads,) = o.split_heads(o.embed(ids), [3], 8)
        return o.rope(heads, o.rope_angles(frequencies, 1.0))

    found = run(ops, body, 3 * 8, inputs(([3, 0, 7], 0, [1]))).reshape(3, 3, 8)
    x = table[[3, 0, 7]].reshape(3, 3, 8)
    angles = np.arange(3)[:, None, None] * frequencies
    low, high = x[..., :2], x[..., 2:4]
    expected = x.copy()
    expected[..., :2] = low * np.cos(angles) - high * np.sin(angles)
    expected[..., 2:4] = high * np.cos(angles) + low * np.sin(angles)
    close(ops, found, expected)


def test_one_norm_spans_all_heads(ops: Ops) -> None:
    table, gain = values(VOCAB, 3 * 8), 1 + values(3 * 8, seed=3)
    ids, times = ops.weight([host(table)]), ops.weight([host(gain)])

    def body(o: Operations) -> Buffer:
        (heads,) = o.split_heads(o.embed(ids), [3], 8)
        return o.rms_norm(heads, times, 1e-5)

    x = table[[3, 0, 7]]
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain
    close(ops, run(ops, body, 3 * 8, inputs(([3, 0, 7], 0, [1]))), expected)


def test_parts_are_stacked_in_order(ops: Ops) -> None:
    """q, k and v are one matrix; a swapped pair would still have the right shape."""
    parts = [values(4, 6), values(2, 6, seed=1), values(2, 6, seed=2)]
    table = values(VOCAB, 6, seed=3)
    ids, stacked = ops.weight([host(table)]), ops.weight([host(part) for part in parts])
    out = run(ops, lambda o: o.linear(o.embed(ids), stacked, None), 8, inputs(([3, 5], 0, [1])))
    close(ops, out, table[[3, 5]] @ np.concatenate(parts).T)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_of_any_stored_type(ops: Ops, dtype: str) -> None:
    exact = np.array([[1.5, -2.0, 0.25, 96.0]], dtype=np.float32)  # the same number in every type
    stored = {
        "float32": exact,
        "float16": exact.astype(np.float16),
        "bfloat16": (exact.view(np.uint32) >> 16).astype(np.uint16),
    }[dtype]
    stored.flags.writeable = False  # as from a mapped file
    weight = ops.weight([HostTensor(stored, dtype)])
    np.testing.assert_array_equal(run(ops, lambda o: o.embed(weight), 4, inputs(([0], 0, [1]))), exact)


def test_rope_rotates_pairs_by_position(ops: Ops) -> None:
    inv_freq, scale = np.array([1.0, 0.5, 0.1, 0.02], dtype=np.float32), 1.25
    table = values(VOCAB, 2 * HEAD_SIZE)
    ids = ops.weight([host(table)])

    def body(o: Operations) -> Buffer:
        (heads,) = o.split_heads(o.embed(ids), (2,), HEAD_SIZE)
        return o.rope(heads, o.rope_angles(inv_freq, scale))

    rotated = run(ops, body, 2 * HEAD_SIZE, inputs(([3, 5], 6, [1, 2]), ([8], 0, [3])))
    x = table[[3, 5, 8]].reshape(3, 2, HEAD_SIZE)
    pair = x[..., : HEAD_SIZE // 2] + 1j * x[..., HEAD_SIZE // 2 :]
    turned = pair * scale * np.exp(1j * np.array([6, 7, 0])[:, None, None] * inv_freq)
    close(ops, rotated, np.concatenate((turned.real, turned.imag), axis=-1).reshape(3, -1))


def test_heads_are_normed_each_by_itself(ops: Ops) -> None:
    table, gain = values(VOCAB, 3 * HEAD_SIZE), 1 + values(HEAD_SIZE, seed=1)
    ids, times = ops.weight([host(table)]), ops.weight([host(gain)])

    def body(o: Operations) -> Buffer:
        _, heads = o.split_heads(o.embed(ids), (1, 2), HEAD_SIZE)
        return o.rms_norm(heads, times, 1e-5)

    x = table[[3, 5]].reshape(2, 3, HEAD_SIZE)[:, 1:]
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain
    close(ops, run(ops, body, 2 * HEAD_SIZE, inputs(([3, 5], 0, [1]))), expected.reshape(2, -1))


@pytest.mark.parametrize("window", [None, 3, 5])
def test_attention_over_mixed_rows(ops: Ops, window: int | None) -> None:
    """A chunk, then a step of a continued chunk and two decodes of different lengths, on both layers."""
    cache = Cache(ops)
    width = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
    tables = {"a": [7, 2, 5], "b": [1, 8], "c": [4]}
    first = {"a": (0, 6), "b": (0, 5), "c": (0, 1)}
    second = {"b": (5, 6), "a": (6, 10), "c": (1, 2)}
    for layer in range(LAYERS):
        qkv = {name: values(10, width, seed=10 * layer + index) for index, name in enumerate(tables)}
        run_rows(ops, cache, layer, tables, qkv, first, window)
        actual = run_rows(ops, cache, layer, tables, qkv, second, window)
        expected = []
        for name, (start, stop) in second.items():
            split = qkv[name][:stop].reshape(stop, -1, HEAD_SIZE)
            q, k, v = np.split(split, [HEADS, HEADS + KV_HEADS], axis=1)
            expected.append(naive_attention(q[start:], k, v, window))
        close(ops, actual, np.concatenate(expected))


def run_rows(
    ops: Ops,
    cache: Cache,
    layer: int,
    tables: dict[str, list[int]],
    qkv: dict[str, np.ndarray],
    spans: dict[str, tuple[int, int]],
    window: int | None,
) -> np.ndarray:
    """Attention of the tokens in `spans`, [T, H * D]. Activations come in as an embedding of token 0, 1, 2 ..."""
    activations = np.concatenate([qkv[name][start:stop] for name, (start, stop) in spans.items()])
    tokens = iter(range(len(activations)))
    rows = [([next(tokens) for _ in range(start, stop)], start, tables[name]) for name, (start, stop) in spans.items()]
    ids = ops.weight([host(activations)])

    def body(o: Operations) -> Buffer:
        q, k, v = o.split_heads(o.embed(ids), (HEADS, KV_HEADS, KV_HEADS), HEAD_SIZE)
        plain = o.rope_angles(np.zeros(HEAD_SIZE // 2, dtype=np.float32), 1.0)  # turns by nothing
        return o.attention(o.rope(q, plain), o.rope(k, plain), v, layer)

    return run(ops, body, HEADS * HEAD_SIZE, inputs(*rows), cache, window)


LATENT, ROTATED, LATENT_HEADS = 24, 8, 5


def read_through(ops: Ops, body: Body, identity: Buffer) -> Program:
    return ops.program(lambda operations: operations.logits(body(operations), identity), None, range(LAYERS))


def latent_layout(dtype: str) -> KVLayout:
    return KVLayout("m", dtype, BLOCK_SIZE, (KVGroup.latent(range(LAYERS), LATENT + ROTATED),))


def naive_latents(q: np.ndarray, rows: np.ndarray, scale: float) -> np.ndarray:
    """q [Q, H, L + R] are the last queries over rows [C, L + R] -> [Q, H * L]."""
    scores = np.einsum("qhd,cd->hqc", q, rows) * scale
    hidden = np.arange(len(rows)) > np.arange(len(rows) - len(q), len(rows))[:, None]
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqc,cl->qhl", weights, rows[:, :LATENT]).reshape(len(q), -1)


def test_attention_over_latents_of_mixed_rows(ops: Ops) -> None:
    """A chunk, then a step of a continued chunk and a decode; what is written lies as the layout says."""
    kind = latent_layout(ops.dtype)
    memory = bytearray(NUM_BLOCKS * kind.bytes_per_block)
    cache = ops.kv_cache(kind, NUM_BLOCKS, memoryview(memory) if ops.kv_in_host_memory else None)
    gain, scale = 1 + values(LATENT, seed=9), 0.3
    times = ops.weight([host(gain)])
    widths = (LATENT_HEADS * LATENT, LATENT_HEADS * ROTATED, LATENT, ROTATED)
    tables, spans = {"a": [7, 2, 5], "b": [1, 8]}, [{"a": (0, 6), "b": (0, 5)}, {"b": (5, 6), "a": (6, 10)}]
    data = {name: values(10, sum(widths), seed=index) for index, name in enumerate(tables)}
    frequencies = np.zeros(ROTATED // 2, dtype=np.float32)  # turn by nothing
    identity = ops.weight([host(np.eye(LATENT_HEADS * LATENT, dtype=np.float32))])
    for span in spans:
        activations = np.concatenate([data[name][start:stop] for name, (start, stop) in span.items()])
        ids, tokens = ops.weight([host(activations)]), iter(range(len(activations)))
        step = inputs(*(([next(tokens) for _ in range(*each)], each[0], tables[name]) for name, each in span.items()))

        def body(o: Operations, ids: Buffer = ids) -> Buffer:
            q, turned, latent, key = o.split(o.embed(ids), widths)
            angles = o.rope_angles(frequencies, 1.0)
            (turned,), (key,) = o.split_heads(turned, [LATENT_HEADS], ROTATED), o.split_heads(key, [1], ROTATED)
            latent = o.rms_norm(latent, times, 1e-6)
            return o.latent_attention(q, o.rope(turned, angles), latent, o.rope(key, angles), 1, scale)

        program = read_through(ops, body, identity)
        actual = program.run(step, cache, range(step.num_tokens)).values.copy()
        expected = []
        for name, (start, stop) in span.items():
            q, turned, latent, key = np.split(data[name][:stop], np.cumsum(widths)[:-1], axis=1)
            latent = latent / np.sqrt((latent**2).mean(-1, keepdims=True) + 1e-6) * gain
            heads = (stop, LATENT_HEADS, -1)
            queries = np.concatenate((q.reshape(heads), turned.reshape(heads)), axis=-1)
            rows = np.concatenate((latent, key), axis=-1)
            expected.append(naive_latents(queries[start:], rows, scale))
            if ops.dtype == "float32" and ops.kv_in_host_memory:
                stored = np.frombuffer(memory, np.float32).reshape(NUM_BLOCKS, LAYERS, BLOCK_SIZE, LATENT + ROTATED)
                close(ops, stored[tables[name], 1].reshape(-1, LATENT + ROTATED)[:stop], rows)
        close(ops, actual, np.concatenate(expected))


def test_each_head_has_a_matrix_of_its_own(ops: Ops) -> None:
    table, matrices = values(VOCAB, 3 * 8), values(3, 5, 8, seed=1)
    ids, by = ops.weight([host(table)]), ops.head_weights(host(matrices))
    found = run(ops, lambda o: o.linear_heads(o.embed(ids), by), 3 * 5, inputs(([3, 0, 7], 0, [1])))
    expected = np.einsum("thk,hnk->thn", table[[3, 0, 7]].reshape(3, 3, 8), matrices).reshape(3, -1)
    close(ops, found, expected)


def test_integers_are_no_cache_of_latents(ops: Ops) -> None:
    with pytest.raises(UnsupportedModel, match="a cache of latents in int8 is not implemented; choose one of float16"):
        ops.kv_cache(latent_layout("int8"), 1, None)


def test_blocks_lie_in_memory_as_the_layout_says(ops: Ops) -> None:
    """[N, L, 2, K, S, D]: what transports move and peers read. Red if a backend keeps an order of its own."""
    if ops.dtype != "float32" or not ops.kv_in_host_memory:
        pytest.skip("read as float32 from host memory")
    cache = Cache(ops)
    qkv = values(6, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)
    run_rows(ops, cache, 1, {"a": [7, 2]}, {"a": qkv}, {"a": (0, 6)}, None)
    _, k, v = np.split(qkv.reshape(6, -1, HEAD_SIZE), [HEADS, HEADS + KV_HEADS], axis=1)
    array = cache.array()
    for token in range(6):
        block, offset = [7, 2][token // BLOCK_SIZE], token % BLOCK_SIZE
        np.testing.assert_array_equal(array[block, 1, 0, :, offset], k[token])
        np.testing.assert_array_equal(array[block, 1, 1, :, offset], v[token])
    array = array.copy()
    array[[7, 2]] = 0
    assert not array.any(), "a write outside the row's blocks"


def test_a_cache_of_fewer_bits_than_the_activations(ops: Ops) -> None:
    if ops.dtype != "float32" or not ops.kv_in_host_memory:
        pytest.skip("a cache of the same type is every other test's")
    cache = Cache(ops)
    cache.buffer = ops.kv_cache(layout("float16"), NUM_BLOCKS, memoryview(cache.memory))
    qkv = values(6, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)
    actual = run_rows(ops, cache, 0, {"a": [7, 2]}, {"a": qkv}, {"a": (0, 6)}, None)
    q, k, v = np.split(qkv.reshape(6, -1, HEAD_SIZE), [HEADS, HEADS + KV_HEADS], axis=1)
    np.testing.assert_allclose(actual, naive_attention(q, k, v, None), atol=5e-3)


def test_copy_blocks_copies_every_layer(ops: Ops) -> None:
    """The copy is attended to as the original was."""
    cache, qkv = Cache(ops), {"a": values(6, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)}
    for layer in range(LAYERS):
        run_rows(ops, cache, layer, {"a": [7, 2]}, qkv, {"a": (0, 5)}, None)
    ops.copy_blocks(cache.buffer, [(7, 1), (1, 3), (2, 6)])
    for layer in range(LAYERS):
        original = run_rows(ops, cache, layer, {"a": [7, 2]}, qkv, {"a": (5, 6)}, None)
        copied = run_rows(ops, cache, layer, {"a": [3, 6]}, qkv, {"a": (5, 6)}, None)
        np.testing.assert_array_equal(original, copied)


@pytest.mark.parametrize("asked", [[2, 0], [], [1], [0, 1, 2], [2, 2, 1]])
def test_logits_come_in_the_order_asked_for(ops: Ops, asked: Sequence[int]) -> None:
    table, head, matrix = values(VOCAB, 6), values(5, 6, seed=1), values(6, 6, seed=2)
    ids, rows, by = ops.weight([host(table)]), ops.weight([host(head)]), ops.weight([host(matrix)])
    program = ops.program(lambda o: o.logits(o.linear(o.embed(ids), by, None), rows), None, range(LAYERS))
    for _ in range(2):
        out = program.run(inputs(([3, 0, 7], 0, [1])), Cache(ops).buffer, asked)
        assert out.values.dtype == np.float32
        assert out.values.shape == (len(asked), 5)
        if not asked:
            continue
        close(ops, out.values, (table[[3, 0, 7]] @ matrix.T @ head.T)[list(asked)])
        if out.summaries is not None:
            np.testing.assert_array_equal(out.summaries.best, out.values.argmax(axis=1))
            assert out.summaries.finite.all()


def test_steps_of_any_size_run_one_program(ops: Ops) -> None:
    """Red if buffers that grew for a large step are misread by a small one, or the other way round."""
    table, matrix = values(VOCAB, 6), values(10, 6, seed=1)
    ids, by, identity = ops.weight([host(table)]), ops.weight([host(matrix)]), ops.weight([host(np.eye(10))])
    program = ops.program(lambda o: o.logits(o.linear(o.embed(ids), by, None), identity), None, range(LAYERS))
    cache = Cache(ops)
    for length in (1, 2, 9, 36, 3, 1, 17):
        tokens = [index % VOCAB for index in range(length)]
        out = program.run(inputs((tokens, 0, list(range(9)))), cache.buffer, range(length))
        close(ops, out.values, table[tokens] @ matrix.T)
