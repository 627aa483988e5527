"""Which file wins when a Hugging Face folder says the same thing in several places."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from text_corpus import sentencepiece_fields

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.tokenizer_files import tokenizer_files_from_folder, tokenizer_files_from_gguf
from relevo.gateway.text.tokenizer import Tokenizer
from relevo.vocabulary.model_vocabulary import backend_of

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
        },
        special_tokens_map={"bos_token": "ignored", "eos_token": "</s>", "additional_special_tokens": ["[INST]"]},
    )
    files = tokenizer_files_from_folder(path)
    assert (files.bos_token, files.eos_token) == ("<s>", "</s>")
    assert files.additional_special_tokens == ("[INST]",)
    assert files.add_bos_token is True
    assert files.eos_token_ids == (2,)  # from the token, as no file names ids


def test_generation_ends_at_whatever_any_file_calls_an_end(tmp_path: Path) -> None:
    """Red when the first file that says something silences the others: texts then run on to their limit."""
    path = folder(
        tmp_path,
        generation_config={"eos_token_id": [5, 3, 5], "top_p": 0.9},
        config={"eos_token_id": 1, "text_config": {"eos_token_id": [4, 1]}},
        tokenizer_config={"eos_token": "</s>"},
    )
    files = tokenizer_files_from_folder(path)
    assert files.eos_token_ids == (5, 3, 1, 4, 2)
    assert files.generation_config["top_p"] == 0.9


@pytest.mark.parametrize("is_special", [True, False])
def test_the_end_of_a_turn_ends_generation_where_the_template_writes_it(tmp_path: Path, is_special: bool) -> None:
    document = json.loads(TOKENIZER_JSON)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": is_special}
    document["added_tokens"].append({"id": 900, "content": "<|im_end|>", **flags})
    path = folder(tmp_path, generation_config={"eos_token_id": 2}, tokenizer_config={"chat_template": "{{ messages }}"})
    (path / "tokenizer.json").write_text(json.dumps(document))
    files = tokenizer_files_from_folder(path)
    assert files.eos_token_ids == (2,)
    assert replace(files, chat_template="{{ messages }}<|im_end|>").eos_token_ids == (2, 900)
    assert replace(files, named_templates={"tool_use": "<|im_end|>"}).eos_token_ids == (2, 900)


@pytest.mark.parametrize("wrong", ["2", [2, None], True, -1, 2.0, {"a": 1}])
def test_an_end_that_is_no_token_id_is_named(tmp_path: Path, wrong: Any) -> None:
    for name in ("config", "generation_config"):
        with pytest.raises(ModelFileError, match=rf"{name}\.json: eos_token_id is .* mend it"):
            tokenizer_files_from_folder(folder(tmp_path, **{"config": {}, name: {"eos_token_id": wrong}}))


def test_config_names_the_end_when_nobody_else_does(tmp_path: Path) -> None:
    assert tokenizer_files_from_folder(folder(tmp_path, config={"eos_token_id": 1})).eos_token_ids == (1,)


def test_chat_template_of_several_and_from_its_own_file(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    path = folder(tmp_path, tokenizer_config={"chat_template": named})
    assert tokenizer_files_from_folder(path).chat_template == "D"
    assert tokenizer_files_from_folder(path).named_templates == {"tool_use": "T"}
    (path / "chat_template.json").write_text('{"chat_template": "P"}')
    assert tokenizer_files_from_folder(path).chat_template == "P"
    assert tokenizer_files_from_folder(path).named_templates == {}
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("A")
    (path / "additional_chat_templates" / "rag.jinja").write_text("R")
    (path / "chat_template.jinja").write_text("J")
    files = tokenizer_files_from_folder(path)
    assert (files.chat_template, files.named_templates) == ("J", {"tool_use": "A", "rag": "R"})


@pytest.mark.parametrize("file", ["tokenizer_config", "chat_template"])
def test_an_only_template_serves_whatever_its_name(tmp_path: Path, file: str) -> None:
    only = {"chat_template": [{"name": "tool_use", "template": "T"}]}
    files = tokenizer_files_from_folder(folder(tmp_path, **{file: only}))
    assert (files.chat_template, files.named_templates) == ("T", {})


def test_a_template_in_a_file_of_its_own_is_alone_unless_others_stand_beside_it(tmp_path: Path) -> None:
    """Red when a new chat_template.jinja is used for plain chats, and an old tool_use template for those with tools."""
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    path = folder(tmp_path, tokenizer_config={"chat_template": named})
    (path / "chat_template.jinja").write_text("J")
    files = tokenizer_files_from_folder(path)
    assert (files.chat_template, files.named_templates) == ("J", {})


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Red when a file that was saved on Windows stops the start, or its mark begins every prompt."""
    path = folder(tmp_path, generation_config="\ufeff" + '{"eos_token_id": 5}')
    (path / "chat_template.jinja").write_text("\ufeffJ", encoding="utf-8")
    (path / "tokenizer.json").write_text("\ufeff" + TOKENIZER_JSON, encoding="utf-8")
    files = tokenizer_files_from_folder(path)
    assert (files.chat_template, files.eos_token_ids) == ("J", (5,))
    assert Tokenizer(files).encode("hello")


def test_another_encoding_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "generation_config.json").write_bytes('{"eos_token_id": 5}'.encode("utf-16"))
    with pytest.raises(ModelFileError, match=r"generation_config\.json is not UTF-8 \(byte 0\); save it as UTF-8"):
        tokenizer_files_from_folder(path)


@pytest.mark.parametrize("name", ["eos_token", "bos_token", "additional_special_tokens"])
@pytest.mark.parametrize("wrong", [2, {"id": 2}, {"content": 2}, [2], [{}]])
def test_a_token_that_is_no_text_is_named(tmp_path: Path, name: str, wrong: Any) -> None:
    for file in ("tokenizer_config", "special_tokens_map"):
        path = folder(tmp_path, **{"tokenizer_config": {}, file: {name: wrong}})
        with pytest.raises(ModelFileError, match=rf"{name} is .* must be a token's text; mend it"):
            tokenizer_files_from_folder(path)


@pytest.mark.parametrize("wrong", [[{"id": 3}], [{"content": "x", "id": "y"}], [7], 7])
def test_added_tokens_that_are_none_are_named(tmp_path: Path, wrong: Any) -> None:
    path = folder(tmp_path)
    (path / "tokenizer.json").write_text(json.dumps(json.loads(TOKENIZER_JSON) | {"added_tokens": wrong}))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: added_tokens must be"):
        tokenizer_files_from_folder(path)


@pytest.mark.parametrize(
    "wrong", [7, [7], [{"name": "default"}], {"default": None}, [{"name": ["default"], "template": "T"}]]
)
def test_what_is_no_template_is_named(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: chat_template is neither"):
        tokenizer_files_from_folder(folder(tmp_path, tokenizer_config={"chat_template": wrong}))


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
