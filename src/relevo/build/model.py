"""The model that a worker computes: its KV layout, which is known before it is loaded, and the model itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo.build.configs import WorkerConfig
from relevo.core.kv import KVLayout
from relevo.core.model import ModelConfig
from relevo.engine.loaders.model_files import ModelFiles, Progress
from relevo.engine.models.dense import one_full_group
from relevo.engine.models.families import spec_of
from relevo.engine.models.spec import Model
from relevo.engine.ops.cache_groups import latent_group, token_groups

if TYPE_CHECKING:  # what is only planned computes nothing
    from relevo.engine.ops.protocol import Ops


def kv_layout(model: ModelConfig, model_hash: str, dtype: str, block_size: int) -> KVLayout:
    """Raises UnsupportedModel for a cache that no backend computes attention over, before weights are read."""
    groups = one_full_group(model) if model.architecture == "fake" else spec_of(model).kv_groups(model)
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
) -> Model:
    """`stage`: the layers that are read and computed here; None: all. Raises ModelFileError, UnsupportedModel."""
    spec = spec_of(files.config)
    wanted = None if stage is None else {name for group in spec.weights(files.config, stage) for name in group}
    # What is stored in a format that the backend does not multiply grows no larger than it has to.
    dequantised_as = "bfloat16" if config.dtype == "auto" else "float32"
    tensors = files.tensors(progress, ops.native_formats, dequantised_as, wanted)
    return spec.load(files.config, tensors, ops, config.max_model_len, stage=stage)
