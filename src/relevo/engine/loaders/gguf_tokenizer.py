"""Rebuilds a Hugging Face `tokenizers` JSON document from the tokenizer keys of a GGUF file.

Owns the two kinds of vocabulary that decoders use: `gpt2` (byte-level BPE) and `llama` (SentencePiece BPE with
byte fallback). It does not know where the fields came from, nor anything of chat templates.
Source: the GGUF specification's tokenizer keys; `tokenizers` serialisation format; for `llama`, the layout of the
tokenizer.json of Llama 2 and Mistral, in which every run of text between special tokens gets the leading space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import BpeTables
from relevo.engine.loaders.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

Json = dict[str, Any]

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # tokenizer.ggml.token_type
_SPACE = "\u2581"  # how SentencePiece spells a space
_KEY = "tokenizer.ggml."
_BPE: Json = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
    "vocab": {},
    "merges": [],
}


def tokenizer_from_gguf(fields: Mapping[str, Any]) -> tuple[str, BpeTables | None]:
    """The `tokenizers` document as a string, and the tables that are not in it. None: it is complete.

    Raises UnsupportedModel for a kind or family of vocabulary that cannot be rebuilt exactly, ModelFileError if keys
    are missing or contradict each other.
    """
    embedded = fields.get("tokenizer.huggingface.json")
    if isinstance(embedded, str):
        return embedded, None
    kind = fields.get(_KEY + "model")
    if kind == "gpt2":
        document, tables = _byte_level_document(fields)
    elif kind == "llama":
        document, tables = _sentencepiece_document(fields)
    else:
        raise UnsupportedModel(
            f"the GGUF file has a tokenizer of kind {kind!r}, and only 'gpt2' and 'llama' can be rebuilt from GGUF; "
            "serve the model's Hugging Face folder instead"
        )
    return orjson.dumps(document).decode(), tables


def pre_tokenizer_of(fields: Mapping[str, Any]) -> PreTokenizer:
    """The family named by `tokenizer.ggml.pre`. Raises UnsupportedModel for an unknown one."""
    name = fields.get(_KEY + "pre", "default")
    family = PRE_TOKENIZERS.get(name)
    if family is None:
        raise UnsupportedModel(
            f"the GGUF file's pre-tokenizer {name!r} is not one of {', '.join(sorted(PRE_TOKENIZERS))}; "
            "serve the model's Hugging Face folder instead"
        )
    return family


def adds_bos(fields: Mapping[str, Any]) -> bool:
    """Whether encoding with special tokens puts the begin-of-sequence token first."""
    stated = fields.get(_KEY + "add_bos_token")
    if stated is not None:
        return bool(stated)
    return fields.get(_KEY + "model") == "llama" or pre_tokenizer_of(fields).add_bos


def token_list(fields: Mapping[str, Any]) -> list[str]:
    """The vocabulary by id."""
    tokens = fields.get(_KEY + "tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelFileError("the GGUF file has no tokenizer.ggml.tokens; use a file that contains its tokenizer")
    return tokens


def added_tokens(fields: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Ids and texts of tokens that are matched whole, before the text is cut into words."""
    return [(i, token) for i, (token, kind) in enumerate(_typed_tokens(fields)) if kind in (_CONTROL, _USER_DEFINED)]


def _typed_tokens(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    tokens = token_list(fields)
    kinds = fields.get(_KEY + "token_type") or [_NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise ModelFileError(f"the GGUF file lists {len(tokens)} tokens but {len(kinds)} token types; it is broken")
    return zip(tokens, kinds, strict=True)


def _byte_level_document(fields: Mapping[str, Any]) -> tuple[Json, BpeTables]:
    family = pre_tokenizer_of(fields)
    vocab = {token: token_id for token_id, token in enumerate(token_list(fields))}
    merges = fields.get(_KEY + "merges")
    if merges is None:
        raise ModelFileError("the GGUF file has no tokenizer.ggml.merges, which byte-level BPE needs; convert it anew")
    document = {
        **_frame(fields),
        "normalizer": family.normalizer,
        "pre_tokenizer": family.to_json(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {**_BPE, "ignore_merges": family.ignore_merges},
    }
    return document, BpeTables(vocab, _merge_pairs(merges))


def _sentencepiece_document(fields: Mapping[str, Any]) -> tuple[Json, BpeTables]:
    vocab = {token: token_id for token_id, token in enumerate(token_list(fields))}
    merges = fields.get(_KEY + "merges")
    pairs = _merge_pairs(merges) if merges else _merges_from_scores(fields, vocab)
    spell_space: Json = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    read_space: Json = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    normalizers = [spell_space]
    decoders = [read_space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if fields.get(_KEY + "add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown_id = fields.get(_KEY + "unknown_token_id")
    unknown = token_list(fields)[unknown_id] if unknown_id is not None else "<unk>"
    document = {
        **_frame(fields),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            **_BPE,
            "unk_token": unknown if unknown in vocab else None,
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }
    return document, BpeTables(vocab, pairs)


def _merges_from_scores(fields: Mapping[str, Any], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token of two tokens, best score first: the order in which SentencePiece merges."""
    scores = fields.get(_KEY + "scores")
    if scores is None or len(scores) != len(vocab):
        raise ModelFileError("the GGUF file's tokenizer.ggml.scores do not fit its tokens; convert it anew")
    ordinary = {token: vocab[token] for token, kind in _typed_tokens(fields) if kind == _NORMAL}
    merges: list[tuple[str, str]] = []
    for token, _ in sorted(ordinary.items(), key=lambda each: (-scores[each[1]], each[1])):
        pairs = [
            (left, token[cut:])
            for cut in range(1, len(token))
            if (left := token[:cut]) in ordinary and token[cut:] in ordinary
        ]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: ordinary[pair[0]])  # which says the other half, too
        merges += pairs
    return merges


def _merge_pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for index, (left, right) in enumerate(pairs):
        if not (left and right):
            raise ModelFileError(f"the GGUF file's merge {merges[index]!r} is not a pair of tokens; it is broken")
    return pairs


def _frame(fields: Mapping[str, Any]) -> Json:
    """What both kinds share: added tokens and the begin- and end-of-sequence tokens."""
    added = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for token_id, (token, kind) in enumerate(_typed_tokens(fields))
        if kind in (_CONTROL, _USER_DEFINED) and token
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _post_processor(fields),
    }


def _post_processor(fields: Mapping[str, Any]) -> Json:
    before = _boundary_token(fields, "bos_token_id") if adds_bos(fields) else None
    after = _boundary_token(fields, "eos_token_id") if fields.get(_KEY + "add_eos_token") else None

    def around(sequence: str, type_id: int) -> list[Json]:
        parts: list[Json] = [{"Sequence": {"id": sequence, "type_id": type_id}}]
        if before:
            parts.insert(0, {"SpecialToken": {"id": before[0], "type_id": type_id}})
        if after:
            parts.append({"SpecialToken": {"id": after[0], "type_id": type_id}})
        return parts

    used = {
        token: {"id": token, "ids": [token_id], "tokens": [token]} for token, token_id in filter(None, (before, after))
    }
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": used,
    }


def _boundary_token(fields: Mapping[str, Any], key: str) -> tuple[str, int]:
    token_id, tokens = fields.get(_KEY + key), token_list(fields)
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise ModelFileError(f"the GGUF file asks for a token that its {_KEY}{key} ({token_id}) does not name")
    return tokens[token_id], token_id
