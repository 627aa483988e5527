"""The table of model families: everything that the rest of the house knows of them.

A family that differs from another in its config only is one entry here (docs/developers/model.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.config_fields import ConfigFields
from relevo.engine.models.delta import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from relevo.engine.models.dense import DenseTraits, dense
from relevo.engine.models.experts_config import (
    deepseek_experts,
    glm_experts,
    minimax_experts,
    mixtral_experts,
    qwen_experts,
)
from relevo.engine.models.gemma import GEMMA3
from relevo.engine.models.gguf_names import (
    DEEPSEEK_V2_NAMES,
    DEEPSEEK_V3_NAMES,
    GLM4_MOE_NAMES,
    MINIMAX_NAMES,
    MIXTRAL_NAMES,
    QWEN3_MOE_NAMES,
)
from relevo.engine.models.gpt_oss import GPT_OSS
from relevo.engine.models.latent import latent
from relevo.engine.models.llama4 import LLAMA4
from relevo.engine.models.quantization import Quantization, quantization_of
from relevo.engine.models.spec import GgufKeys, ModelSpec, Wrapper

_FAMILIES = (
    # SmolLM2, TinyLlama and others are stored under this name, and Mistral in GGUF files.
    dense(
        "llama",
        DenseTraits(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
        gguf="llama",
        permutes_heads=True,
    ),
    dense("mistral", DenseTraits(has_sliding_window=True, default_sliding_window=4096)),
    dense(
        "qwen2",
        DenseTraits(qkv_bias=True, has_sliding_window=True, default_sliding_window=4096, window_needs_flag=True),
        gguf="qwen2",
    ),
    dense(
        "qwen3",
        DenseTraits(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm=True,
            has_sliding_window=True,
            default_sliding_window=4096,
            window_needs_flag=True,
            default_head_size=128,
        ),
        gguf="qwen3",
    ),
    dense(
        "mixtral",
        DenseTraits(
            has_sliding_window=True,
            default_theta=1e6,
            experts=mixtral_experts,
            also_read="num_experts_per_tok num_local_experts",
        ),
        gguf=MIXTRAL_NAMES,
    ),
    dense(
        "qwen3_moe",
        DenseTraits(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            qk_norm=True,
            has_sliding_window=True,
            default_sliding_window=4096,
            window_needs_flag=True,
            experts=qwen_experts,
            also_read="decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts"
            " num_experts_per_tok num_local_experts",
            only={"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True},
        ),
        gguf=QWEN3_MOE_NAMES,
    ),
    dense(
        "glm4_moe",
        DenseTraits(
            qkv_bias="attention_bias",
            qk_norm="use_qk_norm",
            rotary_fraction=0.5,
            experts=glm_experts,
            also_read="first_k_dense_replace moe_intermediate_size n_group n_routed_experts n_shared_experts"
            " norm_topk_prob num_experts_per_tok num_local_experts rotary_dim routed_scaling_factor topk_group",
        ),
        gguf=GLM4_MOE_NAMES,
    ),
    dense(
        "minimax_m2",
        DenseTraits(
            qk_norm=True,
            qk_norm_spans_heads=True,
            rotary_fraction=1.0,
            default_theta=5e6,
            default_head_size=128,
            experts=minimax_experts,
            # Layers that draft are not computed.
            also_read="attn_type_list mtp_transformer_layers num_experts_per_tok num_local_experts num_mtp_modules"
            " rotary_dim scoring_func use_mtp",
            only={
                "qk_norm_type": "per_layer",
                "shared_intermediate_size": 0,
                "use_qk_norm": True,
                "use_routing_bias": True,
            },
        ),
        gguf=MINIMAX_NAMES,
    ),
    latent("deepseek_v2", partial(deepseek_experts, scoring="softmax"), gguf=DEEPSEEK_V2_NAMES),
    latent(
        "deepseek_v3",
        deepseek_experts,
        gguf=DEEPSEEK_V3_NAMES,
        also=("kimi_k2",),
        wrappers=(
            Wrapper(
                "kimi_k25",
                {"language_model.": "", "model.language_model.": "model."},
                ("vision_tower.", "mm_projector.", "model.vision_tower.", "model.mm_projector."),
            ),
        ),
    ),
    GEMMA3,
    GPT_OSS,
    LLAMA4,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
)
MODELS = {spec.name: spec for spec in _FAMILIES}  # by ModelConfig.architecture


def spec_of(config: ModelConfig) -> ModelSpec:
    return MODELS[config.architecture]


def spec_of_gguf(architecture: str, keys: GgufKeys) -> ModelSpec:
    """Raises UnsupportedModel."""
    named = [(spec, spec.gguf) for spec in MODELS.values() if spec.gguf is not None]
    found = [(spec, names) for spec, names in named if names.architecture == architecture]
    if not found:
        known = ", ".join(dict.fromkeys(names.architecture for _, names in named))
        raise UnsupportedModel(f"{keys.origin}: architecture {architecture!r} is not implemented; one of {known} is")
    has_experts = bool(keys.get("expert_count", 0))
    meant = (spec for spec, names in found if names.has_experts in (None, has_experts) and names.is_meant(keys))
    if (spec := next(meant, None)) is None:
        with_them = "with" if has_experts else "without"
        raise UnsupportedModel(f"{keys.origin}: architecture {architecture!r} {with_them} experts is not implemented")
    return spec


def config_from_hf(raw: Mapping[str, Any], origin: str) -> ModelConfig:
    """`raw` is config.json, `origin` names it in errors. Of a model of more than text, the text part's. Raises
    ModelFileError, UnsupportedModel."""
    quantization_of_model(raw, origin)
    model_type = str(raw.get("model_type", ""))
    found = {name: spec for spec in MODELS.values() for name in spec.model_types}
    wrapped = {each.model_type: spec for spec in MODELS.values() for each in spec.wrappers}
    if model_type in wrapped:
        raw, origin = _text_config(raw, wrapped[model_type], origin), f"{origin}: text_config"
        model_type = str(raw["model_type"])
    if model_type not in found:
        known = ", ".join((*wrapped, *found))
        raise UnsupportedModel(f"{origin}: model_type {model_type!r} is not implemented; one of {known} is")
    return found[model_type].read_config(ConfigFields(raw, origin))


def wrapper_of(raw: Mapping[str, Any]) -> Wrapper | None:
    """Of a config.json; None: its folder has a text model only."""
    wrappers = [each for spec in MODELS.values() for each in spec.wrappers]
    return next((each for each in wrappers if each.model_type == raw.get("model_type")), None)


def _text_config(raw: Mapping[str, Any], spec: ModelSpec, origin: str) -> Mapping[str, Any]:
    text = raw.get("text_config")
    if not isinstance(text, Mapping):
        raise ModelFileError(f"{origin}: text_config is missing; download the file again")
    if text.get("model_type") not in spec.model_types:
        known = ", ".join(spec.model_types)
        raise UnsupportedModel(
            f"{origin}: text_config has model_type {text.get('model_type')!r}, which is not implemented here; one of "
            f"{known} is"
        )
    return text


def quantization_of_model(raw: Mapping[str, Any], origin: str) -> Quantization | None:
    """Of a config.json, or of its text part; None also where the family reads its own way of storing weights. Raises
    ModelFileError, UnsupportedModel."""
    places = [place for place in (raw, raw.get("text_config")) if isinstance(place, Mapping)]
    types = {place.get("model_type") for place in places}
    own = {method for spec in MODELS.values() if types.intersection(spec.model_types) for method in spec.quantizations}
    read = [quantization_of(place, origin) for place in places if _method(place) not in own]
    return next((each for each in read if each is not None), None)


def _method(raw: Mapping[str, Any]) -> Any:
    stated = raw.get("quantization_config")
    return stated.get("quant_method") if isinstance(stated, Mapping) else None
