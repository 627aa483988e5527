"""Gemma's vocabularies from GGUF encode as SentencePiece does: no space before a text, runs of blanks as tokens of
their own, bytes for what is in no piece.

Red when a run is cut otherwise, a piece is merged over one, a byte is lost, or a stream is not the text. The library is
asked where it is installed (`pip install sentencepiece`), a real vocabulary where RELEVO_GEMMA_GGUF names its file.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_corpus import NUMBER_TEXTS, SPACE, TEXTS

from relevo.engine.loaders.gguf_metadata import read_metadata
from relevo.engine.loaders.tokenizer_files import tokenizer_files_from_gguf
from relevo.gateway.text.detokenizer import IncrementalDetokenizer
from relevo.gateway.text.tokenizer import Tokenizer

Fields = dict[str, Any]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
CONTROLS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
RUNS = (*("\n" * n for n in range(1, 4)), *(" " * n for n in range(2, 6)), "\t\t", "<table>")
WORDS = """
    t h e l o w r d a n s , . 1 2 é 中 ▁ he ll lo the ▁the hell hello ▁hello or wor ▁wor ld world ▁world an and ▁and ▁a
    ▁h th 12 ▁1 ,▁ .▁ s▁ é▁ 中▁ o▁ lo▁
    """


@cache
def small_fields() -> Fields:
    """In the order of Gemma's own: controls, user-defined ones, bytes, pieces with falling scores."""
    pieces = WORDS.split()
    tokens = [*CONTROLS, *RUNS, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN, CONTROL, CONTROL, *[USER_DEFINED] * len(RUNS), *[BYTE] * 256]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * len(kinds) + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.token_type": [*kinds, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }


@cache
def real_fields() -> Fields:
    path = os.environ.get("RELEVO_GEMMA_GGUF")
    if not path:
        pytest.skip("RELEVO_GEMMA_GGUF names no GGUF file of a Gemma model")
    return read_metadata(path)


FIELDS = {"small": small_fields, "real": real_fields}


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(tokenizer_files_from_gguf(FIELDS[name]()))


@cache
def processor(name: str) -> Any:
    """The library's, of a model made of the same pieces: spaces are spelled in it as in the text that it sees."""
    sentencepiece = pytest.importorskip("sentencepiece")
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    fields, model = FIELDS[name](), ModelProto()
    listed = (fields[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    for token, score, kind in zip(*listed, strict=True):
        text = token.replace(" ", SPACE) if kind == USER_DEFINED else token
        model.pieces.add(piece=text, score=score, type=kind)
    model.trainer_spec.model_type = 2  # BPE
    model.trainer_spec.byte_fallback = True
    for key in ("pad", "eos", "bos", "unk"):
        setattr(model.trainer_spec, f"{key}_piece", f"<{key}>")
        setattr(model.trainer_spec, f"{key}_id", CONTROLS.index(f"<{key}>"))
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def by_definition(fields: Fields, text: str) -> list[int]:
    """Runs first, the longest that begins leftmost; between them neighbours whose union scores best, leftmost first."""
    tokens, kinds, scores = (fields[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores"))
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    plain = {token: scores[ids[token]] for token, kind in zip(tokens, kinds, strict=True) if kind == NORMAL}
    whole = sorted((token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED), key=len)
    found = []
    for part in re.split("(" + "|".join(map(re.escape, reversed(whole))) + ")", text):
        if part in whole:
            found.append(ids[part])
            continue
        symbols = list(part.replace(" ", SPACE))
        while unions := [(-plain[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in plain]:
            _, i = min(unions)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for symbol in symbols:
            found += [ids[symbol]] if symbol in plain else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


NEAR = st.text(st.sampled_from([*"helowrdtans ,.12é中\n\t", "\U0001f600", "\u0301", "ش"]), max_size=40)
# A special token that is spelled out is one here, and none to the library; its sign of a space is a space to it.
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00<" + SPACE), max_size=25)


@given(NEAR)
@settings(max_examples=300, deadline=None)
def test_it_encodes_by_the_definition(text: str) -> None:
    assert tokenizer("small").encode(text, add_special_tokens=False) == by_definition(small_fields(), text)


@pytest.mark.parametrize("name", FIELDS)
@given(st.one_of(NEAR, ANY))
@settings(max_examples=300, deadline=None)
def test_it_encodes_as_the_library_does(name: str, text: str) -> None:
    assert tokenizer(name).encode(text, add_special_tokens=False) == processor(name).encode(text)


@pytest.mark.parametrize("name", FIELDS)
def test_it_encodes_known_texts_as_the_library_does(name: str) -> None:
    for text in (*TEXTS, *NUMBER_TEXTS):
        for part in re.split(r"[<\x00]", text):
            assert tokenizer(name).encode(part, add_special_tokens=False) == processor(name).encode(part), part


@pytest.mark.parametrize("name", FIELDS)
@given(st.one_of(NEAR, ANY))
@settings(max_examples=200, deadline=None)
def test_what_was_encoded_is_decoded_at_once_and_streamed(name: str, text: str) -> None:
    ours = tokenizer(name)
    ids = ours.encode(text)
    assert ids[0] == ours.bos_token_id
    assert ours.decode(ids) == text
    assert streamed(ours, ids) == text


@given(st.lists(st.integers(0, len(small_fields()["tokenizer.ggml.tokens"]) + 2), max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_tokens_are_streamed_as_they_are_decoded(ids: Sequence[int]) -> None:
    """Bytes that are no text, too."""
    assert streamed(tokenizer("small"), ids) == tokenizer("small").decode(ids)


def streamed(ours: Tokenizer, ids: Sequence[int]) -> str:
    detokenizer = IncrementalDetokenizer(ours)
    return "".join([*map(detokenizer.add, ids), detokenizer.flush()])


def test_turns_are_tokens_and_end_an_answer_where_the_template_writes_them() -> None:
    fields = small_fields() | {"tokenizer.chat_template": "<start_of_turn>{{ messages }}<end_of_turn>\n"}
    files = tokenizer_files_from_gguf(fields)
    assert files.eos_token_ids == (1, 5)
    ids = Tokenizer(files).encode("<start_of_turn>the\n\nworld<end_of_turn>", add_special_tokens=False)
    texts = [fields["tokenizer.ggml.tokens"][token_id] for token_id in ids]
    assert texts == ["<start_of_turn>", "the", "\n\n", "world", "<end_of_turn>"]


def test_a_space_before_the_text_is_as_the_file_says() -> None:
    prefixed = Tokenizer(tokenizer_files_from_gguf(small_fields() | {"tokenizer.ggml.add_space_prefix": True}))
    for text, spelled in (("hello", b" hello"), (" hello", b"  hello")):
        ids = prefixed.encode(text, add_special_tokens=False)
        assert b"".join(map(prefixed.token_to_bytes, ids)) == spelled
        assert prefixed.decode(ids) == streamed(prefixed, ids) == text
