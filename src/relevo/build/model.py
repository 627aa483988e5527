"""The model that a worker computes: its KV layout, which is known before it is loaded, and the model itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from relevo.build.configs import WorkerConfig
from relevo.core.kv import KVLayout
from relevo.core.model import ModelConfig
from relevo.engine.loaders.model_files import ModelFiles, Progress
from relevo.engine.models.dense import one_full_group
from relevo.engine.models.families import spec_of
from relevo.engine.models.slices import Share, share_of
from relevo.engine.models.spec import Model, ModelSpec
from relevo.engine.models.weight_shapes import check_shapes
from relevo.engine.ops.cache_groups import latent_group, token_groups
from relevo.engine.ops.formats import multiplied_formats

if TYPE_CHECKING:  # what is only planned computes nothing
    from relevo.engine.ops.protocol import Ops


def kv_layout(model: ModelConfig, model_hash: str, dtype: str, block_size: int) -> KVLayout:
    """Raises UnsupportedModel for a cache that no backend computes attention over, before weights are read."""
    stored = replace(model, dtype=dtype)  # what states keep of activations
    groups = one_full_group(model) if model.architecture == "fake" else spec_of(model).kv_groups(stored)
    layout = KVLayout(model_hash=model_hash, dtype=dtype, block_size=block_size, groups=groups)
    if latent_group(layout) is None:
        token_groups(layout)
    return layout


def load_model(
    config: WorkerConfig,
    files: ModelFiles,
    ops: Ops,
    progress: Progress | None = None,
    stage: range | None = None,
    rank: int = 0,
) -> Model:
    """`stage`: the layers that are read and computed here; None: all. `rank`: of those that share them. Raises
    ModelFileError, UnsupportedModel."""
    spec, share = spec_of(files.config), rank_share(config, files.config, rank)
    wanted = _wanted(spec, files.config, stage, share)
    # What is stored in a format that the backend does not multiply grows no larger than it has to.
    dequantised_as = "bfloat16" if config.dtype == "auto" else "float32"
    tensors = files.tensors(progress, ops.native_formats, dequantised_as, wanted)
    return spec.load(files.config, tensors, ops, config.max_model_len, share, stage)


def _wanted(spec: ModelSpec, model: ModelConfig, stage: range | None, share: Share | None) -> Collection[str] | None:
    """Names of tensors that are read; None: all. Of experts that lie whole on ranks, those of this one."""
    if stage is None and share is None:
        return None
    configs = [model] if share is None else [each.config for each in share.slices(model)]
    return {name for config in configs for group in spec.weights(config, stage) for name in group}


def check_stored(files: ModelFiles) -> None:
    """That the files have what the model is made of, before any of it is read. Raises ModelFileError."""
    asked = {
        name: shape for group in spec_of(files.config).weights(files.config, None) for name, shape in group.items()
    }
    check_shapes(asked, {stored.name: stored.shape for stored in files.stored})


def block_formats(files: ModelFiles, path: str) -> dict[str, str]:
    """Of tensors that the native backend multiplies as they are stored, by name. `path`: of its instructions."""
    multiplied = multiplied_formats(path)
    return {each.name: each.raw_format for each in files.stored if each.raw_format and each.raw_format in multiplied}


def rank_share(config: WorkerConfig, model: ModelConfig, rank: int) -> Share | None:
    """None: the model is not cut."""
    if config.tensor_parallel_size is None:
        return None
    size, whole = config.tensor_parallel_size, config.enable_expert_parallel
    return share_of(model, rank, size, whole_experts=whole, expert_ranks=config.expert_ranks)
