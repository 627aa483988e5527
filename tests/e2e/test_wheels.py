"""The packages as a stranger gets them: `make dist`, an empty environment without a compiler, a first answer.

Needs the package index that pip knows. Red when a wheel needs what is not in it, when the kernels' wheel is tied to the
machine that built it, or when a command only works inside the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    venv_folder = Path(sys.executable).parent.parent
    subprocess.run(["make", "dist", f"DIST={folder}", f"VENV={venv_folder}"], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment into which the wheels were installed; its PATH holds nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder / "venv", with_pip=True)
    bin_folder = folder / "venv/bin"
    assert not any(shutil.which(name, path=str(bin_folder)) for name in ("cc", "c++", "gcc", "g++", "clang", "make"))
    command = [str(bin_folder / "pip"), "install", "--quiet", "--find-links", str(dist), "relevo[cpu]"]
    subprocess.run(command, env=environment(bin_folder), cwd="/", check=True)
    return bin_folder


def environment(bin_folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    return {**kept, "PATH": str(bin_folder), "HOME": str(bin_folder.parent.parent), "RELEVO_DATABASE_URL": "memory"}


def run(bin_folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """A command of the installed relevo, from a folder that has nothing to do with it."""
    return subprocess.run(
        [str(bin_folder / "relevo"), *arguments],
        cwd="/",
        env=environment(bin_folder),
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


def test_the_kernels_wheel_is_for_any_machine_of_its_family(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("relevo_native-*.whl")
    assert re.search(r"-manylinux_2_\d+_", wheel.name), "auditwheel found a library that not every Linux has"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        names = archive.namelist()
    notices = next(name for name in names if name.endswith("licenses/THIRD_PARTY_NOTICES.txt"))
    told = (tmp_path / notices).read_text()
    assert "Wenzel Jakob" in told and "MIT License" in told
    assert {"relevo_native/py.typed", "relevo_native/_native.pyi"} <= set(names)
    module = next(tmp_path.glob("relevo_native/_native*.so")).read_bytes()
    assert all(path.encode() in module for path in ("portable", "avx2", "avx512", "amx"))


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-user")
@pytest.mark.parametrize(("cpu", "best"), [("Nehalem", "portable"), ("Haswell", "avx2")])
def test_the_kernels_run_on_older_processors(dist: Path, tmp_path: Path, cpu: str, best: str) -> None:
    (wheel,) = dist.glob("relevo_native-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "from relevo_native import _native; print(_native.choose_path('')[0])"
    ran = subprocess.run(
        ["qemu-x86_64", "-cpu", cpu, os.path.realpath(sys.executable), "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [best]


def test_a_first_answer_from_wheels_alone(installed: Path) -> None:
    server = subprocess.Popen(
        [str(installed / "relevo"), "serve", "--port", "0"],
        cwd="/",
        env=environment(installed),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if found := re.search(r"ready: (http://\S+)/v1", line):
                break
        else:
            pytest.fail("did not start:\n" + "".join(lines))
        asked = run(installed, "chat", found[1], text="What is the capital of France?\n")
        assert asked.stdout.strip() and not asked.stderr, asked.stderr
        told = run(installed, "doctor", "--port", "0", "--url", found[1])
        assert (
            "not needed, since the kernels are installed" in told.stdout and f"{found[1]} serves smollm2" in told.stdout
        )
    finally:
        server.terminate()
        server.wait(timeout=60)
