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
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED = (  # letters as the tokenizer.json of DeepSeek LLM and V2 lists them
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_NOT_HAN = "&&[^\\p{Han}]"
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]*[{_LOWER}{_NOT_HAN}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]+[{_LOWER}{_NOT_HAN}]*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_TAIL}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
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
GPT4O = PreTokenizer((_split(_GPT4O), _BYTES))
TIKTOKEN_GPT4O = PreTokenizer((_split(_GPT4O), _BYTES), ignore_merges=True)
LLAMA4 = PreTokenizer((_split(_GPT4O), _BYTES), ignore_merges=True, add_bos=True)
KIMI_K2 = PreTokenizer((_split(_KIMI), _BYTES), ignore_merges=True)
GLM4 = PreTokenizer((_split(_LLAMA3), _BYTES), ignore_merges=True)
DEEPSEEK3 = PreTokenizer(
    (_split(r"\p{N}{1,3}"), _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), _split(_DEEPSEEK3), _BYTES)
)
DEEPSEEK_LLM = PreTokenizer(
    (
        _split(r"[\r\n]"),
        _split(rf"\s?[{_CASED}]+"),
        _split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
        _split(r"\s+$"),
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
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-v3": DEEPSEEK3,
    "kimi-k2": KIMI_K2,
    "glm4": GLM4,
    "chatglm-bpe": LLAMA3_SPLIT_ONLY,
    "minimax-m2": GPT4O,
    "gpt-4o": TIKTOKEN_GPT4O,
    "llama4": LLAMA4,
}
