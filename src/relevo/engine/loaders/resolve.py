"""From what an operator typed to an opened model."""

from __future__ import annotations

from relevo.engine.loaders.gguf import open_gguf
from relevo.engine.loaders.locate import locate_model
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.safetensors import open_folder


def load_model_files(
    model: str | None = None, *, revision: str | None = None, download_dir: str | None = None
) -> ModelFiles:
    """Open (not read) a model: None or "smollm2", a GGUF file, a Hugging Face folder, or a hub id.

    Raises ModelFileError, UnsupportedModel, HubUnavailable.
    """
    path, name = locate_model(model, revision=revision, download_dir=download_dir)
    return open_folder(path, name) if path.is_dir() else open_gguf(path, name)
