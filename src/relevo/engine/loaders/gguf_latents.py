"""The matrix from latents to keys and values, which newer GGUF files have in two.

Owns the joining: keys are stored [heads, latent, N], transposed for the absorbed computation, values [heads, V,
latent].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from relevo.core.errors import ModelFileError
from relevo.core.model import ModelConfig
from relevo.engine.loaders.model_files import StoredTensor
from relevo.engine.models.weight_plan import KV_UP, LATENT_KEYS, LATENT_VALUES

if TYPE_CHECKING:  # a process that only opens a file does without numpy
    import numpy as np
    import numpy.typing as npt

    from relevo.engine.ops.protocol import HostTensor


def joined(config: ModelConfig, stored: Sequence[StoredTensor]) -> list[StoredTensor]:
    """A half without the other stays, and is refused as a tensor that nothing asks for. Raises ModelFileError."""
    by_name = {tensor.name: tensor for tensor in stored}
    whole = []
    for tensor in stored:
        values = by_name.get(tensor.name.removesuffix(LATENT_KEYS) + LATENT_VALUES)
        if tensor.name.endswith(LATENT_KEYS) and values is not None:
            whole.append(_whole(config, tensor, values))
        elif not tensor.name.endswith(LATENT_VALUES) or _name(tensor, LATENT_VALUES, LATENT_KEYS) not in by_name:
            whole.append(tensor)
    return whole


def _name(tensor: StoredTensor, ending: str, other: str) -> str:
    return tensor.name.removesuffix(ending) + other


def _whole(config: ModelConfig, keys: StoredTensor, values: StoredTensor) -> StoredTensor:
    latent, heads = config.latent, config.num_heads
    assert latent is not None, "its names are those of latents"
    sizes = {
        keys: (heads, latent.latent_size, latent.nope_size),
        values: (heads, latent.value_size, latent.latent_size),
    }
    for tensor, shape in sizes.items():
        if tensor.shape != shape:
            raise ModelFileError(
                f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)} and {list(shape)} follows from "
                "the keys; convert it anew"
            )

    def decode(data: npt.NDArray[np.uint8], dequantised_as: str) -> HostTensor:
        import numpy as np

        from relevo.engine.loaders.quantized_tensors import bytes_of
        from relevo.engine.ops.protocol import HostTensor

        parts = [keys.decode(data, dequantised_as), values.decode(bytes_of(values), dequantised_as)]
        is_one = parts[0].dtype == parts[1].dtype
        up, out = (part.array if is_one else part.floats() for part in parts)
        array = np.concatenate((up.swapaxes(1, 2), out), axis=1).reshape(-1, latent.latent_size)
        return HostTensor(array, parts[0].dtype if is_one else "float32")

    rows = heads * (latent.nope_size + latent.value_size)
    name = _name(keys, LATENT_KEYS, KV_UP)
    return replace(
        keys, name=name, shape=(rows, latent.latent_size), decode=decode, beside=(values,), raw_format=None, as_raw=None
    )
