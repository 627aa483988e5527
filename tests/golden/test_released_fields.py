"""Fields that makers spell in several ways, or leave out, mean the same; those that would change numbers are refused.

Red when one spelling of a temperature, a list of layers, a base of positions or a rope scaling is passed over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import BACKENDS, LOCAL, PagedDecoder, hf_logits, hf_model, prompt, row, write_gguf
from transformers import Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

from relevo.core.errors import UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf
from relevo.engine.models.rope_config import length_notes

_SIZES = {"vocab_size": 96, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
_LONGROPE = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}


def rewritten(folder: Path, family: str, changes: dict[str, Any]) -> ModelConfig:
    """Of a saved config.json with other fields; None takes one out."""
    hf_model(family, **LOCAL[family]).config.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text()) | changes
    return config_from_hf({name: value for name, value in raw.items() if value is not None}, "config.json")


# ---- Llama 4 ---------------------------------------------------------------------------------------------------------

LLAMA4: dict[str, dict[str, Any]] = {
    "no temperature": {"attn_temperature_tuning": False},
    "every other layer without positions": {"no_rope_layers": [1, 0, 1, 0, 1]},
    "every third layer without positions": {"no_rope_layers": [], "no_rope_layer_interval": 3},
    "queries and keys as they are": {"use_qk_norm": False},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", LLAMA4)
def test_layers_without_positions_and_temperatures_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    """Past five chunks and eight steps of the temperature."""
    model, tokens = hf_model("llama4_text", **LOCAL["llama4_text"] | LLAMA4[case]), prompt(40)
    model.save_pretrained(tmp_path)
    logits = PagedDecoder(load_model_files(str(tmp_path)), backend=backend).step(row(tokens, 0, list(range(10))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_a_temperature_is_a_flag_or_a_number(tmp_path: Path) -> None:
    """Released configs say 4, and `transformers` has it where nothing is said."""
    off = rewritten(tmp_path, "llama4_text", {"attn_temperature_tuning": 0})
    assert off == rewritten(tmp_path, "llama4_text", {"attn_temperature_tuning": False})
    assert off.query_growth is None
    for stated in (4, None):
        tuned = rewritten(tmp_path, "llama4_text", {"attn_temperature_tuning": stated})
        assert tuned == rewritten(tmp_path, "llama4_text", {}) and tuned.query_growth is not None


# ---- Gemma 3 ---------------------------------------------------------------------------------------------------------


def test_two_bases_of_positions_are_read_in_both_spellings(tmp_path: Path) -> None:
    old = {
        "rope_parameters": None,
        "rope_theta": 500.0,
        "rope_local_base_freq": 50.0,
        "layer_types": None,
        "sliding_window_pattern": 3,
    }
    assert rewritten(tmp_path, "gemma3_text", old) == rewritten(tmp_path, "gemma3_text", {})


@pytest.mark.parametrize("name", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_a_soft_cap_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{name} 30\.0 is not implemented; null is"):
        rewritten(tmp_path, "gemma3_text", {name: 30.0})


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_a_soft_cap_of_a_gguf_file_is_refused(key: str, tmp_path: Path) -> None:
    """A zero says that there is none."""
    model, path = hf_model("gemma3_text", **LOCAL["gemma3_text"]), tmp_path / "model.gguf"
    write_gguf(model, path, keys={key: 0.0})
    load_model_files(str(path))
    write_gguf(model, path, keys={key: 30.0})
    with pytest.raises(UnsupportedModel, match=rf"{key} 30\.0 is not implemented"):
        load_model_files(str(path))


# ---- Qwen3-Next, Qwen3.5 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Qwen3NextConfig, Qwen3_5TextConfig, Qwen3_5MoeTextConfig])
def test_a_part_that_is_rotated_is_a_quarter_where_nothing_says_it(kind: Any) -> None:
    raw = kind(**_SIZES, num_hidden_layers=4, head_dim=32).to_dict()
    raw |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}, "partial_rotary_factor": None}
    assert config_from_hf(raw, "config.json").rotary_size == 8


# ---- rope scalings ---------------------------------------------------------------------------------------------------


def llama(scaling: dict[str, Any], spelling: str = "rope_scaling") -> ModelConfig:
    raw = {"model_type": "llama", **_SIZES, "intermediate_size": 64, "num_hidden_layers": 1}
    return config_from_hf({**raw, "max_position_embeddings": 128, spelling: scaling}, "config.json")


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", ["short_mscale", "long_mscale", "extrapolation_factor"])
def test_a_number_of_a_rope_scaling_that_nothing_reads_is_refused(name: str, spelling: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"rope scaling 'longrope' has {name} 1\.2, which is not implemented"):
        llama({"rope_type": "longrope", **_LONGROPE, name: 1.2}, spelling)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_answer_that_passes_the_original_length_has_one_list_of_factors(backend: str, tmp_path: Path) -> None:
    """Red when keys of before and after it are turned by different lists. `transformers` sees the whole at once."""
    factors = {"short_factor": [1.0 + 0.05 * i for i in range(8)], "long_factor": [1.5 + 0.5 * i for i in range(8)]}
    scaling = {"rope_type": "longrope", "rope_theta": 500.0, **factors, "original_max_position_embeddings": 48}
    model, tokens = hf_model("llama", rope_parameters=scaling, max_position_embeddings=96), prompt(94)
    model.save_pretrained(tmp_path)
    paged, blocks = PagedDecoder(load_model_files(str(tmp_path)), backend=backend), list(range(24))
    steps = [paged.step(row(tokens[:46], 0, blocks))]
    steps += [paged.step(row([token], place, blocks)) for place, token in enumerate(tokens[46:], 46)]
    np.testing.assert_allclose(np.concatenate(steps), hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_the_start_says_which_list_it_is() -> None:
    config = llama({"rope_type": "longrope", **_LONGROPE})
    (of_long,), (of_short,) = length_notes(config, 65), length_notes(config, 64)
    assert "factors of long sequences" in of_long and "factors of short sequences" in of_short
    dynamic = llama({"type": "dynamic", "factor": 2.0})
    assert length_notes(dynamic, 256) and not length_notes(dynamic, 128) and not length_notes(llama({}), 128)


def test_what_a_rope_scaling_has_of_no_consequence_is_left_out() -> None:
    assert llama({"type": "linear", "factor": 2.0, "finetuned": True}) == llama({"type": "linear", "factor": 2.0})
