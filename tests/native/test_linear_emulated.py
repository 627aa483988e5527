"""AVX-512 and AMX on processors without them: their sources are compiled with emulated instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from kernel_sources import SOURCES, source

native = pytest.importorskip("relevo_native._native")

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O0", "-ffp-contract=off", "-fsanitize=address", "-w", "-Wno-psabi", f"-I{SOURCES}")
EMULATION = ("-include", str(HERE / "emulated_amx.h"), "-mavx2", "-mfma", "-mf16c")
PLAIN = ("linear_layout", "linear_portable")

pytestmark = [
    pytest.mark.timeout(600),  # compiling takes some seconds of processor time, longer where others compute
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the emulation"),
    pytest.mark.skipif("avx2" not in native.available_paths(), reason="the emulation needs AVX2"),
]


def compile_emulated(unit: str, folder: Path) -> Path:
    kernels = folder / f"{unit}.o"
    subprocess.run(["g++", *FLAGS, *EMULATION, "-c", str(source(unit)), "-o", str(kernels)], check=True)
    return kernels


@pytest.fixture(scope="module")
def avx512_kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [compile_emulated("linear_avx512", tmp_path_factory.mktemp("emulated"))]


def run_program(name: str, units: Sequence[str], kernels: Sequence[Path], folder: Path, *flags: str) -> str:
    """What the program says. Fails if it does not end well."""
    program = folder / name
    inputs = [str(HERE / f"{name}.cc"), *(str(source(unit)) for unit in units), *map(str, kernels)]
    subprocess.run(["g++", *FLAGS, *flags, *inputs, "-o", str(program)], check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_emulated_avx512_products_have_the_bits_of_the_portable_ones(
    avx512_kernels: list[Path], tmp_path: Path
) -> None:
    """Red when the AVX-512 kernels compute anything else than the portable ones, or read past a buffer."""
    assert "594 products agree" in run_program("linear_paths_agree", PLAIN, avx512_kernels, tmp_path)


def test_emulated_avx512bf16_products_have_the_bits_of_the_portable_ones(
    avx512_kernels: list[Path], tmp_path: Path
) -> None:
    """Red when pairs are added in another order, inputs are rounded otherwise, or a buffer is passed at its end."""
    kernels = [*avx512_kernels, compile_emulated("linear_avx512bf16", tmp_path)]
    said = run_program("linear_paths_agree", PLAIN, kernels, tmp_path, "-DKERNELS=kLinearAvx512Bf16")
    assert "594 products agree" in said


def test_emulated_amx_products_have_their_bits_and_spoilt_ones_are_found(
    avx512_kernels: list[Path], tmp_path: Path
) -> None:
    """Red when the AMX kernels compute anything else than the portable ones (bfloat16: than the documented order of
    additions), misuse a tile or read past a buffer; when the proof at start refuses them, or would take wrong ones.
    """
    kernels = [*avx512_kernels, compile_emulated("linear_amx", tmp_path)]
    said = run_program("linear_amx_agrees", (*PLAIN, "linear_proof"), kernels, tmp_path)
    assert "152 products agree" in said


def test_emulated_avx512_attention_and_rows_agree_and_spoilt_ones_are_found(tmp_path: Path) -> None:
    """Red when a lane goes astray, a query alone has other bits than among others, a buffer is passed at its end; when
    the proof at start refuses these kernels, or would take wrong ones.
    """
    units = ("attention", "elementwise", "sampling", "gated_delta")
    kernels = [compile_emulated(f"{unit}_avx512", tmp_path) for unit in units]
    plain = (
        "attention",
        "attention_proof",
        "rows_proof",
        "gated_delta",
        "delta_proof",
        *(f"{unit}_portable" for unit in units),
    )
    assert "40 attentions agree" in run_program("vectors_avx512_agree", plain, kernels, tmp_path)


TILE_CALLS = """
#include <immintrin.h>
#include "products/tiles_amx.h"
extern "C" void ours(const relevo::TileShapes* shapes, const void* from, void* to, size_t stride) {
  using namespace relevo;
  configure_tiles(*shapes);
  tile_zero<1>();
  tile_load<4>(from, stride);
  tile_add_signed_products<1, 4, 6>();
  tile_add_unsigned_products<2, 5, 7>();
  tile_add_bfloat_products<3, 4, 7>();
  tile_store<2>(to, stride);
  release_tiles();
}
extern "C" void theirs(const relevo::TileShapes* shapes, const void* from, void* to, size_t stride) {
  _tile_loadconfig(shapes);
  _tile_zero(1);
  _tile_loadd(4, from, stride);
  _tile_dpbssd(1, 4, 6);
  _tile_dpbusd(2, 5, 7);
  _tile_dpbf16ps(3, 4, 7);
  _tile_stored(2, to, stride);
  _tile_release();
}
"""


def test_tile_instructions_are_those_of_the_compiler_s_intrinsics(tmp_path: Path) -> None:
    """The emulation replaces them, so nothing else runs them here. Red when operands are swapped."""
    source = tmp_path / "tiles.cc"
    source.write_text(TILE_CALLS)
    amx = ("-mamx-tile", "-mamx-int8", "-mamx-bf16")
    compiled = subprocess.run(
        ["g++", "-std=c++17", "-O2", *amx, f"-I{SOURCES}", "-S", str(source), "-o", "-"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    ours, theirs = (
        [line.split() for line in re.findall(r"^\s+((?:ld|t)(?:tile|ile|dp).*)$", body, re.MULTILINE)]
        for body in re.split(r"^(?:ours|theirs):$", compiled, flags=re.MULTILINE)[1:]
    )
    assert len(ours) == 8
    assert ours == theirs
