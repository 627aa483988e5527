"""The Arm paths on other processors: cross-compiled, and run by an emulator.

`apt-get install g++-aarch64-linux-gnu qemu-user-static` gives both.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kernel_sources import SOURCES, source

HERE = Path(__file__).parent
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
FLAGS = ("-std=c++17", "-O0", "-ffp-contract=off", "-w", f"-I{SOURCES}")
INSTRUCTIONS = {  # as native/CMakeLists.txt has them
    "neon": (),
    "dotprod": ("-march=armv8.2-a+dotprod",),
    "i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
}
CHOICE = (  # what a choice of path needs besides products: each path tries all its kernels
    *("cpu", "linear", "linear_proof", "rows_proof", "attention_proof", "delta_proof"),
    *(
        f"{unit}{path}"
        for unit in ("attention", "elementwise", "sampling", "gated_delta")
        for path in ("", "_portable", "_neon")
    ),
)

pytestmark = [
    pytest.mark.timeout(900),  # compiling takes some seconds of processor time, longer where others compute
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER} to compile for Arm"),
    pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"needs {EMULATOR} to run what was compiled for Arm"),
]


def compiled(source: Path, to: Path, *flags: str) -> Path:
    subprocess.run([COMPILER, *FLAGS, *flags, "-c", str(source), "-o", str(to)], check=True)
    return to


def linked(name: str, objects: list[Path], folder: Path, *flags: str) -> Path:
    program = folder / name
    inputs = [str(HERE / f"{name}.cc"), *map(str, objects)]
    subprocess.run([COMPILER, *FLAGS, *flags, "-static", *inputs, "-o", str(program)], check=True)
    return program


def run(program: Path, *arguments: str, processor: str = "max") -> subprocess.CompletedProcess[str]:
    return subprocess.run([EMULATOR, "-cpu", processor, str(program), *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Objects: of each path's products, and of what they need."""
    folder = tmp_path_factory.mktemp("arm")
    flags = INSTRUCTIONS | {"layout": (), "portable": ()}
    return {unit: compiled(source(f"linear_{unit}"), folder / f"{unit}.o", *of) for unit, of in flags.items()}


def test_vectors_of_four_compute_what_the_portable_ones_do(tmp_path: Path) -> None:
    """All kernels but the products are written in these operations. Red when one of them gives other bits."""
    result = run(linked("arm_vectors_agree", [], tmp_path))
    assert (result.returncode, result.stdout) == (0, "22000 results agree\n")


@pytest.mark.slow
@pytest.mark.parametrize("path", INSTRUCTIONS)
def test_products_have_the_bits_of_the_portable_ones(path: str, kernels: dict[str, Path], tmp_path: Path) -> None:
    """For any number of rows, so a row alone has the bits that it has among others. Red when a path computes anything
    else than the definition: another order of additions, a wrong plane of 16-bit inputs, a wrong row of a pair.
    """
    objects = [kernels[unit] for unit in (path, "layout", "portable")]
    program = linked("linear_paths_agree", objects, tmp_path, f"-DKERNELS=kLinear{path.capitalize()}")
    result = run(program)
    assert (result.returncode, result.stdout) == (0, "594 products agree\n")


@pytest.mark.slow
def test_the_best_path_of_each_processor_is_chosen_and_proves_itself(kernels: dict[str, Path], tmp_path: Path) -> None:
    """Red when a path is offered to a processor without its instructions, or the proof at start refuses a right one."""
    has = ("-DRELEVO_HAS_DOTPROD", "-DRELEVO_HAS_I8MM")
    units = [compiled(source(unit), tmp_path / f"{unit}.o", *has) for unit in CHOICE]
    program = linked("arm_path_choice", [*units, *kernels.values()], tmp_path)

    best = "is the best path that this processor can run"
    assert run(program, processor="cortex-a72").stdout == (
        f"portable neon -> neon: neon {best}; dotprod lacks DotProd; i8mm lacks DotProd, I8MM\n"
    )
    assert run(program, processor="neoverse-n1").stdout == (
        f"portable neon dotprod -> dotprod: dotprod {best}; i8mm lacks I8MM\n"
    )
    assert run(program, processor="max").stdout == f"portable neon dotprod i8mm -> i8mm: i8mm {best}\n"
    assert "-> neon: neon was asked for" in run(program, "neon", processor="max").stdout
    refused = run(program, "i8mm", processor="cortex-a72")
    assert refused.returncode == 1
    assert (
        "the CPU path 'i8mm' cannot be used here, it lacks DotProd, I8MM; available: portable, neon" in refused.stdout
    )
