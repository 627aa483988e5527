"""Keys of GGUF files as the fields of config.json that they were made from, for families with fields of their own.

Owns, by family, what llama.cpp's converter calls the fields, and what it leaves out because its reader knows it; the
family's reading of config.json does the rest. A key that contradicts another is refused here. Sources: llama.cpp's
converter and the readers of its architectures.
"""

from __future__ import annotations

from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.models.gguf_rope import rope_scaling, stated_magnitude
from relevo.engine.models.layer_kinds import FULL, LINEAR, SLIDING
from relevo.engine.models.spec import GgufKeys

SOFTMAX, SIGMOID = 1, 2  # expert_gating_func; 0 or absent: the architecture's own
Fields = dict[str, Any]
# How experts are grouped, by their number: files of before September 2025 do not say it, of the models that there were.
_GROUPS = {64: (1, 1), 160: (8, 3), 256: (8, 4), 384: (1, 1)}
_CHUNK = 8192  # of Llama 4, whatever its files say
_UNIT_NORMS = {16: True, 128: False}  # Llama 4 Scout and Maverick, by number of experts: files do not say


def _common(keys: GgufKeys, *, has_mlp: bool = True) -> Fields:
    drafting = keys.fields("nextn_predict_layers").integer("nextn_predict_layers", 0, least=0)
    embedding = keys.shape("token_embd.weight")
    return {
        "vocab_size": None if embedding is None else embedding[0],
        "hidden_size": keys.count("embedding_length"),
        "intermediate_size": keys.count("feed_forward_length") if has_mlp else keys.get("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count") - drafting,
        "num_nextn_predict_layers": drafting or None,
        "num_attention_heads": keys.count("attention.head_count"),
        "num_key_value_heads": keys.count("attention.head_count_kv"),
        "rms_norm_eps": keys.decimal("attention.layer_norm_rms_epsilon", zero=True),
        "rope_theta": keys.decimal("rope.freq_base", 10000.0),
        "rope_scaling": rope_scaling(keys) or {"rope_type": "default"},
        "max_position_embeddings": keys.count("context_length"),
        "tie_word_embeddings": keys.shape("output.weight") is None,
    }


def _heads(keys: GgufKeys, *, rotates_part: bool = False) -> Fields:
    """Of attention with keys and values of its own."""
    size = keys.count("attention.key_length")
    _same(keys, "attention.value_length", size)
    if not rotates_part:
        _same(keys, "rope.dimension_count", size)
        return {"head_dim": size}
    return {"head_dim": size, "rotary_dim": keys.count("rope.dimension_count", size)}


def _routed(keys: GgufKeys) -> Fields:
    """Of routers with weights that may be scaled."""
    return {
        "num_experts_per_tok": keys.count("expert_used_count") if keys.get("expert_count", 0) else None,
        "routed_scaling_factor": keys.decimal("expert_weights_scale", 1.0, zero=True) or 1.0,
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
    }


def _same(keys: GgufKeys, key: str, follows: Any) -> None:
    """Of a key that another one decides. Raises UnsupportedModel where they differ."""
    if (stated := keys.get(key, follows)) != follows:
        raise UnsupportedModel(f"{keys.origin}: {key} is {stated} and not {follows}, which is not implemented")


def deepseek_fields(keys: GgufKeys) -> Fields:
    """Newer files have the sizes of the absorbed computation, with those of the heads under names of their own."""
    fields, rank, rope = _common(keys), keys.count("attention.kv_lora_rank"), keys.count("rope.dimension_count")
    mla = "_mla" if keys.get("attention.key_length_mla") is not None else ""
    if mla:
        _same(keys, "attention.key_length", rank + rope)
        _same(keys, "attention.value_length", rank)
        _same(keys, "attention.head_count_kv", 1)
    query, value = keys.count(f"attention.key_length{mla}"), keys.count(f"attention.value_length{mla}")
    if query <= rope:
        raise ModelFileError(
            f"{keys.origin}: attention.key_length{mla} is {query} and {rope} of it are rotated; convert it anew"
        )
    if (magnitude := stated_magnitude(keys)) is not None and "factor" in fields["rope_scaling"]:
        fields["rope_scaling"] |= {"mscale": magnitude, "mscale_all_dim": magnitude}
    fields |= {
        "num_key_value_heads": fields["num_attention_heads"] if mla else fields["num_key_value_heads"],
        "q_lora_rank": keys.get("attention.q_lora_rank") or None,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": query - rope,
        "v_head_dim": value,
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "n_routed_experts": keys.get("expert_count") or None,
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "n_shared_experts": keys.get("expert_shared_count", 0),
    }
    return fields | _routed(keys) | (_groups(keys) if fields["n_routed_experts"] else {})


