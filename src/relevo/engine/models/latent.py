"""Decoders with multi-head latent attention (MLA): DeepSeek V2 and V3, R1, Kimi K2.

Owns how their config.json becomes a ModelConfig, and what a layer keeps of a token: one latent, and one rotated key for
all heads. Sources: the configuration classes of Hugging Face `transformers`, and the makers' own where these read more.
"""

from __future__ import annotations

from collections.abc import Callable

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.kv import KVGroup
from relevo.core.model import ExpertsConfig, LatentAttention, ModelConfig
from relevo.engine.models.config_fields import ConfigFields, check_shape
from relevo.engine.models.dense import load_decoder
from relevo.engine.models.known_fields import refuse_unknown
from relevo.engine.models.rope_config import read_rope, refuse_partial
from relevo.engine.models.spec import GgufNames, ModelSpec, Wrapper
from relevo.engine.models.weight_plan import weight_groups

_NAMES = """
    attention_bias first_k_dense_replace head_dim hidden_act hidden_size intermediate_size kv_lora_rank
    max_position_embeddings mlp_bias moe_intermediate_size moe_layer_freq n_group n_routed_experts n_shared_experts
    norm_topk_prob num_attention_heads num_experts_per_tok num_hidden_layers num_key_value_heads
    num_nextn_predict_layers original_max_position_embeddings partial_rotary_factor q_lora_rank qk_head_dim
    qk_nope_head_dim qk_rope_head_dim rms_norm_eps rope_interleave rope_parameters rope_scaling rope_theta
    routed_scaling_factor scoring_func tie_word_embeddings topk_group topk_method v_head_dim vocab_size
    """
_READ = frozenset(_NAMES.split())


def latent(
    name: str,
    experts: Callable[[ConfigFields], ExpertsConfig | None],
    *,
    gguf: GgufNames,
    also: tuple[str, ...] = (),
    wrappers: tuple[Wrapper, ...] = (),
) -> ModelSpec:
    """The spec of a family. `also`: other model_types of the same code."""
    return ModelSpec(
        name=name,
        model_types=(name, *also),
        gguf=gguf,
        read_config=lambda fields: check_shape(_read_config(name, experts, fields), fields.origin),
        weights=weight_groups,
        kv_groups=one_latent_group,
        load=load_decoder,
        wrappers=wrappers,
    )


def one_latent_group(config: ModelConfig) -> tuple[KVGroup, ...]:
    assert config.latent is not None, "the model has none"
    return (KVGroup.latent(range(config.num_layers), config.latent.width),)


def _read_config(
    architecture: str, experts: Callable[[ConfigFields], ExpertsConfig | None], fields: ConfigFields
) -> ModelConfig:
    raw, origin = fields.raw, fields.origin
    refuse_unknown(fields, _READ)
    if (activation := raw.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise UnsupportedModel(f"{origin}: hidden_act {activation!r} is not implemented; 'silu' is")
    refuse_partial(raw, origin)
    rope_theta, rope_scaling = read_rope(raw, origin)
    if "mscale_all_dim" in rope_scaling and "factor" not in rope_scaling:
        raise ModelFileError(f"{origin}: a rope scaling has mscale_all_dim and no factor; mend it or download it again")
    num_heads, attention = fields.integer("num_attention_heads"), _attention(fields)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_as_stated(fields, "num_key_value_heads", num_heads, "num_attention_heads"),
        head_size=attention.nope_size + attention.rope_size,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, zero=True),
        rope_theta=rope_theta,
        max_position=fields.integer("max_position_embeddings"),
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        rotary_size=attention.rope_size,
        experts=experts(fields),
        latent=attention,
        num_mtp_layers=fields.integer("num_nextn_predict_layers", 0, least=0),
        dtype=str(next((raw[key] for key in ("dtype", "torch_dtype") if raw.get(key) is not None), "float32")),
    )


def _attention(fields: ConfigFields) -> LatentAttention:
    rope_size, nope_size = fields.integer("qk_rope_head_dim"), fields.integer("qk_nope_head_dim")
    if rope_size % 2:
        raise ModelFileError(f"{fields.origin}: qk_rope_head_dim {rope_size} cannot be rotated in pairs; mend it")
    _as_stated(fields, "head_dim", rope_size, "qk_rope_head_dim")
    _as_stated(fields, "qk_head_dim", rope_size + nope_size, "qk_nope_head_dim + qk_rope_head_dim")
    return LatentAttention(
        latent_size=fields.integer("kv_lora_rank"),
        rope_size=rope_size,
        nope_size=nope_size,
        value_size=fields.integer("v_head_dim"),
        query_rank=fields.optional_integer("q_lora_rank"),
        is_interleaved=fields.raw.get("rope_interleave") is None or fields.flag("rope_interleave"),
    )


def _as_stated(fields: ConfigFields, name: str, follows: int, of: str) -> int:
    """Of a field that another one decides. Raises ModelFileError where they differ."""
    stated = fields.optional_integer(name)
    if stated not in (None, follows):
        raise ModelFileError(f"{fields.origin}: {name} is {stated} and {of} is {follows}; mend one of them")
    return follows
