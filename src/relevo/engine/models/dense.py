"""Decoders of the Llama kind, with an MLP or with experts: what sets each family apart, and how its config.json becomes
a ModelConfig.

Owns the traits in which these families differ; a family that differs in nothing else is one line of `families.MODELS`.
It does not know files or weights. Source: the config.json fields of Hugging Face `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.kv import KVGroup
from relevo.core.model import ExpertsConfig, ModelConfig
from relevo.engine.models.config_fields import ConfigFields, check_shape
from relevo.engine.models.known_fields import refuse_other_values, refuse_unknown
from relevo.engine.models.layer_kinds import FULL, SLIDING, read_layer_kinds
from relevo.engine.models.rope_config import DEFAULT_THETA, read_rope, read_rotary_size, refuse_partial
from relevo.engine.models.slices import Share
from relevo.engine.models.spec import GgufNames, Model, ModelSpec
from relevo.engine.models.weight_plan import GGUF_IN_LAYER, GGUF_TOP, weight_groups

if TYPE_CHECKING:
    from relevo.engine.ops.protocol import HostTensor, Ops


_NAMES = """
    head_dim hidden_act hidden_size intermediate_size layer_types max_position_embeddings max_window_layers
    num_attention_heads num_hidden_layers num_key_value_heads num_nextn_predict_layers
    original_max_position_embeddings partial_rotary_factor rms_norm_eps rope_parameters rope_scaling rope_theta
    sliding_window tie_word_embeddings use_sliding_window vocab_size
    """
_READ = frozenset(_NAMES.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTraits:
    """Each is True, False, or the name of the config.json field that decides (absent: False)."""

    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool | str = False
    qk_norm_spans_heads: bool = False  # one norm over all heads of a token
    rotary_fraction: float | None = None  # of a head, where the config does not say; None: heads are rotated whole
    default_theta: float = DEFAULT_THETA
    experts: Callable[[ConfigFields], ExpertsConfig | None] = lambda fields: None
    has_sliding_window: bool = False
    default_sliding_window: int | None = None
    window_needs_flag: bool = False  # `use_sliding_window` turns it on, `max_window_layers` limits it to some layers
    default_head_size: int | None = None  # None: hidden_size / num_attention_heads
    also_read: str = ""  # fields of config.json that the family has besides
    only: Mapping[str, Any] = field(default_factory=dict)  # fields of which one value is implemented


def dense(
    name: str,
    traits: DenseTraits,
    *,
    gguf: str | GgufNames | None = None,
    permutes_heads: bool = False,
) -> ModelSpec:
    """The spec of a family with these traits. `name`: its model_type. `gguf`: its architecture in GGUF files
    whose names are those of Llama, or names of its own."""
    names = GgufNames(gguf, GGUF_TOP, GGUF_IN_LAYER, permutes_heads) if isinstance(gguf, str) else gguf
    return ModelSpec(
        name=name,
        model_types=(name,),
        gguf=names,
        read_config=lambda fields: _known_config(name, traits, fields),
        weights=weight_groups,
        kv_groups=one_full_group,
        load=load_decoder,
    )


def one_full_group(config: ModelConfig) -> tuple[KVGroup, ...]:
    """Windows, which all layers have or none, hide keys from queries; the keys are kept."""
    return (KVGroup.full(range(config.num_layers), config.num_kv_heads, config.head_size),)


def load_decoder(
    config: ModelConfig,
    tensors: Iterable[tuple[str, HostTensor]],
    ops: Ops,
    max_model_len: int,
    share: Share | None = None,
    stage: range | None = None,
) -> Model:
    from relevo.engine.models.decoder import Decoder  # numpy

    return Decoder.load(config, tensors, ops, max_model_len, share, stage)


def _known_config(architecture: str, traits: DenseTraits, fields: ConfigFields) -> ModelConfig:
    """Of a config.json all of whose fields are known."""
    only = {"rope_interleaved": False, "use_mrope": False, **traits.only}
    if not traits.window_needs_flag:
        only["use_sliding_window"] = traits.has_sliding_window
    flags = (traits.qkv_bias, traits.output_bias, traits.mlp_bias, traits.qk_norm)
    named = [flag for flag in flags if isinstance(flag, str)]
    refuse_unknown(fields, {*_READ, *named, *only, *traits.also_read.split()})
    refuse_other_values(fields, only)
    return read_config(architecture, traits, fields)


def read_config(architecture: str, traits: DenseTraits, fields: ConfigFields) -> ModelConfig:
    """Of a family with these traits. Raises ModelFileError, UnsupportedModel."""
    _refuse_unsupported(fields)
    return check_shape(_config(architecture, traits, fields), fields.origin)


def _config(architecture: str, traits: DenseTraits, fields: ConfigFields) -> ModelConfig:
    raw, origin = fields.raw, fields.origin
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rope_theta, rope_scaling = read_rope(raw, origin, traits.default_theta)
    if traits.rotary_fraction is None:
        refuse_partial(raw, origin)
    head_size = fields.optional_integer("head_dim") or traits.default_head_size
    if head_size is None and hidden_size % num_heads:
        raise ModelFileError(
            f"{origin}: hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads} and there is no "
            "head_dim; mend it or download it again"
        )

    def trait(value: bool | str) -> bool:
        return value if isinstance(value, bool) else fields.flag(value)

    head_size = hidden_size // num_heads if head_size is None else head_size
    fraction = traits.rotary_fraction
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_size=head_size,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, zero=True),
        rope_theta=rope_theta,
        max_position=fields.integer("max_position_embeddings"),
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=trait(traits.qkv_bias),
        attention_bias=trait(traits.output_bias),
        mlp_bias=trait(traits.mlp_bias),
        qk_norm=trait(traits.qk_norm),
        qk_norm_spans_heads=traits.qk_norm_spans_heads,
        rotary_size=None if fraction is None else read_rotary_size(fields, head_size, fraction),
        experts=traits.experts(fields),
        sliding_window=_sliding_window(architecture, traits, fields),
        num_mtp_layers=fields.integer("num_nextn_predict_layers", 0, least=0),
        dtype=str(next((raw[key] for key in ("dtype", "torch_dtype") if raw.get(key) is not None), "float32")),
    )


def _sliding_window(architecture: str, traits: DenseTraits, fields: ConfigFields) -> int | None:
    """Of all layers; None: none. `layer_types` decides where it is there, whatever else the config says."""
    window = fields.optional_integer("sliding_window")  # a wrong one is refused, also where it is switched off
    if window is None and "sliding_window" not in fields.raw:
        window = traits.default_sliding_window
    is_switched_off = traits.window_needs_flag and not fields.flag("use_sliding_window")
    kind = _kind_of_layers(fields)
    if kind == FULL:
        return None
    if kind == SLIDING:
        if not traits.has_sliding_window:
            raise UnsupportedModel(f"{fields.origin}: a {architecture} model with sliding windows is not implemented")
        if is_switched_off or window is None:
            why = "use_sliding_window is false" if is_switched_off else "sliding_window is null"
            raise ModelFileError(f"{fields.origin}: layer_types asks for sliding windows and {why}; mend one of them")
        return window
    if window is not None and not traits.has_sliding_window:
        raise UnsupportedModel(
            f"{fields.origin}: sliding_window {window} is not implemented for a {architecture} model; null is"
        )
    if is_switched_off or window is None:
        return None
    return window if _begins_at_first_layer(traits, fields) else None


def _begins_at_first_layer(traits: DenseTraits, fields: ConfigFields) -> bool:
    if not traits.window_needs_flag:
        return True
    first, num_layers = fields.integer("max_window_layers", 28, least=0), fields.integer("num_hidden_layers")
    if 0 < first < num_layers:
        raise UnsupportedModel(
            f"{fields.origin}: a sliding window on layers {first} to {num_layers} only is not implemented"
        )
    return first == 0


def _kind_of_layers(fields: ConfigFields) -> str | None:
    """The one kind that `layer_types` names; None: it is not there. Raises UnsupportedModel, ModelFileError."""
    kinds = read_layer_kinds(fields, (SLIDING,))
    if kinds is None:
        return None
    if len(kinds) > 1:
        names = ", ".join(kinds)
        raise UnsupportedModel(f"{fields.origin}: layers of different kinds ({names}) are not implemented")
    return next(iter(kinds))


def _refuse_unsupported(fields: ConfigFields) -> None:
    """Fields that change what the weights mean must not be ignored."""
    activation = fields.raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"{fields.origin}: hidden_act {activation!r} is not implemented; 'silu' is")
