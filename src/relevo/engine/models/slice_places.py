"""Where a slice's part of a tensor begins and ends, and whether blocks of quantised weights end there too.

Along which dimension follows from the shapes that the plans of whole and slice give a name, never from a tensor.
Pure; it imports no numpy: a process that only opens a model asks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.slices import Share, Slice
from relevo.engine.models.weight_plan import Shapes, weight_groups
from relevo.engine.ops.formats import BLOCK_FORMATS


class Cut(NamedTuple):
    axis: int
    first: int
    stop: int  # the one after the last
    size: int  # that the slice's part has; of heads it may be more, and the rest are zeros


class SlicePlaces:
    def __init__(self, config: ModelConfig, part: Slice) -> None:
        """`config`: of the whole model."""
        self._config, self._slice = config, part
        self._whole, self.shapes = shapes_of(config), shapes_of(part.config)

    def cut(self, name: str) -> Cut | None:
        """Of one of the slice's tensors; None: it has all of it."""
        whole, own = self._whole[name], self.shapes[name]
        if whole == own:
            return None
        axis = next(axis for axis, size in enumerate(whole) if size != own[axis])
        return Cut(axis, *self._place(name, whole[axis], own[axis]), own[axis])

    def _place(self, name: str, whole: int, own: int) -> tuple[int, int]:
        config, part = self._config, self._slice
        if ".self_attn." not in name:
            first = part.number * whole // part.num_slices
        elif name.rsplit(".", 2)[-2] in ("k_proj", "v_proj"):
            first = (part.first_kv_head or 0) * (whole // config.num_kv_heads)
        else:
            each = whole // config.num_heads
            return part.heads.start * each, part.heads.stop * each
        return first, first + own


def shapes_of(config: ModelConfig, stage: range | None = None) -> Shapes:
    """`stage`: of these layers only; None: of all."""
    return {name: shape for group in weight_groups(config, stage) for name, shape in group.items()}


def stored_width(name: str, stored_as: str, num_columns: int) -> int:
    """Of the first so many columns of a matrix, as they are stored. Raises UnsupportedModel inside a block."""
    block = BLOCK_FORMATS.get(stored_as)
    if block is None:
        return num_columns
    if num_columns % block.elements:
        raise UnsupportedModel(
            f"tensor {name} is stored as {stored_as}, whose blocks of {block.elements} do not end at column "
            f"{num_columns}, where a slice ends at every tensor parallel size; choose --dtype bfloat16, or leave "
            "--tensor-parallel-size out"
        )
    return num_columns // block.elements * block.stored_bytes


def stored_columns(name: str, stored_as: str, cut: Cut) -> tuple[int, int, int]:
    """First, end and width of a cut along columns, as they are stored. Raises UnsupportedModel inside a block."""
    first, stop, size = (stored_width(name, stored_as, columns) for columns in (cut.first, cut.stop, cut.size))
    return first, stop, size


def check_blocks(config: ModelConfig, share: Share, formats: Mapping[str, str]) -> None:
    """`formats`: of tensors that are multiplied as they are stored, by name. Raises UnsupportedModel if any rank of
    the share's group would cut a block."""
    if share.num_slices == 1 or not formats:
        return
    for part in Share(share.num_slices, 0, 1, share.whole_experts).slices(config):
        places = SlicePlaces(config, part)
        for name in formats.keys() & places.shapes.keys():
            if (cut := places.cut(name)) is not None and cut.axis == 1:
                stored_columns(name, formats[name], cut)
