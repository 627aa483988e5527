"""What a model says of its rotary embeddings, in either spelling, checked.

Owns which scalings there are and what each must say; `rope` has their arithmetic. Sources: the config.json fields of
transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.config_fields import ConfigFields

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
DEFAULT_THETA = 10000.0  # of most families
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
_NUMBERS = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_OF_FREQUENCIES = ("low_freq_factor", "high_freq_factor")
_LISTS = ("short_factor", "long_factor")
_HARMLESS = "finetuned"  # how a model was made
_MAX_FACTOR = 65536  # arbitrary: far above what any model is stretched by, and no length overflows
_ORIGINAL = "original_max_position_embeddings"
_KNOWN = frozenset((*_NUMBERS, *_OF_FREQUENCIES, *_LISTS, _ORIGINAL, "rope_type", "type", "truncate", "rope_theta"))


def read_rope(
    raw: Mapping[str, Any], origin: str, default_theta: float = DEFAULT_THETA
) -> tuple[float, dict[str, Any]]:
    """Base, and the scaling with its `rope_type`; empty: none. Raises ModelFileError, UnsupportedModel."""
    parameters, added = (_object(raw, name, origin) for name in ("rope_parameters", "rope_scaling"))
    stated = {**_only(parameters, "rope_theta"), **added} if added else parameters  # cards say: add `rope_scaling`
    if any(isinstance(value, Mapping) for value in stated.values()):
        raise UnsupportedModel(f"{origin}: rope parameters that differ between kinds of layers are not implemented")
    owner = raw if stated.get("rope_theta") is None else stated
    theta = ConfigFields(owner, origin).number("rope_theta", default_theta)
    if theta <= 1:
        raise ModelFileError(f"{origin}: rope_theta is {theta:g} and must be above 1; mend it or download it again")
    kind = _kind(stated, origin)
    scaling = {
        key: value for key, value in stated.items() if key not in ("rope_theta", "type", "partial_rotary_factor")
    }
    if raw.get(_ORIGINAL) is not None:
        scaling[_ORIGINAL] = raw[_ORIGINAL]
    return theta, checked_scaling({**scaling, "rope_type": "longrope" if kind == "su" else kind}, origin)


def _object(raw: Mapping[str, Any], name: str, origin: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ModelFileError(f"{origin}: {name} is {value!r} and must be an object; mend it or download it again")
    return value or {}


def _only(stated: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: stated[name] for name in names if stated.get(name) is not None}


def _kind(stated: Mapping[str, Any], origin: str) -> Any:
    """Raises ModelFileError where a scaling has numbers and no name, or two names."""
    kinds = [stated[key] for key in ("rope_type", "type") if stated.get(key) is not None]
    numbers = [name for name in (*_NUMBERS, *_LISTS) if stated.get(name) is not None]
    if not kinds and numbers:
        raise ModelFileError(f"{origin}: a rope scaling has {numbers[0]} and no rope_type; add one, for example yarn")
    if len(kinds) == 2 and kinds[0] != kinds[1] and {*map(str, kinds)} != {"su", "longrope"}:
        raise ModelFileError(f"{origin}: a rope scaling has rope_type {kinds[0]!r} and type {kinds[1]!r}; leave one")
    return kinds[0] if kinds else "default"


def checked_scaling(scaling: dict[str, Any], origin: str) -> dict[str, Any]:
    """In transformers' words; empty for none. Raises ModelFileError, UnsupportedModel."""
    kind = scaling.get("rope_type", "default")
    if kind not in SUPPORTED_ROPE_TYPES:
        known = ", ".join(SUPPORTED_ROPE_TYPES)
        raise UnsupportedModel(f"{origin}: rope scaling {kind!r} is not implemented; one of {known} is")
    scaling = {key: value for key, value in scaling.items() if value is not None and key != _HARMLESS}
    if strange := next((name for name in scaling if name not in _KNOWN), None):
        raise UnsupportedModel(
            f"{origin}: rope scaling {kind!r} has {strange} {scaling[strange]}, which is not implemented; take it out "
            "if it changes nothing"
        )
    if kind == "default":
        return {}
    fields = ConfigFields(scaling, f"{origin}: rope scaling {kind!r}")
    for name in (*_NUMBERS, *_OF_FREQUENCIES):
        fields.optional_number(name)
    for name in _LISTS:
        fields.numbers(name)
    fields.optional_integer(_ORIGINAL)
    if (fields.optional_number("factor") or 1.0) > _MAX_FACTOR:
        raise ModelFileError(
            f"{origin}: rope scaling {kind!r}: factor is {scaling['factor']:g} and must be at most {_MAX_FACTOR}; "
            "mend it or download it again"
        )
    for name in _NEEDED.get(kind, ()):
        if scaling.get(name) is None:
            raise UnsupportedModel(f"{origin}: rope scaling {kind!r} lacks {name!r}; mend it or download it again")
    if kind == "llama3" and scaling["high_freq_factor"] < scaling["low_freq_factor"]:
        raise ModelFileError(
            f"{origin}: rope scaling 'llama3' has high_freq_factor {scaling['high_freq_factor']}, which must be at "
            f"least low_freq_factor {scaling['low_freq_factor']}; mend it or download it again"
        )
    return scaling


