"""Which file wins when a Hugging Face folder says the same thing in several places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_corpus import sentencepiece_fields

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.tokenizer_files import tokenizer_files_from_folder, tokenizer_files_from_gguf
from relevo.gateway.tokenizer import Tokenizer, backend_of

TOKENIZER_JSON = backend_of(tokenizer_files_from_gguf(sentencepiece_fields())).to_str()


def folder(path: Path, **files: Any) -> Path:
    """Write NAME.json per keyword argument, beside a tokenizer.json."""
    (path / "tokenizer.json").write_text(TOKENIZER_JSON)
    for name, content in files.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    files = tokenizer_files_from_folder(folder(tmp_path))
    assert (files.chat_template, files.bos_token, files.eos_token_ids) == (None, None, ())
    assert Tokenizer(files).encode("hello") == Tokenizer(tokenizer_files_from_gguf(sentencepiece_fields())).encode(
        "hello"
    )


def test_special_tokens_as_strings_and_as_objects(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        tokenizer_config={
            "bos_token": {"content": "<s>", "lstrip": False},
            "add_bos_token": True,
            "model_max_length": 1e30,
        },
        special_tokens_map={"bos_token": "ignored", "eos_token": "</s>", "additional_special_tokens": ["[INST]"]},
    )
    files = tokenizer_files_from_folder(path)
    assert (files.bos_token, files.eos_token) == ("<s>", "</s>")
    assert files.additional_special_tokens == ("[INST]",)
    assert files.add_bos_token is True
    assert files.model_max_length is None
    assert files.eos_token_ids == (2,)  # from the token, as no file names ids


def test_generation_config_wins_over_config(tmp_path: Path) -> None:
    path = folder(tmp_path, generation_config={"eos_token_id": [2, 3, 2], "top_p": 0.9}, config={"eos_token_id": 1})
    files = tokenizer_files_from_folder(path)
    assert files.eos_token_ids == (2, 3)
    assert files.generation_config["top_p"] == 0.9


def test_config_names_the_end_when_nobody_else_does(tmp_path: Path) -> None:
    assert tokenizer_files_from_folder(folder(tmp_path, config={"eos_token_id": 1})).eos_token_ids == (1,)


def test_chat_template_of_several_and_from_its_own_file(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    path = folder(tmp_path, tokenizer_config={"chat_template": named})
    assert tokenizer_files_from_folder(path).chat_template == "D"
    (path / "chat_template.jinja").write_text("J")
    assert tokenizer_files_from_folder(path).chat_template == "J"


def test_settings_of_a_training_run_do_not_cut_prompts(tmp_path: Path) -> None:
    """Turns red when truncation or padding left in tokenizer.json reaches requests."""
    document = json.loads(TOKENIZER_JSON)
    document["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer(tokenizer_files_from_folder(tmp_path))
    assert len(tokenizer.encode("hello world and the world")) > 2


def test_missing_or_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no tokenizer\.json"):
        tokenizer_files_from_folder(tmp_path)
    for broken in ("{", "[]"):
        with pytest.raises(ModelFileError, match=r"generation_config\.json"):
            tokenizer_files_from_folder(folder(tmp_path, generation_config=broken))