def _groups(keys: GgufKeys) -> Fields:
    scoring = "sigmoid" if has_sigmoids(keys) else "softmax"
    count, known = keys.get("expert_group_count"), _GROUPS.get(keys.count("expert_count"))
    if count is None and known is None:
        raise ModelFileError(
            f"{keys.origin} lacks the key deepseek2.expert_group_count, and {keys.count('expert_count')} experts are "
            "those of no model that was converted before it was written; convert it anew"
        )
    groups, used = known or (1, 1)
    if count is not None:
        groups, used = keys.count("expert_group_count"), keys.count("expert_group_used_count")
    method = "noaux_tc" if scoring == "sigmoid" else "greedy" if groups == 1 else "group_limited_greedy"
    return {"scoring_func": scoring, "topk_method": method, "n_group": groups, "topk_group": used}


def has_sigmoids(keys: GgufKeys) -> bool:
    """Of a deepseek2 file: V3 and what is like it; V2 has softmax, which its first files do not say."""
    gating = keys.get("expert_gating_func", 0)
    if gating not in (0, SOFTMAX, SIGMOID):
        raise UnsupportedModel(f"{keys.origin}: expert_gating_func {gating} is not implemented; 1 and 2 are")
    return bool(gating == SIGMOID)


def glm_fields(keys: GgufKeys) -> Fields:
    _gating(keys, SIGMOID)
    keys.need("expert_weights_norm")
    return (
        _common(keys)
        | _heads(keys, rotates_part=True)
        | _routed(keys)
        | {
            "attention_bias": keys.shape("blk.0.attn_q.bias") is not None,
            "use_qk_norm": keys.shape("blk.0.attn_q_norm.weight") is not None,
            "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
            "n_routed_experts": keys.count("expert_count"),
            "moe_intermediate_size": keys.count("expert_feed_forward_length"),
            "n_shared_experts": keys.get("expert_shared_count", 0),
            "n_group": keys.count("expert_group_count", 1),
            "topk_group": keys.count("expert_group_used_count", 1),
        }
    )


def minimax_fields(keys: GgufKeys) -> Fields:
    """Its converter stores the experts' size twice."""
    _gating(keys, SIGMOID)
    _same(keys, "expert_feed_forward_length", keys.count("feed_forward_length"))
    _same(keys, "expert_weights_norm", True)
    _plain_weights(keys)
    return (
        _common(keys)
        | _heads(keys, rotates_part=True)
        | {
            "num_local_experts": keys.count("expert_count"),
            "num_experts_per_tok": keys.count("expert_used_count"),
            "scoring_func": "sigmoid",
        }
    )


def gpt_oss_fields(keys: GgufKeys) -> Fields:
    """Its yarn is not cut to whole dimensions, which files do not say."""
    fields, kinds = _common(keys), _windows(keys, 2)
    if fields["rope_scaling"]["rope_type"] == "yarn":
        fields["rope_scaling"] |= {"truncate": False}
    _same(keys, "rope.freq_base_swa", keys.get("rope.freq_base", 10000.0))
    _plain_weights(keys)
    return (
        fields
        | _heads(keys)
        | {
            "intermediate_size": keys.count("expert_feed_forward_length"),
            "num_local_experts": keys.count("expert_count"),
            "num_experts_per_tok": keys.count("expert_used_count"),
            "sliding_window": keys.count("attention.sliding_window"),
            "layer_types": kinds,
        }
    )


def _windows(keys: GgufKeys, every: int) -> list[str]:
    """Kinds of layers: each says whether it has a window, or every so manieth has none."""
    key, num_layers = "attention.sliding_window_pattern", keys.count("block_count")
    pattern = keys.get(key, every)
    if not isinstance(pattern, list):
        every = keys.fields(key).integer(key, every)
        pattern = [(layer + 1) % every != 0 for layer in range(num_layers)]
    if len(pattern) != num_layers:
        raise ModelFileError(
            f"{keys.origin}: {key} has {len(pattern)} entries for {num_layers} layers; convert it anew"
        )
    return [SLIDING if has_window else FULL for has_window in pattern]


