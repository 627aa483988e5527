"""What config.json says of experts, in each family's words.

Owns the defaults that differ between families: where a field is absent, the family decides what is meant. Sources: the
configuration and router classes of Hugging Face `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ExpertsConfig, Routing
from relevo.engine.models.config_fields import ConfigFields

_MIXTRAL_PROJECTIONS = ("w1", "w3", "w2")


def mixtral_experts(fields: ConfigFields) -> ExpertsConfig:
    """Every layer has experts of the size that other families give their MLP."""
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=tuple(range(fields.integer("num_hidden_layers"))),
            num_experts=fields.integer("num_local_experts", 8),
            intermediate_size=fields.integer("intermediate_size"),
            routing=Routing(num_active=fields.integer("num_experts_per_tok", 2)),
            block="block_sparse_moe",
            projections=_MIXTRAL_PROJECTIONS,
        ),
    )


def minimax_experts(fields: ConfigFields) -> ExpertsConfig:
    """As Mixtral's, with sigmoids and a bias of choice. Released configs say the scoring."""
    if (scoring := fields.raw.get("scoring_func", "sigmoid")) != "sigmoid":
        raise UnsupportedModel(f"{fields.origin}: scoring_func {scoring!r} is not implemented here; 'sigmoid' is")
    if any(kind != 1 for kind in fields.raw.get("attn_type_list") or ()):
        raise UnsupportedModel(
            f"{fields.origin}: attn_type_list has other kinds than 1, which is all that there is here"
        )
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=tuple(range(fields.integer("num_hidden_layers"))),
            num_experts=fields.integer("num_local_experts", 256),
            intermediate_size=fields.integer("intermediate_size"),
            routing=Routing(num_active=fields.integer("num_experts_per_tok", 8), scoring="sigmoid", has_bias=True),
            block="block_sparse_moe",
            projections=_MIXTRAL_PROJECTIONS,
            bias="e_score_correction_bias",
        ),
    )


def qwen_experts(fields: ConfigFields) -> ExpertsConfig | None:
    """Some layers may have an MLP instead. None: all have."""
    num_layers, step = fields.integer("num_hidden_layers"), fields.integer("decoder_sparse_step", 1)
    plain = fields.raw.get("mlp_only_layers") or ()
    if not isinstance(plain, list | tuple) or not all(isinstance(layer, int) for layer in plain):
        raise ModelFileError(f"{fields.origin}: mlp_only_layers is {plain!r} and must be a list of layers; mend it")
    layers = tuple(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in plain)
    if not layers:
        return None
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=layers,
            num_experts=_either(fields, "num_experts", "num_local_experts", 128),
            intermediate_size=fields.integer("moe_intermediate_size", 768),
            routing=Routing(
                num_active=fields.integer("num_experts_per_tok", 8), normalises=fields.flag("norm_topk_prob")
            ),
        ),
    )


def glm_experts(fields: ConfigFields) -> ExpertsConfig | None:
    """DeepSeek's router over GLM's attention: sigmoids, groups, a shared MLP. None: all layers have an MLP only."""
    num_layers, first = fields.integer("num_hidden_layers"), fields.integer("first_k_dense_replace", 1, least=0)
    if first >= num_layers:
        return None
    size = fields.integer("moe_intermediate_size", 1408)
    is_normal = fields.raw.get("norm_topk_prob")
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=tuple(range(first, num_layers)),
            num_experts=_either(fields, "n_routed_experts", "num_local_experts", 128),
            intermediate_size=size,
            routing=Routing(
                num_active=fields.integer("num_experts_per_tok", 8),
                scoring="sigmoid",
                normalises=True if is_normal is None else fields.flag("norm_topk_prob"),
                scale=fields.number("routed_scaling_factor", 1.0),
                has_bias=True,
                num_groups=fields.integer("n_group", 1),
                num_used_groups=fields.integer("topk_group", 1),
            ),
            shared_size=size * fields.integer("n_shared_experts", 1, least=0),
        ),
    )


