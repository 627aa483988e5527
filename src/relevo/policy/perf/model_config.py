"""From a Hugging Face `config.json` to a `ModelShape`.

Owns which families are known and how each one's config names what they share. A family whose attention or experts are
built otherwise is refused in one sentence: a wrong shape would be a wrong answer of the planner that nothing shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relevo.core.errors import UnsupportedModel
from relevo.core.kv import KVGroup, KVKind
from relevo.policy.perf.model_shape import (
    INDEXER_LAUNCHES,
    LATENT_LAUNCHES,
    STATE_LAUNCHES,
    AttentionLayers,
    Experts,
    ModelShape,
)
from relevo.policy.perf.weight_formats import WeightFormats, weight_formats

Config = Mapping[str, Any]

_INDEX_SCALE_BYTES = 4  # float32 per token beside an 8-bit indexer key


_NEEDED = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads")
_ABOVE_ZERO = (  # what is divided by; a family's config has some of them, as of those below
    *_NEEDED,
    "num_key_value_heads",
    "head_dim",
    "sliding_window_pattern",
    "full_attention_interval",
    "decoder_sparse_step",
    "moe_layer_freq",
    "interleave_moe_layer_step",
)
_AT_LEAST_ZERO = (
    "intermediate_size",
    "intermediate_size_mlp",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "n_routed_experts",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "experts_per_token",
    "max_position_embeddings",
    "first_k_dense_replace",
    "sliding_window",
    "attention_chunk_size",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "index_topk",
    "index_n_heads",
    "index_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
_MOST_LAYERS, _LARGEST = 10_000, 2**31  # arbitrary
_DEFAULTS: Mapping[str, Config] = {  # released configs leave out what is the family's
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
}


def model_shape(name: str, config: Config, formats: WeightFormats | None = None) -> ModelShape:
    """`formats`: how the weights are stored, where not as the config says. Of a model with vision the text part.
    Raises UnsupportedModel."""
    try:
        text: Config = {**config, **(config.get("text_config") or {})}
        text = {**_DEFAULTS.get(str(text.get("model_type", "")), {}), **text}
        return _shape(name, text, formats)
    except KeyError as error:
        raise UnsupportedModel(f"{name}: the config of the model has no {error}; give the one it came with") from error
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise UnsupportedModel(f"{name}: not the config of a model ({error}); give the one it came with") from error


def _check_numbers(text: Config) -> None:
    """Raises ValueError for a size or a count that is none."""
    for key in (*_ABOVE_ZERO, *_AT_LEAST_ZERO):
        value, least = text[key] if key in _NEEDED else text.get(key), int(key in _ABOVE_ZERO)
        most = _MOST_LAYERS if key == "num_hidden_layers" else _LARGEST
        if (value is not None or key in _NEEDED) and (not isinstance(value, int) or not least <= value <= most):
            raise ValueError(f"{key} is {str(value)[:40]}; expected a whole number from {least} to {most}")


def _shape(name: str, text: Config, formats: WeightFormats | None) -> ModelShape:
    family = str(text.get("model_type", ""))
    attention_of = _ATTENTION.get(family)
    if attention_of is None:
        known = ", ".join(sorted(_ATTENTION))
        raise UnsupportedModel(f"{name}: the shape of model_type {family!r} is not known; known are {known}")
    _check_numbers(text)
    experts = _experts(text, family)
    num_dense_layers = text["num_hidden_layers"] - (experts.num_layers if experts else 0)
    dense_size = text.get("intermediate_size_mlp") if family == "llama4_text" else text.get("intermediate_size")
    return ModelShape(
        name=name,
        hidden_size=text["hidden_size"],
        vocab_size=text["vocab_size"],
        is_tied=bool(text.get("tie_word_embeddings", False)),
        attention=attention_of(text),
        num_dense_weights=num_dense_layers * 3 * text["hidden_size"] * (dense_size or 0),
        experts=experts,
        formats=formats or weight_formats(text.get("quantization_config")),
        max_context=text.get("max_position_embeddings") or 0,
    )


def _head_size(text: Config) -> int:
    size = int(text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"])
    if size < 1:
        raise ValueError(f"{text['num_attention_heads']} heads share a hidden_size of {text['hidden_size']}")
    return size


def _full(text: Config, layers: Sequence[int]) -> KVGroup:
    return KVGroup.full(layers, text.get("num_key_value_heads", text["num_attention_heads"]), _head_size(text))


def _grouped(text: Config, cache: KVGroup) -> AttentionLayers:
    """Attention with heads that share keys and values (GQA)."""
    num_heads, num_kv_heads = text["num_attention_heads"], cache.num_kv_heads
    size, hidden = cache.key_size, text["hidden_size"]
    num_queries = num_heads * (2 if text.get("attn_output_gate") else 1)
    pair = 2 * num_heads * size
    return AttentionLayers(
        cache=cache,
        num_weights=hidden * size * (num_queries + 2 * num_kv_heads + num_heads),
        products_per_decode_pair=pair,
        products_per_prefill_pair=pair,
        num_heads=num_heads,
    )


def _uniform(text: Config) -> tuple[AttentionLayers, ...]:
    window = text.get("sliding_window") if text.get("use_sliding_window", True) else None
    cache = _full(text, range(text["num_hidden_layers"]))
    if window and text.get("model_type") in ("mistral", "mixtral"):
        return (_grouped(text, cache.bounded(KVKind.WINDOW, window)),)
    return (_grouped(text, cache),)


def _windowed(text: Config) -> tuple[AttentionLayers, ...]:
    """Layers of which some see a window, as `layer_types` says (gpt-oss, Gemma 3)."""
    num_layers, pattern = text["num_hidden_layers"], text.get("sliding_window_pattern", 6)
    types = text.get("layer_types") or [
        "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention" for layer in range(num_layers)
    ]
    full, sliding = _split(num_layers, lambda layer: types[layer] == "full_attention")
    return (
        _grouped(text, _full(text, full)),
        _grouped(text, _full(text, sliding).bounded(KVKind.WINDOW, text["sliding_window"])),
    )


def _llama4(text: Config) -> tuple[AttentionLayers, ...]:
    """Every fourth layer sees everything, the others their own chunk."""
    full, local = _split(text["num_hidden_layers"], lambda layer: layer % 4 == 3)
    return (
        _grouped(text, _full(text, full)),
        _grouped(text, _full(text, local).bounded(KVKind.CHUNK, text["attention_chunk_size"])),
    )


def _latent(text: Config) -> tuple[AttentionLayers, ...]:
    """MLA; with `index_topk` sparse attention over the latents (DSA)."""
    hidden, num_heads = text["hidden_size"], text["num_attention_heads"]
    latent, rope, nope, value = (
        text[key] for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    query_rank = text.get("q_lora_rank")
    replicated = hidden * (latent + rope) + (hidden * query_rank if query_rank else 0)
    split = (query_rank or hidden) * num_heads * (nope + rope)
    split += latent * num_heads * (nope + value) + num_heads * value * hidden
    index_heads, index_size = text.get("index_n_heads", 0), text.get("index_head_dim", 0)
    if text.get("index_topk"):
        replicated += query_rank * index_heads * index_size + hidden * (index_size + index_heads)
    layers = AttentionLayers(
        cache=KVGroup.latent(
            range(text["num_hidden_layers"]),
            latent + rope,
            index_bytes=index_size + _INDEX_SCALE_BYTES if text.get("index_topk") else 0,
        ),
        num_weights=split,
        num_replicated_weights=replicated,
        products_per_decode_pair=num_heads * (2 * latent + rope),
        products_per_prefill_pair=num_heads * (nope + rope + value),
        num_selected=text.get("index_topk"),
        index_products_per_pair=index_heads * index_size,
        num_launches=LATENT_LAUNCHES + (INDEXER_LAUNCHES if text.get("index_topk") else 0),
        num_heads=num_heads,
    )
    return (layers,)


def _hybrid(text: Config) -> tuple[AttentionLayers, ...]:
    """Gated-delta layers with a state, every `full_attention_interval`-th layer sees everything (Qwen3-Next, 3.5)."""
    num_layers, hidden = text["num_hidden_layers"], text["hidden_size"]
    types, interval = text.get("layer_types"), text.get("full_attention_interval", 4)
    full, linear = _split(
        num_layers, lambda layer: types[layer] == "full_attention" if types else (layer + 1) % interval == 0
    )
    key_heads, value_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    key_size, value_size = text["linear_key_head_dim"], text["linear_value_head_dim"]
    num_keys, num_values = key_heads * key_size, value_heads * value_size
    conv_values = (2 * num_keys + num_values) * (text["linear_conv_kernel_dim"] - 1)
    state = AttentionLayers(
        cache=KVGroup.state(linear, value_heads * key_size * value_size * 4 + conv_values * 2, num_heads=key_heads),
        num_weights=hidden * (2 * num_keys + 2 * num_values + 2 * value_heads) + num_values * hidden,
        num_launches=STATE_LAUNCHES,
        num_heads=value_heads,
    )
    return (_grouped({"attn_output_gate": True, **text}, _full(text, full)), state)


def _split(num_layers: int, is_full: Callable[[int], bool]) -> tuple[list[int], list[int]]:
    layers = range(num_layers)
    return [layer for layer in layers if is_full(layer)], [layer for layer in layers if not is_full(layer)]


_ATTENTION: dict[str, Callable[[Config], tuple[AttentionLayers, ...]]] = {
    "llama": _uniform,
    "mistral": _uniform,
    "mixtral": _uniform,
    "qwen2": _uniform,
    "qwen3": _uniform,
    "qwen3_moe": _uniform,
    "qwen3_vl_text": _uniform,
    "qwen3_vl_moe_text": _uniform,
    "glm4_moe": _uniform,
    "minimax_m2": _uniform,
    "gpt_oss": _windowed,
    "gemma3_text": _windowed,
    "llama4_text": _llama4,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "deepseek_v32": _latent,
    "kimi_k2": _latent,
    "glm_moe_dsa": _latent,
    "qwen3_next": _hybrid,
    "qwen3_5_text": _hybrid,
    "qwen3_5_moe_text": _hybrid,
}


def _experts(text: Config, family: str) -> Experts | None:
    num_experts = text.get("n_routed_experts") or text.get("num_local_experts") or text.get("num_experts")
    if not num_experts:
        return None
    hidden, num_layers = text["hidden_size"], text["num_hidden_layers"]
    size = text.get("moe_intermediate_size") or text["intermediate_size"]
    if family == "llama4_text":
        shared = size
    else:
        shared = text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * size
    num_active = text.get("num_experts_per_tok") or text["experts_per_token"]
    if num_active > num_experts:
        raise ValueError(f"{num_active} of {num_experts} experts are used")
    return Experts(
        layers=_expert_layers(text, num_layers),
        num_experts=num_experts,
        num_active=num_active,
        num_weights_each=3 * hidden * size,
        num_shared_weights=3 * hidden * shared,
        num_router_weights=hidden * num_experts,
    )


def _expert_layers(text: Config, num_layers: int) -> tuple[int, ...]:
    """Layers with experts in place of an MLP."""
    if "first_k_dense_replace" in text:
        first = int(text["first_k_dense_replace"])
        if first > num_layers:
            raise ValueError(f"first_k_dense_replace is {first} and there are {num_layers} layers")
        step = int(text.get("moe_layer_freq") or 1)
        return tuple(layer for layer in range(first, num_layers) if layer % step == 0)
    if "interleave_moe_layer_step" in text:
        step = int(text["interleave_moe_layer_step"])
        return tuple(range(step - 1, num_layers, step))
    step, plain = int(text.get("decoder_sparse_step", 1)), set(text.get("mlp_only_layers") or ())
    return tuple(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in plain)
