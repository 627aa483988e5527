"""What a wheel of relevo carries, and that its source archive is enough to build it from.

Red when a data file, licence or marker is no longer packed, when something that is not the package is, or when relevo
and its kernels are released under different versions. The wheel of the kernels is built by tests/e2e/test_wheels.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.build import build_sdist, build_wheel

from relevo import __version__

ROOT = Path(__file__).parents[2]
DIST_INFO = f"relevo-{__version__}.dist-info"


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with inside(ROOT):
        return folder / build_sdist(str(folder))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with inside(ROOT):
        return folder / build_wheel(str(folder))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_of(wheel: Path) -> Message:
    return Parser().parsestr(contents(wheel)[f"{DIST_INFO}/METADATA"].decode())


def test_the_wheel_carries_the_package_and_nothing_else(wheel: Path) -> None:
    packed = {name for name in contents(wheel) if not name.startswith(f"{DIST_INFO}/")}
    source = ROOT / "src"
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert packed == {name for name in there if "__pycache__" not in name and "egg-info" not in name}
    assert {"relevo/py.typed", "relevo/bench/quality/varied.txt", "relevo/gateway/console/page/index.html"} <= packed


def test_the_wheel_tells_its_licence_and_its_command(wheel: Path) -> None:
    files = contents(wheel)
    assert files[f"{DIST_INFO}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"relevo = relevo.cli.main:main" in files[f"{DIST_INFO}/entry_points.txt"]
    told = metadata_of(wheel)
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("relevo", __version__, "Apache-2.0")
    assert told["Requires-Python"] and told["Summary"] and "Typing :: Typed" in told.get_all("Classifier", [])


def test_relevo_and_its_kernels_are_one_release(wheel: Path) -> None:
    """An older module beside a newer package would compute with another interface."""
    native = tomllib.loads((ROOT / "native/pyproject.toml").read_text())
    version_file = ROOT / "native" / native["tool"]["scikit-build"]["metadata"]["version"]["input"]
    found = re.search(r'^__version__ = "(.+?)"', version_file.read_text(), re.MULTILINE)
    assert found is not None and found[1] == __version__
    required = metadata_of(wheel).get_all("Requires-Dist", [])
    assert f"relevo-native=={__version__}; extra == 'cpu'" in required


def test_the_source_archive_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    with inside(tmp_path / f"relevo-{__version__}"):
        again = tmp_path / build_wheel(str(tmp_path))
    assert contents(again) == contents(wheel)


def test_the_kernels_come_with_the_same_licence() -> None:
    assert (ROOT / "native/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
