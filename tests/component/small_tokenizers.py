"""Tokenizers small enough that half characters, special tokens and leading spaces are the normal case."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import pre_tokenizers

from relevo.core.model import TokenizerFiles
from relevo.gateway.text.tokenizer import Tokenizer

SPACE = "\u2581"


def _tokenizer(tokens: list[str], special: set[str], decoder: dict[str, Any] | None, **document: Any) -> Tokenizer:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": token, "special": token in special, **flags}
        for i, token in enumerate(tokens)
        if token in special or token == "<tool>"
    ]
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}
    full = {"version": "1.0", "added_tokens": added, "model": model | document.pop("model", {}), "decoder": decoder}
    text = json.dumps(full | document)
    return Tokenizer(TokenizerFiles(tokenizer_json=text, chat_template=None, bos_token="<s>", eos_token="</s>"))


def byte_level() -> Tokenizer:
    """Every byte is a token; besides, a few words, two special tokens and an added one that is not special."""
    tokens = ["<s>", "</s>", "<tool>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġthe", "he", "ä¸Ń", "ðŁĺ", "Ĭ"]
    spelling = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokens = list(dict.fromkeys(tokens))
    return _tokenizer(tokens, {"<s>", "</s>"}, spelling, pre_tokenizer=spelling)


def sentencepiece() -> Tokenizer:
    """Byte tokens and a few pieces, most of them with the space in front."""
    words = [SPACE, f"{SPACE}the", "the", f"{SPACE}a", "b", "中", "é", f"{SPACE}{SPACE}"]
    tokens = ["<unk>", "<s>", "</s>", "<tool>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    normalizers = [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    return _tokenizer(
        tokens,
        {"<unk>", "<s>", "</s>"},
        {"type": "Sequence", "decoders": decoders},
        normalizer={"type": "Sequence", "normalizers": normalizers},
        model={"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True},
    )


def metaspace() -> Tokenizer:
    """A decoder that is not made of bytes."""
    tokens = ["<s>", "</s>", "<tool>", SPACE, f"{SPACE}the", "the", f"{SPACE}a", "b", "中", "é"]
    decoder = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    return _tokenizer(tokens, {"<s>", "</s>"}, decoder)
