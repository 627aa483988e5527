"""GET /tokenizer_info: what a client that makes its own prompts asks for, and POST /v1/embeddings: what is not here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_gateway import MODEL, rig, says

from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.engine.loaders.tokenizer_files import load_tokenizer_files, tokenizer_files_from_folder
from relevo.gateway.http.auth import ApiKeys
from relevo.gateway.text.tokenizer_info import tokenizer_info


async def test_it_says_what_the_files_say_and_the_served_length() -> None:
    """Red if a member that remote tokenizers read (eos_token, bos_token, pad_token, chat_template) goes missing."""
    info = tokenizer_info(replace(fake_tokenizer_files(), bos_token="<s>", pad_token="<pad>"), 123)
    told = (await rig(tokenizer_info=info).get("/tokenizer_info")).json()
    assert told == info
    assert (told["bos_token"], told["eos_token"], told["pad_token"]) == ("<s>", "<|end|>", "<pad>")
    assert (told["tokenizer_class"], told["model_max_length"]) == ("PreTrainedTokenizerFast", 123)
    assert told["chat_template"] == fake_tokenizer_files().chat_template


def test_the_class_is_the_one_that_the_folder_names(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(fake_tokenizer_files().tokenizer_json)
    for stated, told in (("LlamaTokenizerFast", "LlamaTokenizerFast"), (7, "PreTrainedTokenizerFast")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": stated}))
        assert tokenizer_info(tokenizer_files_from_folder(tmp_path), 8)["tokenizer_class"] == told


def test_the_packaged_model_has_all_that_is_asked_for() -> None:
    info = tokenizer_info(load_tokenizer_files(), 2048)
    assert info["eos_token"] == "<|im_end|>" and "<|im_start|>" in info["chat_template"]


async def test_of_several_models_one_is_named() -> None:
    assert (await rig().get(f"/tokenizer_info?model={MODEL}")).status_code == 200
    missing = await rig().get("/tokenizer_info?model=other")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


async def test_it_takes_the_key_that_tokenize_takes() -> None:
    r = rig(api_keys=ApiKeys.of(["secret"]))
    assert (await r.get("/tokenizer_info")).status_code == 401
    assert (await r.get("/tokenizer_info", **{"x-api-key": "secret"})).status_code == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
async def test_a_model_that_writes_text_has_no_embeddings(path: str) -> None:
    """Red if a decoder's numbers were given out as embeddings, or the path were one that nothing is at."""
    answer = await rig().post(path, {"model": MODEL, "input": ["a", "b"]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "embedding model" in error["message"] and "/v1/chat/completions" in error["message"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [("auto", "default"), ("default", "default"), ("flex", "flex"), ("priority", "default")],
)
async def test_an_answer_names_the_tier_that_served_it(asked: str, told: str) -> None:
    """Red if the tier that was asked for is repeated where another one served."""
    for answer in (await rig(says("x")).chat(service_tier=asked), await rig(says("x")).complete(service_tier=asked)):
        assert answer.json()["service_tier"] == told


async def test_an_answer_names_no_tier_where_the_request_named_none() -> None:
    """Red if it says null: schemas that list the tiers refuse that."""
    r = rig(says("x"))
    chunks = (await r.chat(stream=True)).text + (await r.complete(stream=True)).text
    assert "choices" in chunks and "service_tier" not in chunks
    assert all("service_tier" not in answer.json() for answer in (await r.chat(), await r.complete()))


async def test_a_header_decides_the_tier_over_the_body() -> None:
    r = rig(says("x"))
    body = {"prompt": "hi", "service_tier": "flex"}
    assert (await r.post("/v1/completions", body, **{"x-relevo-class": "interactive"})).json()[
        "service_tier"
    ] == "default"
