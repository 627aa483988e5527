"""`layer_types` of config.json: which layers attend to everything, and which to a part.

Owns the field's words. Which of them a family has is the family's.
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.models.config_fields import ConfigFields

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
LINEAR = "linear_attention"


def read_layer_kinds(fields: ConfigFields, local_kinds: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """Layers of each kind that there is; None: the field is not there. Raises ModelFileError, UnsupportedModel."""
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        return None
    num_layers = fields.integer("num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        num_kinds = len(kinds) if isinstance(kinds, list) else repr(kinds)
        raise ModelFileError(f"{fields.origin}: layer_types has {num_kinds} entries for {num_layers} layers; mend it")
    known = (FULL, *local_kinds)
    for kind in kinds:
        if kind not in known:
            raise UnsupportedModel(
                f"{fields.origin}: layers of kind {kind!r} are not implemented; {' and '.join(known)} are"
            )
    return {kind: tuple(layer for layer, each in enumerate(kinds) if each == kind) for kind in sorted(set(kinds))}