def original_length(scaling: Mapping[str, Any], max_position: int) -> int:
    """Tokens that the model was made for before its positions were scaled."""
    return int(scaling.get(_ORIGINAL, max_position))


def length_notes(config: ModelConfig, max_model_len: int) -> tuple[str, ...]:
    """Of scalings that other servers choose by the length of each request, what was chosen for all of them."""
    original = original_length(config.rope_scaling, config.max_position)
    match config.rope_scaling.get("rope_type"):
        case "longrope" if config.rope_scaling["short_factor"] != config.rope_scaling["long_factor"]:
            which = "long" if max_model_len > original else "short"
            return (
                f"rope scaling longrope: its factors of {which} sequences for every request, as a request may have "
                f"{max_model_len} tokens and short ones have at most {original}",
            )
        case "dynamic" if max_model_len > config.max_position:
            return (f"rope scaling dynamic: stretched for {max_model_len} tokens, whatever a request has",)
    return ()


def refuse_partial(raw: Mapping[str, Any], origin: str) -> None:
    """In families that rotate whole heads. Raises UnsupportedModel."""
    for place in (raw, *(_object(raw, name, origin) for name in ("rope_parameters", "rope_scaling"))):
        partial = place.get("partial_rotary_factor")
        if partial is not None and partial != 1:
            raise UnsupportedModel(f"{origin}: partial_rotary_factor {partial} is not implemented; 1 is")


def read_rotary_size(fields: ConfigFields, head_size: int, default_fraction: float) -> int | None:
    """Elements of a head that are rotated; None: all. It stands in one of three places, or is the family's own.

    Raises ModelFileError for a part that is none, or where two places differ.
    """
    raw, origin = fields.raw, fields.origin
    places = [raw, *(_object(raw, name, origin) for name in ("rope_parameters", "rope_scaling"))]
    stated = [ConfigFields(place, origin).optional_number("partial_rotary_factor") for place in places]
    sizes = {int(head_size * fraction) for fraction in stated if fraction is not None}
    if (size := fields.optional_integer("rotary_dim")) is not None:
        sizes.add(size)
    if len(sizes) > 1:
        raise ModelFileError(
            f"{origin}: rotary_dim and partial_rotary_factor say {' and '.join(map(str, sorted(sizes)))} elements of a "
            "head; leave one"
        )
    rotated = sizes.pop() if sizes else int(head_size * default_fraction)
    if not 2 <= rotated <= head_size or rotated % 2:
        raise ModelFileError(
            f"{origin}: {rotated} of {head_size} elements of a head cannot be rotated in pairs; mend rotary_dim or "
            "partial_rotary_factor"
        )
    return rotated if rotated < head_size else None
