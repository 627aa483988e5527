"""Tensors that make up one quantised weight: that they are there, and fit each other and the config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.model_files import StoredTensor
from relevo.engine.models.quantization import Quantization


def part_of(by_name: Mapping[str, StoredTensor], name: str, of: StoredTensor, stored_as: Sequence[str]) -> StoredTensor:
    """The tensor of that name, which `of` is nothing without. Raises ModelFileError, UnsupportedModel."""
    part = by_name.get(name)
    if part is None:
        raise ModelFileError(f"{of.path}: tensor {of.name} is quantised and {name} is missing; complete the download")
    if part.stored_as not in stored_as:
        known = ", ".join(stored_as)
        raise UnsupportedModel(f"{part.path}: {name} is stored as {part.stored_as}; one of {known} is implemented")
    return part


def check_shape(tensor: StoredTensor, shape: tuple[int, ...], of: StoredTensor) -> None:
    """Raises ModelFileError."""
    if tensor.shape != shape:
        raise ModelFileError(
            f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)}, {list(shape)} belongs to {of.name}; "
            "weights and config do not belong together"
        )


def check_integers(tensor: StoredTensor) -> None:
    """Raises ModelFileError."""
    if tensor.stored_as != "I32" or len(tensor.shape) != 2 or not all(tensor.shape):
        raise ModelFileError(f"{tensor.path}: {tensor.name} is no matrix of 32-bit integers; download it again")


def check_not_left(quantization: Quantization, tensor: StoredTensor, module: str) -> None:
    """Raises ModelFileError where config.json says that the module is as it was."""
    if quantization.leaves(module):
        raise ModelFileError(
            f"{tensor.path}: tensor {tensor.name} is quantised and config.json says that it is not; config and weights "
            "do not belong together"
        )
