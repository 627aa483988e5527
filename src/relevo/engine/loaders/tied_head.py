"""Embedding and output head of a folder: one matrix or two, whatever the config says of it.

Owns what holds when `tie_word_embeddings` and the tensors differ, which is what transformers 5 does: a head of its own
is used. It never makes up a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relevo.core.errors import ModelFileError
from relevo.core.model import ModelConfig
from relevo.engine.loaders.model_files import StoredTensor
from relevo.engine.models.weight_plan import EMBEDDING, HEAD

_COMPARED_BYTES = 4 * 2**20  # arbitrary; of each tensor at a time


def with_head(
    config: ModelConfig, stored: Sequence[StoredTensor], origin: str
) -> tuple[ModelConfig, list[StoredTensor], tuple[str, ...]]:
    """Config and tensors that agree, and what to say of it. Raises ModelFileError."""
    by_name = {tensor.name: tensor for tensor in stored}
    head, embedding = by_name.get(HEAD), by_name.get(EMBEDDING)
    if not config.tie_word_embeddings or head is None:
        return config, list(stored), ()
    if embedding is None:  # the one matrix, under its other name
        return config, [replace(tensor, name=EMBEDDING) if tensor is head else tensor for tensor in stored], ()
    if _are_equal(head, embedding):
        return config, [tensor for tensor in stored if tensor is not head], ()
    note = f"{origin}: {HEAD} differs from {EMBEDDING} although tie_word_embeddings is true; it is used as it is"
    return replace(config, tie_word_embeddings=False), list(stored), (note,)


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Bit for bit; ends at the first part that differs."""
    if (one.shape, one.stored_as) != (other.shape, other.stored_as):
        return False
    try:
        with one.path.open("rb") as first, other.path.open("rb") as second:
            first.seek(one.offset)
            second.seek(other.offset)
            for start in range(0, one.num_bytes, _COMPARED_BYTES):
                size = min(_COMPARED_BYTES, one.num_bytes - start)
                if first.read(size) != second.read(size):
                    return False
    except OSError as error:
        raise ModelFileError(f"cannot read {one.path}: {error.strerror or error}") from error
    return True
