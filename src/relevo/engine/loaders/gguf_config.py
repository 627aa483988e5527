"""The keys of a GGUF file as a ModelConfig, for the families that are read key by key.

Owns the defaults that llama.cpp gives keys that are not there. Families that read a file's keys as fields of their
config.json are `models.gguf_fields`'.
"""

from __future__ import annotations

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ExpertsConfig, ModelConfig
from relevo.engine.loaders.gguf_keys import GgufKeys
from relevo.engine.models.config_fields import ConfigFields, check_shape
from relevo.engine.models.experts_config import EXPERTS
from relevo.engine.models.gguf_rope import refuse_magnitude, rope_scaling
from relevo.engine.models.rope_config import checked_scaling
from relevo.engine.models.spec import GgufNames, ModelSpec


def read_config(spec: ModelSpec, names: GgufNames, keys: GgufKeys) -> ModelConfig:
    """Raises ModelFileError, UnsupportedModel."""
    if keys.shape("token_embd.weight") is None:
        raise ModelFileError(f"{keys.origin} lacks the tensor token_embd.weight; it is not a language model")
    if names.config_fields is None:
        return names.complete(_config(keys, spec.name), keys)
    config = spec.read_config(ConfigFields(names.config_fields(keys), keys.origin))
    keys.refuse_unread()
    return names.complete(config, keys)


def _config(keys: GgufKeys, family: str) -> ModelConfig:
    hidden_size, num_heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_size = keys.count("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.get(key, head_size) != head_size:
            raise UnsupportedModel(f"{keys.origin}: {key} {keys.get(key)} differs from the head size {head_size}")
    refuse_magnitude(keys)
    config = ModelConfig(
        architecture=family,
        vocab_size=(keys.shape("token_embd.weight") or (0,))[0],
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length"),
        num_layers=keys.count("block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.count("attention.head_count_kv", num_heads),
        head_size=head_size,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", zero=True),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        max_position=keys.count("context_length"),
        rope_scaling=checked_scaling(rope_scaling(keys), keys.origin),
        tie_word_embeddings=keys.shape("output.weight") is None,
        qkv_bias=keys.shape("blk.0.attn_q.bias") is not None,
        attention_bias=keys.shape("blk.0.attn_output.bias") is not None,
        mlp_bias=keys.shape("blk.0.ffn_down.bias") is not None,
        qk_norm=keys.shape("blk.0.attn_q_norm.weight") is not None,
        experts=_experts(keys, family),
        sliding_window=keys.fields("attention.sliding_window").optional_integer("attention.sliding_window"),
    )
    return check_shape(config, keys.origin)


def _experts(keys: GgufKeys, family: str) -> ExpertsConfig | None:
    """What the file says of experts; the rest is the family's."""
    if not keys.get("expert_count", 0):
        return None
    for key in ("expert_shared_count", "expert_shared_feed_forward_length"):
        if keys.get(key, 0):
            raise UnsupportedModel(f"{keys.origin}: {key} {keys.get(key)} is not implemented for this architecture")
    stated = {
        "num_hidden_layers": keys.count("block_count"),
        "num_local_experts": keys.count("expert_count"),
        "num_experts_per_tok": keys.count("expert_used_count"),
        "intermediate_size": keys.count("feed_forward_length"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length", keys.count("feed_forward_length")),
        "norm_topk_prob": True,  # as llama.cpp computes every file of these architectures
    }
    experts = EXPERTS[family](ConfigFields(stated, keys.origin))
    if (scale := keys.get("expert_weights_scale", 0)) not in (0, 1):
        raise UnsupportedModel(f"{keys.origin}: expert_weights_scale {scale} is not implemented for this architecture")
    gating = keys.get("expert_gating_func", 0)
    if experts is not None and gating not in (0, {"softmax": 1, "sigmoid": 2}[experts.routing.scoring]):
        raise UnsupportedModel(f"{keys.origin}: expert_gating_func {gating} is not what a {family} model has")
    return experts
