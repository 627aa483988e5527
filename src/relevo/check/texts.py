"""What checks ask. Plain prompts that every instruction or base model goes on about for a while."""

from __future__ import annotations

import secrets
from random import Random

QUESTION = "Tell me a long story about a fox who wants to cross a river."
SECOND_QUESTION = "Explain in detail how bread is baked at home."
OPENING = "Once upon a time, in a village by the sea, there lived"
SECOND_OPENING = "The history of the printing press begins with"
EMOJI_OPENING = "🎉🐢🎉🐢🎉🐢🎉🐢🎉🐢🎉🐢🎉🐢"
MANY_SCRIPTS = "naïve Ελλάδα 日本語 한국어 עברית 👩‍👩‍👧‍👦 e\u0301 🇪🇺"
TOPICS = (
    "a lighthouse keeper", "the moons of Jupiter", "how to grow tomatoes", "a train through the desert",
    "the first bicycle", "a cat that speaks", "glass makers of Venice", "why the sky is blue",
    "a chess tournament", "the oldest tree", "cooking rice", "a letter from the sea",
)  # fmt: skip

_WORDS = (
    "river", "stone", "amber", "cloud", "tiger", "paper", "window",
    "garden", "silver", "winter", "market", "candle", "bridge", "forest",
)  # fmt: skip


def fresh_words(rng: Random, num_words: int) -> str:
    """Text that was never sent before, not by an earlier run with the same seed either; about 1.3 tokens a word."""
    return " ".join([secrets.token_hex(5), *(rng.choice(_WORDS) for _ in range(num_words - 1))])
