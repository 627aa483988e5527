"""From what an operator typed to a place on disk.

Owns the order in which a MODEL is understood: the packaged model, a path, a hub id. Opens nothing and imports nothing
that reads weights: the gateway asks it too, which needs a model's text parts only.
"""

from __future__ import annotations

import re
from pathlib import Path

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.hub import hub_folder
from relevo.engine.loaders.packaged_model import PACKAGED_MODEL, packaged_gguf

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate_model(
    model: str | None = None, *, revision: str | None = None, download_dir: str | None = None
) -> tuple[Path, str]:
    """A GGUF file or a Hugging Face folder, and what clients may call it. None: the packaged model.

    Raises ModelFileError, HubUnavailable.
    """
    if model is None or model == PACKAGED_MODEL:
        return packaged_gguf(download_dir), PACKAGED_MODEL
    path = Path(model).expanduser()
    if path.is_dir():
        return _in_directory(path)
    if path.exists():
        return path, path.stem
    if _HUB_ID.fullmatch(model) and path.suffix != ".gguf":
        return hub_folder(model, revision, download_dir), model
    raise ModelFileError(
        f"there is no file or folder {model}; give the path of a GGUF file or of a Hugging Face folder, "
        f"a hub id (owner/name), or {PACKAGED_MODEL!r}"
    )


def _in_directory(folder: Path) -> tuple[Path, str]:
    if (folder / "config.json").exists():
        return folder, folder.resolve().name
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0], files[0].stem
    if files:
        raise ModelFileError(f"{folder} has {len(files)} GGUF files; give the path of one, such as {files[0]}")
    raise ModelFileError(f"{folder} has neither a config.json nor a GGUF file; give the path of a model")