def deepseek_experts(fields: ConfigFields, *, scoring: str = "sigmoid") -> ExpertsConfig | None:
    """Of V2 (softmax, no bias) and V3 (sigmoids, a bias of choice). None: all layers have an MLP only."""
    if (stated := fields.raw.get("scoring_func", scoring)) != scoring:
        raise UnsupportedModel(f"{fields.origin}: scoring_func {stated!r} is not implemented here; {scoring!r} is")
    methods = {"sigmoid": ("noaux_tc",), "softmax": ("greedy", "group_limited_greedy")}[scoring]
    if (method := fields.raw.get("topk_method") or methods[0]) not in methods:
        known = " and ".join(map(repr, methods))
        raise UnsupportedModel(f"{fields.origin}: topk_method {method!r} is not implemented here; of {known} one is")
    normalises = fields.flag("norm_topk_prob")
    if normalises and scoring == "softmax":
        raise UnsupportedModel(f"{fields.origin}: norm_topk_prob true is not implemented for this family; false is")
    num_layers, first = fields.integer("num_hidden_layers"), fields.integer("first_k_dense_replace", least=0)
    step = fields.integer("moe_layer_freq", 1)
    layers = tuple(layer for layer in range(first, num_layers) if layer % step == 0)
    if not layers or fields.optional_integer("n_routed_experts") is None:
        return None
    size, has_groups = fields.integer("moe_intermediate_size"), method != "greedy"
    return checked_experts(
        fields,
        ExpertsConfig(
            layers=layers,
            num_experts=fields.integer("n_routed_experts"),
            intermediate_size=size,
            routing=Routing(
                num_active=fields.integer("num_experts_per_tok"),
                scoring=scoring,
                normalises=normalises,
                scale=fields.number("routed_scaling_factor", 1.0),
                has_bias=scoring == "sigmoid",
                num_groups=fields.integer("n_group", 1) if has_groups else 1,
                num_used_groups=fields.integer("topk_group", 1) if has_groups else 1,
                group_sum_of=2 if scoring == "sigmoid" else 1,
            ),
            shared_size=size * (fields.optional_integer("n_shared_experts", least=0) or 0),
        ),
    )


def _either(fields: ConfigFields, name: str, other: str, default: int) -> int:
    """A count that is spelled in two ways. Raises ModelFileError where they differ."""
    stated = {value for key in (name, other) if (value := fields.optional_integer(key)) is not None}
    if len(stated) > 1:
        raise ModelFileError(
            f"{fields.origin}: {name} and {other} say {' and '.join(map(str, sorted(stated)))}; leave one"
        )
    return stated.pop() if stated else default


def checked_experts(fields: ConfigFields, experts: ExpertsConfig) -> ExpertsConfig:
    """Raises ModelFileError for counts that do not go together."""
    routing, origin = experts.routing, fields.origin
    if routing.num_active > experts.num_experts:
        raise ModelFileError(f"{origin}: {routing.num_active} of {experts.num_experts} experts are used; mend it")
    if experts.num_experts % routing.num_groups:
        raise ModelFileError(
            f"{origin}: {experts.num_experts} experts cannot be {routing.num_groups} equal groups; mend n_group"
        )
    can_be_chosen = routing.num_used_groups * (experts.num_experts // routing.num_groups)
    if routing.num_used_groups > routing.num_groups or can_be_chosen < routing.num_active:
        raise ModelFileError(
            f"{origin}: topk_group {routing.num_used_groups} of n_group {routing.num_groups} leaves too few experts to "
            f"choose {routing.num_active} from; mend it"
        )
    return experts


EXPERTS: Mapping[str, Callable[[ConfigFields], ExpertsConfig | None]] = {
    "mixtral": mixtral_experts,
    "qwen3_moe": qwen_experts,
    "glm4_moe": glm_experts,
    "minimax_m2": minimax_experts,
}
