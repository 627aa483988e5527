"""Where a slice's part of a tensor begins and ends, and whether blocks of quantised weights end there too.

Along which dimension follows from the shapes that the plans of whole and slice give a name, never from a tensor.
Pure; it imports no numpy: a process that only opens a model asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.models.slices import Share, Slice
from relevo.engine.models.weight_plan import DELTA_OUTPUT, Shapes, weight_groups
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

    def runs(self, name: str, cut: Cut) -> list[tuple[int, int]]:
        """Of a cut along columns: first and stop of each run of the file's that the slice has, in its order."""
        delta = self._config.delta
        if delta is None or not delta.files.is_tiled or not name.endswith(DELTA_OUTPUT):
            return [(cut.first, cut.stop)]
        size = delta.value_size
        heads = delta.output_heads[cut.first // size : cut.stop // size]
        return [(head * size, (head + 1) * size) for head in heads]

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


def stored_runs(name: str, stored_as: str, runs: Iterable[tuple[int, int]]) -> list[slice]:
    """Runs of columns as they are stored. Raises UnsupportedModel inside a block."""
    return [slice(*(stored_width(name, stored_as, end) for end in run)) for run in runs]


def check_blocks(config: ModelConfig, share: Share, formats: Mapping[str, str]) -> None:
    """`formats`: of tensors that are multiplied as they are stored, by name. Raises UnsupportedModel if any rank of
    the share's group would cut a block."""
    if share.num_slices == 1 or not formats:
        return
    for part in Share(share.num_slices, 0, 1, share.whole_experts).slices(config):
        places = SlicePlaces(config, part)
        for name in formats.keys() & places.shapes.keys():
            if (cut := places.cut(name)) is not None and cut.axis == 1:
                stored_runs(name, formats[name], [*places.runs(name, cut), (0, cut.size)])
