"""The formats of quantised weights that a backend may multiply as they are stored."""

from __future__ import annotations

from typing import NamedTuple


class BlockFormat(NamedTuple):
    """A run of `elements` weights of a row, with what scales it."""

    elements: int
    stored_bytes: int  # in a GGUF file
    packed_bytes: int  # as the native backend holds it


# Of q4_k and q5_k scales and minima lie in a byte each instead of 6 bits.
BLOCK_FORMATS = {
    "q4_0": BlockFormat(32, 18, 18),
    "q4_1": BlockFormat(32, 20, 20),
    "q5_0": BlockFormat(32, 22, 22),
    "q5_1": BlockFormat(32, 24, 24),
    "q8_0": BlockFormat(32, 34, 34),
    "q4_k": BlockFormat(256, 144, 148),
    "q5_k": BlockFormat(256, 176, 180),
    "q6_k": BlockFormat(256, 210, 210),
}
X86_FORMATS = frozenset({"q5_0", "q5_1", "q4_k", "q5_k", "q6_k"})  # no kernels of their own elsewhere
ARM_PATHS = ("neon", "dotprod", "i8mm")


def multiplied_formats(path: str) -> frozenset[str]:
    """On this instruction path. On Arm what has no kernels there is faster as bfloat16."""
    formats = frozenset(BLOCK_FORMATS)
    return formats - X86_FORMATS if path in ARM_PATHS else formats