def llama4_fields(keys: GgufKeys) -> Fields:
    """Its reader knows chunks, layers without positions and the growth of queries; these are the family's."""
    count = keys.count("expert_count")
    if count not in _UNIT_NORMS:
        raise UnsupportedModel(
            f"{keys.origin}: files do not say whether queries and keys are normed, and it is known of "
            f"{' and '.join(map(str, _UNIT_NORMS))} experts, not of {count}; serve the model's "
            "Hugging Face folder instead"
        )
    _same(keys, "attention.sliding_window", _CHUNK)
    _same(keys, "rope.freq_base_swa", keys.get("rope.freq_base", 10000.0))
    _plain_weights(keys)
    return (
        _common(keys)
        | _heads(keys)
        | {
            "intermediate_size": keys.count("expert_feed_forward_length"),
            "intermediate_size_mlp": keys.count("feed_forward_length"),
            "interleave_moe_layer_step": keys.count("interleave_moe_layer_step"),
            "num_local_experts": count,
            "num_experts_per_tok": keys.count("expert_used_count"),
            "attention_chunk_size": _CHUNK,
            "use_qk_norm": _UNIT_NORMS[count],
        }
    )


def delta_fields(keys: GgufKeys, *, has_mlp: bool = True) -> Fields:
    """Pictures' sections of rotated dimensions are read and passed over: positions of text are the same in each."""
    keys.get("rope.dimension_sections")
    fields, heads = _common(keys, has_mlp=has_mlp), _heads(keys, rotates_part=True)
    num_values, num_heads = keys.count("ssm.inner_size"), keys.count("ssm.time_step_rank")
    if num_values % num_heads:
        raise ModelFileError(
            f"{keys.origin}: {num_heads} heads cannot share ssm.inner_size {num_values}; convert it anew"
        )
    return (
        fields
        | _delta_layers(keys, fields["num_hidden_layers"])
        | {
            "head_dim": heads["head_dim"],
            "partial_rotary_factor": heads["rotary_dim"] / heads["head_dim"],
            "linear_conv_kernel_dim": keys.count("ssm.conv_kernel"),
            "linear_key_head_dim": keys.count("ssm.state_size"),
            "linear_num_key_heads": keys.count("ssm.group_count"),
            "linear_num_value_heads": num_heads,
            "linear_value_head_dim": num_values // num_heads,
        }
    )


def _delta_layers(keys: GgufKeys, num_layers: int) -> Fields:
    """Newer files say it layer by layer, those that draft tokens included."""
    interval, stated = keys.count("full_attention_interval", 4), keys.get("attention.recurrent_layers")
    if stated is None:
        return {"full_attention_interval": interval}
    if not isinstance(stated, list) or len(stated) < num_layers:
        raise ModelFileError(
            f"{keys.origin}: attention.recurrent_layers is {stated!r} for {num_layers} layers; convert it anew"
        )
    return {"layer_types": [LINEAR if keeps_state else FULL for keeps_state in stated[:num_layers]]}


def delta_experts_fields(keys: GgufKeys) -> Fields:
    _gating(keys, SOFTMAX)
    _same(keys, "expert_weights_norm", True)
    _plain_weights(keys)
    return delta_fields(keys, has_mlp=False) | {
        "num_experts": keys.count("expert_count"),
        "num_experts_per_tok": keys.count("expert_used_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.count("expert_shared_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gating(keys: GgufKeys, known: int) -> None:
    if (stated := keys.get("expert_gating_func", 0)) not in (0, known):
        raise UnsupportedModel(f"{keys.origin}: expert_gating_func {stated} is not what this architecture has")


def _plain_weights(keys: GgufKeys) -> None:
    """Of routers whose weights are neither scaled nor made to sum to one, beyond what the family does."""
    if (scale := keys.get("expert_weights_scale", 0)) not in (0, 1):
        raise UnsupportedModel(f"{keys.origin}: expert_weights_scale {scale} is not implemented for this architecture")
