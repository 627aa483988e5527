"""Where the source of a unit of the kernels lies, for tests that compile some of them into programs of their own."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).parents[2] / "native" / "src"  # the root of includes


def source(unit: str) -> Path:
    """`linear_avx2` → `products/linear_avx2.cc`. ValueError if there is none, or more than one."""
    (path,) = SOURCES.glob(f"*/{unit}.cc")
    return path
