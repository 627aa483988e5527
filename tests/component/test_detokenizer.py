"""Streamed text is the decoded text, piece by piece, and never half a character."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import byte_level, metaspace, sentencepiece
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from relevo.core.baton import SampledToken
from relevo.core.errors import InvalidRequest
from relevo.core.model import TokenizerFiles
from relevo.gateway.openai.logprobs import chat_logprobs, token_text
from relevo.gateway.text.detokenizer import IncrementalDetokenizer
from relevo.gateway.text.tokenizer import Tokenizer

TOKENIZERS = {"byte_level": byte_level(), "sentencepiece": sentencepiece(), "metaspace": metaspace()}
BYTE_TOKENIZERS = {name: TOKENIZERS[name] for name in ("byte_level", "sentencepiece")}
REPLACEMENT = "\ufffd"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text(
    "the a b中é\U0001f60a\u200d ", max_size=30
)


def stream(tokenizer: Tokenizer, token_ids: list[int], **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*map(detokenizer.add, token_ids), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=150, deadline=None)
def test_stream_of_any_ids_is_their_decoding(name: str, data: st.DataObject, skip: bool) -> None:
    """Ids outside the vocabulary included: a model's logits may be wider than its vocabulary."""
    tokenizer = TOKENIZERS[name]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    streamed = "".join(stream(tokenizer, token_ids, skip_special_tokens=skip))
    assert streamed == tokenizer.decode(token_ids, skip_special_tokens=skip)


@given(st.data(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_byte_level_decoding_equals_the_library(data: st.DataObject, skip: bool) -> None:
    """Invalid UTF-8 included."""
    tokenizer = TOKENIZERS["byte_level"]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    expected = tokenizer.decode_whole(token_ids, skip_special_tokens=skip)
    assert tokenizer.decode(token_ids, skip_special_tokens=skip) == expected


@given(st.data(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_sentencepiece_decoding_equals_the_library_where_the_bytes_are_text(data: st.DataObject, skip: bool) -> None:
    """In a run of byte tokens with a fault the library gives up the whole run; a stream has sent part of it already."""
    tokenizer = TOKENIZERS["sentencepiece"]
    words = st.integers(260, tokenizer.vocab_size - 1).map(lambda i: [i]) | st.integers(0, 3).map(lambda i: [i])
    spelled = TEXT.map(lambda text: [4 + byte for byte in text.encode()])
    token_ids = [i for part in data.draw(st.lists(words | spelled, max_size=12)) for i in part]
    expected = tokenizer.decode_whole(token_ids, skip_special_tokens=skip)
    assert tokenizer.decode(token_ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("name", BYTE_TOKENIZERS)
@given(TEXT)
@settings(max_examples=150, deadline=None)
def test_text_survives_and_no_piece_holds_half_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    pieces = stream(tokenizer, tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False)
    assert "".join(pieces) == text
    assert text.count(REPLACEMENT) == sum(piece.count(REPLACEMENT) for piece in pieces)


@pytest.mark.parametrize("name", BYTE_TOKENIZERS)
def test_a_character_comes_with_its_last_byte(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    first = 4 if name == "sentencepiece" else None
    ids = [first + b for b in "\U0001f60a".encode()] if first else tokenizer.encode("\U0001f60a")
    assert len(ids) == 4
    assert stream(tokenizer, ids) == ["", "", "", "\U0001f60a", ""]


def test_unfinished_characters_are_replaced_at_the_end_only() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    *unfinished, _ = tokenizer.encode("中")
    assert stream(tokenizer, unfinished) == ["", "", REPLACEMENT]


def test_leading_space_of_sentencepiece() -> None:
    """A text of its own loses the tokenizer's space; a text that goes on keeps it; special tokens count for nothing."""
    tokenizer = TOKENIZERS["sentencepiece"]
    the = tokenizer.token_to_id("\u2581the")
    assert the is not None
    assert stream(tokenizer, [1, the, the]) == ["", "the", " the", ""]
    assert stream(tokenizer, [1, the, the], continues_text=True) == ["", " the", " the", ""]


def test_only_special_tokens_are_skipped() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert stream(tokenizer, [0, 2, 1], skip_special_tokens=True) == ["", "<tool>", "", ""]
    assert stream(tokenizer, [0, 2, 1], skip_special_tokens=False) == ["<s>", "<tool>", "</s>", ""]


def test_work_per_token_does_not_grow() -> None:
    """Turns red when the window decoder keeps what it has emitted."""
    seen: list[int] = []

    class Counting:
        decoder = None
        special_token_ids: frozenset[int] = frozenset()

        def decode_whole(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            seen.append(len(token_ids))
            return "x" * len(token_ids)

    detokenizer = IncrementalDetokenizer(Counting())  # type: ignore[arg-type]
    assert "".join(detokenizer.add(i) for i in range(200)) == "x" * 200
    assert max(seen) <= 33


def test_tokens_of_logprobs() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    part = tokenizer.encode("中")[0]
    assert tokenizer.token_to_bytes(part) == b"\xe4"
    assert tokenizer.token_to_bytes(0) == b"<s>"
    assert tokenizer.token_to_bytes(tokenizer.vocab_size + 5) == tokenizer.token_to_bytes(-1) == b""


def test_text_that_is_not_unicode_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        TOKENIZERS["byte_level"].encode("a\ud800b")


def test_encoding_lets_other_threads_run() -> None:
    """Turns red when encoding goes back to a call that keeps the interpreter lock."""
    tokenizer, done, steps = byte_level(), threading.Event(), 0
    text = "the quick brown fox " * 40_000

    def work() -> None:
        tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.001):
        steps += 1
    thread.join()
    assert steps > 5


@pytest.mark.parametrize("text", ["größer", "đem", "Ġx", "<ä>", "中文"])
@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_is_its_own_text_wherever_it_is_shown(text: str, special: bool) -> None:
    """Red when what was found in the text itself is read as the alphabet of bytes, as the library's decoder does."""
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, special=special, normalized=False)])
    files = TokenizerFiles(tokenizer_json=backend.to_str(), chat_template=None, bos_token=None, eos_token=None)
    tokenizer = Tokenizer(files)
    token_ids = tokenizer.encode(f"größ {text}!")
    assert 256 in token_ids
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == f"größ {text}!"
    assert "".join(stream(tokenizer, token_ids, skip_special_tokens=False)) == f"größ {text}!"
    assert token_text(tokenizer, 256) == text and tokenizer.token_to_bytes(256) == text.encode()
    shown = chat_logprobs(tokenizer, [SampledToken(256, -0.5, ((256, -0.5),))], 1)["content"][0]
    assert shown["token"] == shown["top_logprobs"][0]["token"] == text
