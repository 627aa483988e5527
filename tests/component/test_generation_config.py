"""From the files of a model and two settings to what requests sample with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted_gateway import rig, says

from relevo.build.configs import ServedModelConfig
from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.build.gateway import _generation_defaults
from relevo.build.serve import plan_serving
from relevo.core.errors import SettingsError, StartError
from relevo.engine.loaders.tokenizer_files import load_tokenizer_files, tokenizer_files_from_gguf
from relevo.settings import Settings

MAKERS = replace(fake_tokenizer_files(), generation_config={"temperature": 0.6, "top_k": 40})


def config(**asked: Any) -> ServedModelConfig:
    fields: Any = dict.fromkeys(ServedModelConfig.__struct_fields__, 0)
    fields |= {"served_model_names": ("tiny",), "generation_config": "auto", "override_generation_config": {}}
    return ServedModelConfig(**fields | asked)


def test_the_source_is_the_makers_none_or_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.5}')
    override = {"override_generation_config": {"min_p": 0.1}}
    assert _generation_defaults(config(), MAKERS) == {"temperature": 0.6, "top_k": 40}
    assert _generation_defaults(config(generation_config="vllm"), MAKERS) == {}
    assert _generation_defaults(config(generation_config=str(tmp_path)), MAKERS) == {"top_p": 0.5}
    assert _generation_defaults(config(**override), MAKERS) == {"temperature": 0.6, "top_k": 40, "min_p": 0.1}
    assert _generation_defaults(config(generation_config="vllm", **override), MAKERS) == {"min_p": 0.1}
    assert len(caplog.records) == 5 and "temperature 0.6" in caplog.text
    with pytest.raises(StartError, match="takes auto, vllm, or a folder"):
        _generation_defaults(config(generation_config=str(tmp_path / "no")), MAKERS)


def test_settings_come_as_json_from_a_flag_and_as_a_table_from_a_file() -> None:
    assert Settings(override_generation_config='{"top_k": 3}').override_generation_config == {"top_k": 3}
    assert Settings(override_generation_config={"top_k": 3}).override_generation_config == {"top_k": 3}
    for wrong in ("{", "[1]", "0.5", "[" * 100_000):
        with pytest.raises(ValueError, match="must be a JSON object"):
            Settings(override_generation_config=wrong)


def test_they_reach_the_gateway_whole() -> None:
    asked = Settings(model="fake", override_generation_config={"temperature": 0.5, "top_k": 3})
    sent = plan_serving(asked).models[0].served
    assert sent.override_generation_config == {"temperature": 0.5, "top_k": 3}
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(sent))), ServedModelConfig) == sent


async def test_what_a_client_says_wins_and_what_it_leaves_out_or_sends_as_null_does_not() -> None:
    makers = {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "max_new_tokens": 9,
    }
    r = rig(says("x"), generation_defaults=makers)
    neutral = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "max_tokens": 50}
    await r.chat()
    await r.chat(**dict.fromkeys(neutral))
    await r.chat(**neutral)
    silent, nulls, explicit = (request.sampling for request in r.generator.requests)
    assert replace(silent, seed=0) == replace(nulls, seed=0)
    drawn = (silent.temperature, silent.top_p, silent.top_k, silent.min_p, silent.repetition_penalty, silent.max_tokens)
    assert drawn == (0.2, 0.9, 5, 0.1, 1.1, 9)
    assert (explicit.temperature, explicit.top_k, explicit.repetition_penalty, explicit.max_tokens) == (1.0, 0, 1.0, 50)
    shown = (await r.get("/v1/models")).json()["data"][0]["default_sampling_params"]
    assert shown == makers


async def test_a_completion_keeps_the_apis_16_tokens() -> None:
    r = rig(says("x"), generation_defaults={"max_new_tokens": 9})
    await r.post("/v1/completions", {"prompt": "hi"})
    assert r.generator.requests[0].sampling.max_tokens == 16


def test_keys_of_a_gguf_file_are_read_under_their_own_names() -> None:
    fields: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.merges": [],
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 7,
        "general.sampling.penalty_repeat": 1.25,
        "general.sampling.sequence": "k;t",
    }
    files = tokenizer_files_from_gguf(fields)
    assert _generation_defaults(config(), files) == {"temperature": 0.5, "top_k": 7, "repetition_penalty": 1.25}


@pytest.mark.model
def test_the_packaged_model_answers_greedily() -> None:
    """Red when a newcomer's first question has a chance of one in three to be answered wrongly."""
    assert _generation_defaults(config(), load_tokenizer_files()) == {"temperature": 0.0}


def test_an_impossible_override_is_found_before_anything_starts() -> None:
    with pytest.raises(SettingsError, match="temperature is -1"):
        plan_serving(Settings(model="fake", override_generation_config={"temperature": -1}))
