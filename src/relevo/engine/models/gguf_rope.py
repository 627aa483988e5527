"""What the keys and tensors of a GGUF file say of a rope scaling, in config.json's words.

Owns what llama.cpp's converter changed. Llama 3 scaling is stored as one factor per frequency, which is what longrope
means. Sources: llama.cpp's converter, and its reader, whose defaults are those of files without a key.
"""

from __future__ import annotations

import math
from typing import Any

from relevo.core.errors import UnsupportedModel
from relevo.engine.models.spec import GgufKeys

_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def rope_scaling(keys: GgufKeys) -> dict[str, Any]:
    """Empty: none. Raises UnsupportedModel."""
    kind = keys.get("rope.scaling.type", "none")
    stated = [keys.get(key) for key in ("rope.scaling.factor", "rope.scale_linear")]
    factor = next((value for value in stated if value is not None), None)
    original = keys.count("rope.scaling.original_context_length", keys.count("context_length"))
    if (same := keys.floats("rope_freqs.weight")) is not None:
        return {"rope_type": "longrope", "short_factor": same, "long_factor": same, "attention_factor": 1.0}
    long, short = keys.floats("rope_factors_long.weight"), keys.floats("rope_factors_short.weight")
    if long is not None and short is not None:
        return {
            "rope_type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": original,
            "attention_factor": keys.get("rope.scaling.attn_factor"),
        }
    if kind == "linear" or (kind == "none" and factor not in (None, 0, 1.0) and not keys.get("rope.scaling.type")):
        return {} if factor is None else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(keys, original)
    if kind != "none":
        raise UnsupportedModel(
            f"{keys.origin}: rope scaling {kind!r} is not implemented; none, linear, yarn and longrope are"
        )
    return {}


def _yarn(keys: GgufKeys, original: int) -> dict[str, Any]:
    factor = keys.decimal("rope.scaling.factor")
    if (part := keys.get("rope.scaling.yarn_ext_factor", 1.0)) not in (1.0, -1.0):  # -1: not said
        raise UnsupportedModel(f"{keys.origin}: rope.scaling.yarn_ext_factor {part} is not implemented; 1 is")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": keys.decimal("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.decimal("rope.scaling.yarn_beta_slow", 1.0),
    }
    whole, more = (keys.fields(key).optional_number(key) for key in _MAGNITUDES)
    if whole is not None or more is not None:
        own = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
        scaling["attention_factor"] = (own if whole is None else whole) * (more or 1.0)
    return scaling


_MAGNITUDES = ("rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor")  # all of it; what multiplies it


def stated_magnitude(keys: GgufKeys) -> float | None:
    """config.json's `mscale_all_dim`, a tenth of which is stored. None: there is none."""
    tenth = keys.fields(_LOG_MULTIPLIER).optional_number(_LOG_MULTIPLIER, zero=True)
    return round(tenth * 10, 6) if tenth else None


def refuse_magnitude(keys: GgufKeys) -> None:
    """In families whose scores are not stretched. Raises UnsupportedModel."""
    if (weight := stated_magnitude(keys)) is not None:
        raise UnsupportedModel(
            f"{keys.origin}: {_LOG_MULTIPLIER} {weight / 10:g} is not implemented for this architecture"
        )
