"""What fits on a device: weights, what a step needs besides, and the KV blocks that are left.

A pool taken too large makes a simulated server too fast: what CUDA, libraries and the largest step take is counted.
Parts of the pool that stop growing (windows, chunks, states) are reserved per sequence; the rest is blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.policy.perf.devices import Device
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.weight_formats import WeightFormat

_GIB = 2**30
# Contexts, libraries, buffers of collectives. Measured on H100: 1.8 GiB on one device, 3.6 GiB on each of two.
ALONE_BYTES, TOGETHER_BYTES = 1.8 * _GIB, 3.6 * _GIB
GRAPH_BYTES = 0.45 * _GIB  # CUDA graphs of decode steps, one pool. Measured on an 8B model
_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """How the engine is set up. `utilization`: of the device's memory that it may take (vLLM takes 0.9)."""

    max_step_tokens: int = 8192
    max_rows: int = 256
    block_size: int = 16
    kv_value_bytes: float = 2.0
    kv_scale_bytes: float = 0.0  # of the keys of a token in a head, and as much of its values: of a cache of integers
    utilization: float = 1.0
    max_sequence_tokens: int = 0  # bounded layers are reserved for `max_rows` sequences this long; 0: for one block


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Of one device, in bytes. `num_blocks` is 0 where the weights alone do not fit."""

    weight_bytes: float
    activation_bytes: float
    runtime_bytes: float
    bounded_bytes: float  # of windows, chunks and states
    kv_bytes: float  # of the pool of blocks
    num_blocks: int  # of the worker: every device of a tensor group holds its part of each
    num_pool_tokens: int  # of the worker, over its attention-data groups


def memory_plan(shape: ModelShape, device: Device, parallelism: Parallelism, limits: MemoryLimits) -> MemoryPlan:
    weights = device_weight_bytes(shape, parallelism)
    activations = activation_bytes(shape, parallelism, limits)
    runtime = (TOGETHER_BYTES if parallelism.num_ranks > 1 else ALONE_BYTES) + GRAPH_BYTES
    bounded = limits.max_rows * _bounded_bytes(shape, parallelism, limits) / parallelism.pipeline
    free = device.memory_bytes * limits.utilization - weights - activations - runtime - bounded
    token_bytes = _growing_bytes_per_token(shape, parallelism, limits.kv_value_bytes) / parallelism.pipeline
    num_blocks = max(0, int(free / (token_bytes * limits.block_size))) * parallelism.attention_data
    return MemoryPlan(
        weight_bytes=weights,
        activation_bytes=activations,
        runtime_bytes=runtime,
        bounded_bytes=bounded,
        kv_bytes=max(0.0, free),
        num_blocks=num_blocks,
        num_pool_tokens=num_blocks * limits.block_size,
    )


def device_weight_bytes(shape: ModelShape, parallelism: Parallelism) -> float:
    """Of the model on one device. Stages are taken to be equal; the first and the last also hold the vocabulary."""
    tensor, formats, bf16 = parallelism.tensor, shape.formats, WeightFormat.BF16.bytes_per_weight
    attention = sum(
        layers.num_layers * (layers.num_weights / tensor + layers.num_replicated_weights) for layers in shape.attention
    )
    total = attention * formats.attention.bytes_per_weight
    total += shape.num_dense_weights * formats.dense.bytes_per_weight / tensor
    if shape.experts:
        moe = shape.experts
        num_held = moe.num_experts + parallelism.redundant_experts
        routed = num_held * moe.num_weights_each * formats.experts.bytes_per_weight / parallelism.num_ranks
        shared = moe.num_shared_weights * formats.shared.bytes_per_weight / tensor
        total += moe.num_layers * (routed + shared + moe.num_router_weights * bf16)
    vocabulary = (shape.embedding_bytes + (0.0 if shape.is_tied else shape.head_bytes)) / tensor
    stages = parallelism.pipeline
    return total / stages + (vocabulary if stages == 1 else vocabulary / 2)


def activation_bytes(shape: ModelShape, parallelism: Parallelism, limits: MemoryLimits) -> float:
    """Peak of the largest step: residual, normed input and the widest product of a layer, and float32 logits."""
    tensor, hidden = parallelism.tensor, shape.hidden_size
    widest = max(a.num_weights / hidden for a in shape.attention) / tensor
    if shape.num_dense_weights:
        num_dense_layers = shape.num_layers - (shape.experts.num_layers if shape.experts else 0)
        widest = max(widest, 2 * shape.num_dense_weights / (3 * hidden * num_dense_layers) / tensor)
    if shape.experts:
        widest = max(widest, shape.experts.num_active * 2 * shape.experts.num_weights_each / (3 * hidden))
    num_tokens = limits.max_step_tokens + limits.max_rows
    logits = limits.max_rows * shape.vocab_size / tensor * 4
    return num_tokens * (3 * hidden + widest) * _ACTIVATION_BYTES + logits


def _growing_bytes_per_token(shape: ModelShape, parallelism: Parallelism, kv_value_bytes: float) -> float:
    total = 0.0
    for layers in shape.attention:
        cache = layers.cache
        if not cache.is_bounded:
            total += cache.elements_per_token * kv_value_bytes / parallelism.kv_shards(layers)
            total += cache.index_bytes_per_token
    return total


def _bounded_bytes(shape: ModelShape, parallelism: Parallelism, limits: MemoryLimits) -> float:
    """Of one sequence: what windows, chunks and states keep of it."""
    num_tokens = max(limits.max_sequence_tokens, limits.block_size)
    total = 0.0
    for layers in shape.attention:
        cache = layers.cache
        if cache.is_bounded:
            kv_bytes = cache.most_kept(num_tokens) * cache.elements_per_token * limits.kv_value_bytes
            total += (kv_bytes + cache.bytes_per_sequence) / parallelism.kv_shards(layers)
    return total
