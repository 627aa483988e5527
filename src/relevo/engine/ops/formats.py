"""The formats of quantised weights that a backend may multiply as they are stored."""

from __future__ import annotations

BLOCK_ELEMENTS = 32  # weights in one block of GGUF's simple quantisations
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34}  # of one block, with its float16 scale (and minimum)
