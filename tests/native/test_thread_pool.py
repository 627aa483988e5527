"""The thread team of the native step: barriers order memory, idle threads sleep, a fork or a throw ends well.

Red when: a barrier is passed early, a wake-up is lost (the program hangs), workers poll while idle, a child
of a fork joins threads it does not have.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_sources import SOURCES, source

UNITS = [Path(__file__).parent / "threads_stress.cc", source("threads")]
HANGS_AFTER_S = 300  # a deadline for a lost wake-up, far beyond what a slow machine needs

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or sys.platform != "linux", reason="needs g++ and Linux's /proc"
)


def _built(folder: Path, *flags: str) -> Path:
    program = folder / "threads_stress"
    command = ["g++", "-std=c++17", "-O1", "-g", "-pthread", *flags, f"-I{SOURCES}"]
    subprocess.run([*command, *map(str, UNITS), "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(tmp_path_factory.mktemp("plain"))


def _run(program: Path, part: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, part], capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False)


@pytest.mark.parametrize("part", ["stress", "idle", "pinned", "forked"])
def test_team(program: Path, part: str) -> None:
    result = _run(program, part)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


def test_a_throwing_body_ends_the_process_and_says_why(program: Path) -> None:
    result = _run(program, "throwing")
    assert result.returncode < 0
    assert "a body of ThreadPool::run threw: out of tea" in result.stderr


def test_no_data_race(tmp_path: Path) -> None:
    """Plain variables are passed between threads through run and barrier: without their ordering this is a race."""
    program = _built(tmp_path, "-fsanitize=thread")
    result = _run(program, "stress")
    if "unexpected memory mapping" in result.stderr:
        pytest.skip(f"ThreadSanitizer cannot run here (address space layout of kernel {os.uname().release})")
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr
