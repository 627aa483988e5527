"""How each family of byte-level BPE vocabularies cuts text into words before merging.

GGUF names the family in `tokenizer.ggml.pre` and leaves the rest to the reader. This table gives, per name, the
`tokenizers` pre-tokenizer that the family's own tokenizer.json has. It knows nothing of vocabularies.
Source: the families' published tokenizer.json files; for `default`, which no model publishes, llama.cpp's rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family. `ignore_merges`: a word that is itself a token is taken whole, whatever the merges say."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    add_bos: bool = False  # what holds when the file does not say

    def to_json(self) -> dict[str, Any]:
        if len(self.steps) == 1:
            return self.steps[0]
        return {"type": "Sequence", "pretokenizers": list(self.steps)}


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_DIGITS = {"type": "Digits", "individual_digits": True}
_BYTES = _byte_level(use_regex=False)  # spell bytes only
_GPT2_BYTES = _byte_level(use_regex=True)  # GPT-2's own split, then spell bytes

GPT2 = PreTokenizer((_GPT2_BYTES,))
DIGITS_GPT2 = PreTokenizer((_DIGITS, _GPT2_BYTES))
LLAMA3 = PreTokenizer((_split(_LLAMA3), _BYTES), ignore_merges=True, add_bos=True)
LLAMA3_SPLIT_ONLY = PreTokenizer((_split(_LLAMA3), _BYTES))
QWEN2 = PreTokenizer((_split(_QWEN2), _BYTES), normalizer={"type": "NFC"})
QWEN2_SPLIT_ONLY = PreTokenizer((_split(_QWEN2), _BYTES))
TEKKEN = PreTokenizer((_split(_TEKKEN), _BYTES), ignore_merges=True, add_bos=True)
DEEPSEEK_CODER = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split(r"[一-龥ࠀ-一가-퟿]+"),
        _DIGITS,
        _BYTES,
    )
)
DEFAULT = PreTokenizer(
    (_split(r"[\p{P}\$\+<=>\^~\|]+"), _split(_GPT2), _split(r"\p{N}+"), _split(r"[0-9][0-9][0-9]"), _BYTES)
)

PRE_TOKENIZERS = {
    "default": DEFAULT,
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "olmo": GPT2,
    "mpt": GPT2,
    "smollm": DIGITS_GPT2,
    "starcoder": DIGITS_GPT2,
    "refact": DIGITS_GPT2,
    "codeshell": DIGITS_GPT2,
    "command-r": DIGITS_GPT2,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "smaug-bpe": LLAMA3_SPLIT_ONLY,
    "dbrx": LLAMA3_SPLIT_ONLY,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2_SPLIT_ONLY,
    "megrez": QWEN2_SPLIT_ONLY,
    "tekken": TEKKEN,
    "deepseek-coder": DEEPSEEK_CODER,
}
