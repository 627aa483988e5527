"""What a worker of the native backend holds on a CPU: its weights as they are packed, a step's buffers, the process.

Owns the numbers of that backend; sums over ranks and caches are `rank_memory`'s. Pure; all sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.policy.perf.memory_plan import MemoryLimits
from relevo.policy.perf.model_shape import AttentionLayers, ModelShape
from relevo.policy.perf.weight_formats import WeightFormat, WeightFormats, weight_formats

PROCESS_BYTES = 42 * 2**20  # interpreter, libraries, what a worker is made of. Measured: 40 to 47 MiB, Python 3.11
_FLOAT_BYTES = 4  # of activations
_INTEGERS = (WeightFormat.INT4_G32, WeightFormat.INT4_G128)


def held_formats(config: Mapping[str, Any]) -> WeightFormats:
    """Of a config.json, as `--dtype auto` holds them: floats as they are stored; symmetric 4-bit integers in order in
    blocks of 32, each with its scale; all else that is quantised in bfloat16. Raises UnsupportedModel."""
    text = {**config, **(config.get("text_config") or {})}
    dtype = text.get("dtype") or text.get("torch_dtype")
    floats = WeightFormat.F32 if dtype in (None, "float32") else WeightFormat.BF16
    quantization = text.get("quantization_config")
    plain = WeightFormats(attention=floats, dense=floats, experts=floats, shared=floats, head=floats, embedding=floats)
    if not quantization:
        return plain
    stored, is_kept = weight_formats(quantization), _is_multiplied_as_stored(quantization)

    def held(part: WeightFormat) -> WeightFormat:
        if part is WeightFormat.BF16:  # left out of the quantisation
            return floats
        return WeightFormat.INT4_G32 if part in _INTEGERS and is_kept else WeightFormat.BF16

    return WeightFormats(
        attention=held(stored.attention),
        dense=held(stored.dense),
        experts=held(stored.experts),
        shared=held(stored.shared),
        head=floats,
        embedding=floats,
    )


def _is_multiplied_as_stored(quantization: Mapping[str, Any]) -> bool:
    method = str(quantization.get("quant_method", "")).lower()
    if method == "gptq":
        return bool(quantization.get("sym", True)) and not quantization.get("desc_act")
    return method == "compressed-tensors"


def step_bytes(shape: ModelShape, limits: MemoryLimits) -> float:
    """Buffers of the largest step, which are kept between steps."""
    hidden, num_tokens = shape.hidden_size, limits.max_step_tokens
    inner = _inner_size(shape)
    attention = max(_attention_width(each) for each in shape.attention)
    widest = max(hidden, inner, *(_output_width(each) for each in shape.attention))
    token = 2 * hidden + max(attention, 2 * inner) + widest  # residual, its product, the widest part, its inputs
    total = num_tokens * token * _FLOAT_BYTES
    if shape.experts is not None:
        expert_inner = shape.experts.num_weights_each // (3 * hidden)
        pair = hidden + 3 * expert_inner + max(hidden, expert_inner)
        total += num_tokens * (shape.experts.num_active * pair + hidden) * _FLOAT_BYTES
    return float(total + limits.max_rows * shape.vocab_size * _FLOAT_BYTES)


def _inner_size(shape: ModelShape) -> int:
    """Of the MLP that every token passes."""
    dense = int(shape.num_dense_weights_each) // (3 * shape.hidden_size)
    shared = shape.experts.num_shared_weights // (3 * shape.hidden_size) if shape.experts else 0
    return max(dense, shared)


def _attention_width(layers: AttentionLayers) -> int:
    """Columns of queries, keys, values and what comes of them."""
    cache = layers.cache
    return 2 * _output_width(layers) + 2 * cache.num_kv_heads * cache.key_size


def _output_width(layers: AttentionLayers) -> int:
    return layers.num_heads * layers.cache.key_size
