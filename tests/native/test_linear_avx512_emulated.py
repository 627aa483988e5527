"""The AVX-512 products run on processors without AVX-512: their source is compiled against emulated instructions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

native = pytest.importorskip("relevo_native._native")

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "native" / "src"
FLAGS = (
    "-std=c++17",
    "-O0",
    "-ffp-contract=off",
    "-fsanitize=address",
    "-w",
)


@pytest.mark.timeout(600)  # compiles for about five seconds of processor time, longer where others compute
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the emulation")
@pytest.mark.skipif("avx2" not in native.available_paths(), reason="the emulation needs AVX2")
def test_emulated_avx512_products_have_the_bits_of_the_portable_ones(tmp_path: Path) -> None:
    """Red when the AVX-512 kernels compute anything else than the portable ones, or read past a buffer."""
    program = tmp_path / "linear_paths_agree"
    kernels = tmp_path / "kernels.o"
    emulation = ("-include", str(HERE / "emulated_avx512.h"), "-mavx2", "-mfma", "-mf16c", f"-I{SOURCES}")
    subprocess.run(["g++", *FLAGS, *emulation, "-c", str(SOURCES / "linear_avx512.cc"), "-o", str(kernels)], check=True)
    plain = [
        str(HERE / "linear_paths_agree.cc"),
        str(SOURCES / "linear_layout.cc"),
        str(SOURCES / "linear_portable.cc"),
    ]
    subprocess.run(["g++", *FLAGS, f"-I{SOURCES}", *plain, str(kernels), "-o", str(program)], check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "297 products agree" in result.stdout
