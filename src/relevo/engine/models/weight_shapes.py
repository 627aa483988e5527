"""That a checkpoint has the tensors of its config, in their shapes: known from the heads of its files.

Pure; it imports no numpy: a process that only opens a model asks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relevo.core.errors import ModelFileError
from relevo.engine.models.weight_plan import Shapes


def check_shapes(asked: Shapes, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelFileError."""
    for name, shape in asked.items():
        if name in found:
            check_shape(name, found[name], shape)
    check_missing(asked, [name for name in asked if name not in found])


def check_shape(name: str, found: Sequence[int], asked: Sequence[int]) -> None:
    """Raises ModelFileError."""
    if tuple(found) != tuple(asked):
        raise ModelFileError(
            f"tensor {name} has shape {list(found)}, the config asks for {list(asked)}; "
            "weights and config do not belong together"
        )


def check_missing(asked: Shapes, missing: Sequence[str]) -> None:
    """Raises ModelFileError."""
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(asked)} tensors are missing, the first is {missing[0]}; "
            "the download is incomplete or the config is another model's"
        )
