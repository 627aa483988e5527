"""The formats of quantised weights that a backend may multiply as they are stored."""

from __future__ import annotations

from typing import NamedTuple


class BlockFormat(NamedTuple):
    """A run of `elements` weights of a row, with what scales it."""

    elements: int
    stored_bytes: int  # in a GGUF file
    packed_bytes: int  # as the native backend holds it


# Of q4_k scales and minima lie in a byte each instead of 6 bits, of q6_k the weights.
BLOCK_FORMATS = {
    "q4_0": BlockFormat(32, 18, 18),
    "q4_1": BlockFormat(32, 20, 20),
    "q8_0": BlockFormat(32, 34, 34),
    "q4_k": BlockFormat(256, 144, 148),
    "q6_k": BlockFormat(256, 210, 274),
}
SUPER_FORMATS = frozenset(name for name, block in BLOCK_FORMATS.items() if block.elements == 256)

# What is stored in the first is held as the second, which has the same weights.
HELD_AS = {"q5_0": "q8_0"}
