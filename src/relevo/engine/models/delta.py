"""Decoders of gated delta layers beside layers of full attention: Qwen3-Next, Qwen3.5.

Owns how their config.json becomes a ModelConfig, and what their layers keep: a state of fixed size per sequence, or the
keys and values of every token. Sources: the configuration classes of Hugging Face `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.kv import DTYPE_BYTES, KVGroup
from relevo.core.model import DeltaFiles, ExpertsConfig, GatedDelta, ModelConfig, Routing
from relevo.engine.models.config_fields import ConfigFields, with_defaults
from relevo.engine.models.dense import DenseTraits, load_decoder, read_config
from relevo.engine.models.experts_config import checked_experts
from relevo.engine.models.gguf_names import QWEN3_5_MOE_NAMES, QWEN3_5_NAMES, QWEN3_NEXT_NAMES
from relevo.engine.models.known_fields import refuse_other_values, refuse_unknown
from relevo.engine.models.layer_kinds import FULL, LINEAR, read_layer_kinds
from relevo.engine.models.spec import GgufNames, ModelSpec, Wrapper, text_of_images
from relevo.engine.models.weight_plan import weight_groups

_NAMES = """
    attention_bias attn_output_gate decoder_sparse_step full_attention_interval head_dim hidden_act hidden_size
    intermediate_size layer_types linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads
    linear_num_value_heads linear_value_head_dim mamba_ssm_dtype max_position_embeddings mlp_only_layers
    moe_intermediate_size mtp_num_hidden_layers mtp_use_dedicated_embeddings norm_topk_prob num_attention_heads
    num_experts num_experts_per_tok num_hidden_layers num_key_value_heads num_nextn_predict_layers
    partial_rotary_factor rms_norm_eps rope_parameters rope_scaling rope_theta shared_expert_intermediate_size
    tie_word_embeddings use_sliding_window vocab_size
    """
_READ = frozenset(_NAMES.split())
_IMPLEMENTED: Mapping[str, Any] = {
    "attn_output_gate": True,
    "use_sliding_window": False,
    "mamba_ssm_dtype": "float32",
}
_APART = DeltaFiles()  # as folders of most families have them
_OF_PICTURES = ("mrope_section", "mrope_interleaved")  # positions of text are the same in every section
_SIZES: Mapping[str, Any] = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_OF_EXPERTS: Mapping[str, Any] = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}


def _delta(
    name: str,
    defaults: Mapping[str, Any],
    *,
    has_experts: bool,
    files: DeltaFiles = _APART,
    gguf: GgufNames | None = None,
    wrappers: tuple[Wrapper, ...] = (),
) -> ModelSpec:
    def read(stated: ConfigFields) -> ModelConfig:
        refuse_unknown(stated, _READ)
        fields = with_defaults(_without_pictures(stated), {**_SIZES, **defaults})
        refuse_other_values(fields, _IMPLEMENTED)
        experts = _experts(fields) if has_experts else None
        plain = {key: value for key, value in fields.raw.items() if key not in ("layer_types", "use_sliding_window")}
        traits = DenseTraits(
            qkv_bias="attention_bias", output_bias="attention_bias", qk_norm=True, rotary_fraction=0.25
        )
        config = read_config(name, traits, ConfigFields(plain, fields.origin))
        sizes = _sizes(fields, files)
        return replace(config, experts=experts, delta=sizes, gated_attention=True, norm_offset=1.0)

    return ModelSpec(
        name=name,
        model_types=(name,),
        gguf=gguf,
        read_config=read,
        weights=weight_groups,
        kv_groups=_groups,
        load=load_decoder,
        wrappers=wrappers,
    )


def _groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """The convolution's inputs are kept in the config's dtype."""
    assert config.delta is not None, "the model has states"
    full = tuple(layer for layer in range(config.num_layers) if layer not in config.delta.layers)
    state_bytes = config.delta.state_bytes(DTYPE_BYTES.get(config.dtype, 4))
    states = KVGroup.state(config.delta.layers, state_bytes, num_heads=config.delta.num_key_heads)
    return KVGroup.full(full, config.num_kv_heads, config.head_size), states


def _sizes(fields: ConfigFields, files: DeltaFiles) -> GatedDelta:
    num_layers, interval = fields.integer("num_hidden_layers"), fields.integer("full_attention_interval", 4)
    kinds = read_layer_kinds(fields, (LINEAR,))
    linear = tuple(layer for layer in range(num_layers) if (layer + 1) % interval)
    linear = linear if kinds is None else kinds.get(LINEAR, ())
    if not 0 < len(linear) < num_layers:
        raise UnsupportedModel(
            f"{fields.origin}: {len(linear)} of {num_layers} layers are {LINEAR}; a model of this family has layers of "
            f"both kinds, {LINEAR} and {FULL}"
        )
    delta = GatedDelta(
        layers=linear,
        num_key_heads=fields.integer("linear_num_key_heads"),
        num_value_heads=fields.integer("linear_num_value_heads"),
        key_size=fields.integer("linear_key_head_dim"),
        value_size=fields.integer("linear_value_head_dim"),
        kernel_size=fields.integer("linear_conv_kernel_dim", least=2),
        files=files,
    )
    if delta.num_value_heads % delta.num_key_heads:
        raise ModelFileError(
            f"{fields.origin}: {delta.num_value_heads} linear value heads cannot share {delta.num_key_heads} key heads "
            "evenly; mend it or download it again"
        )
    return delta


def _experts(fields: ConfigFields) -> ExpertsConfig:
    """Every layer has them, and an MLP with a gate that every token passes."""
    plain, step = fields.raw.get("mlp_only_layers"), fields.integer("decoder_sparse_step", 1)
    if plain or step != 1:
        raise UnsupportedModel(f"{fields.origin}: layers without experts beside layers with them are not implemented")
    is_normal = fields.raw.get("norm_topk_prob")
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=tuple(range(fields.integer("num_hidden_layers"))),
            num_experts=fields.integer("num_experts"),
            intermediate_size=fields.integer("moe_intermediate_size"),
            routing=Routing(
                num_active=fields.integer("num_experts_per_tok"),
                normalises=True if is_normal is None else fields.flag("norm_topk_prob"),
            ),
            shared_size=fields.integer("shared_expert_intermediate_size"),
            shared="shared_expert",
            shared_gate="shared_expert_gate",
            stacked_gate_up="gate_up_proj",
        ),
    )


def _without_pictures(fields: ConfigFields) -> ConfigFields:
    stated = dict(fields.raw)
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(stated.get(name), Mapping):
            stated[name] = {key: value for key, value in stated[name].items() if key not in _OF_PICTURES}
    return ConfigFields(stated, fields.origin)


QWEN3_NEXT = _delta(
    "qwen3_next",
    {**_OF_EXPERTS, "num_experts": 512, "num_experts_per_tok": 10, "intermediate_size": 5632},
    has_experts=True,
    files=DeltaFiles(has_inputs_by_head=True, has_gates_by_head=True),
    gguf=QWEN3_NEXT_NAMES,
)
QWEN3_5 = _delta(
    "qwen3_5_text",
    {},
    has_experts=False,
    gguf=QWEN3_5_NAMES,
    wrappers=(text_of_images("qwen3_5", "visual.", "mtp."),),
)
QWEN3_5_MOE = _delta(
    "qwen3_5_moe_text",
    {**_OF_EXPERTS, "num_experts": 256, "num_experts_per_tok": 8, "intermediate_size": 512},
    has_experts=True,
    gguf=QWEN3_5_MOE_NAMES,
    wrappers=(text_of_images("qwen3_5_moe", "visual.", "mtp."),),
)
