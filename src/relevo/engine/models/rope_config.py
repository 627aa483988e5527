"""What a model says of its rotary embeddings, in either spelling, checked.

Owns which scalings there are and what each must say; `rope` has their arithmetic. Sources: the config.json fields of
transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.models.config_fields import ConfigFields

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_DEFAULT_THETA = 10000.0  # of every family here
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
_NUMBERS = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_ORIGINAL = "original_max_position_embeddings"


def read_rope(raw: Mapping[str, Any], origin: str) -> tuple[float, dict[str, Any]]:
    """Base, and the scaling with its `rope_type`; empty: none. Raises ModelFileError, UnsupportedModel."""
    stated = raw.get("rope_parameters")
    stated = raw.get("rope_scaling") if stated is None else stated
    stated = {} if stated is None else stated
    if not isinstance(stated, Mapping):
        raise ModelFileError(f"{origin}: rope parameters {stated!r} are no object; mend it or download it again")
    if any(isinstance(value, Mapping) for value in stated.values()):
        raise UnsupportedModel(f"{origin}: rope parameters that differ between kinds of layers are not implemented")
    _refuse_partial(raw, stated, origin)
    owner = raw if stated.get("rope_theta") is None else stated
    theta = ConfigFields(owner, origin).number("rope_theta", _DEFAULT_THETA)
    if theta <= 1:
        raise ModelFileError(f"{origin}: rope_theta is {theta:g} and must be above 1; mend it or download it again")
    kind = next((stated[key] for key in ("rope_type", "type") if stated.get(key) is not None), "default")
    scaling = {
        key: value for key, value in stated.items() if key not in ("rope_theta", "type", "partial_rotary_factor")
    }
    if raw.get(_ORIGINAL) is not None:
        scaling[_ORIGINAL] = raw[_ORIGINAL]
    return theta, checked_scaling({**scaling, "rope_type": "longrope" if kind == "su" else kind}, origin)


def checked_scaling(scaling: dict[str, Any], origin: str) -> dict[str, Any]:
    """In transformers' words; empty for none. Raises ModelFileError, UnsupportedModel."""
    kind = scaling.get("rope_type", "default")
    if kind not in SUPPORTED_ROPE_TYPES:
        known = ", ".join(SUPPORTED_ROPE_TYPES)
        raise UnsupportedModel(f"{origin}: rope scaling {kind!r} is not implemented; one of {known} is")
    if kind == "default":
        return {}
    fields = ConfigFields(scaling, f"{origin}: rope scaling {kind!r}")
    for name in (*_NUMBERS, "low_freq_factor", "high_freq_factor"):
        fields.optional_number(name)
    for name in ("short_factor", "long_factor"):
        fields.numbers(name)
    fields.optional_integer(_ORIGINAL)
    for name in _NEEDED.get(kind, ()):
        if scaling.get(name) is None:
            raise UnsupportedModel(f"{origin}: rope scaling {kind!r} lacks {name!r}; mend it or download it again")
    if kind == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise ModelFileError(
            f"{origin}: rope scaling 'llama3' has high_freq_factor {scaling['high_freq_factor']}, which must be above "
            f"low_freq_factor {scaling['low_freq_factor']}; mend it or download it again"
        )
    return {key: value for key, value in scaling.items() if value is not None}


def _refuse_partial(raw: Mapping[str, Any], stated: Mapping[str, Any], origin: str) -> None:
    for partial in (stated.get("partial_rotary_factor"), raw.get("partial_rotary_factor")):
        if partial is not None and partial != 1:
            raise UnsupportedModel(f"{origin}: partial_rotary_factor {partial} is not implemented; 1 is")
