"""A GGUF file of a family with fields of its own gives, to the bit, the model of the folder that it was converted from.

Red if a key is taken for another field, a default of llama.cpp's reader is missed, or a tensor's name, order or half is
wrong; and if what contradicts itself, or is not known, ends in anything but a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize, quantize
from gguf_converter import Keys, Tensors, convert
from tiny_decoders import BACKENDS, LOCAL, TINY_LATENT, PagedDecoder, hf_logits, hf_model, prompt, row
from transformers import PreTrainedModel

from kept_folders import kept_folder
from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ModelConfig
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files

_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "rope_theta": 500.0,
}
_GLM = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "attention_bias": True,
    "head_dim": 24,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
_LLAMA4 = {**LOCAL["llama4_text"], "num_local_experts": 16, "attention_chunk_size": 8192, "floor_scale": 8192}
_NO_ENDS = {"bos_token_id": None, "eos_token_id": None}
_SOFTMAX = {"topk_method": "group_limited_greedy", "norm_topk_prob": False}
_MAGNITUDES = {"mscale": 0.707, "mscale_all_dim": 0.707}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v2": ("deepseek_v2", {**TINY_LATENT, **_SOFTMAX}),
    "deepseek-v2-lite": (
        "deepseek_v2",
        {**TINY_LATENT, **_SOFTMAX, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "q_lora_rank": None},
    ),
    "deepseek-v3": ("deepseek_v3", {**TINY_LATENT, "rope_parameters": _YARN | _MAGNITUDES}),
    "deepseek-v3-yarn": ("deepseek_v3", {**TINY_LATENT, "rope_parameters": _YARN, "norm_topk_prob": False}),
    "glm": ("glm4_moe", _GLM),
    "glm-plain": ("glm4_moe", {**_GLM, "use_qk_norm": False, "attention_bias": False, "norm_topk_prob": False}),
    "minimax": (
        "minimax_m2",
        {
            "num_local_experts": 12,
            "num_experts_per_tok": 3,
            "head_dim": 24,
            **_NO_ENDS,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 500.0},
        },
    ),
    "gpt-oss": ("gpt_oss", LOCAL["gpt_oss"]),
    "llama4": ("llama4_text", _LLAMA4),
    "llama4-maverick": ("llama4_text", {**_LLAMA4, "num_local_experts": 128, "use_qk_norm": False}),
    "qwen3-moe": (
        "qwen3_moe",
        {
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "head_dim": 16,
        },
    ),
}


@cache
def original(case: str) -> tuple[PreTrainedModel, Path]:
    family, changes = CASES[case]
    model, folder = hf_model(family, **changes), kept_folder("gguf")
    model.save_pretrained(folder)
    return model, folder


def converted(case: str, path: Path, **options: Any) -> ModelFiles:
    convert(original(case)[1], path / "model.gguf", **options)
    return load_model_files(str(path / "model.gguf"))


def logits(files: ModelFiles, backend: str = "torch", length: int = 50) -> np.ndarray:
    return PagedDecoder(files, backend=backend).step(row(prompt(length), 0, list(range(20))))


def comparable(config: ModelConfig) -> ModelConfig:
    """Without how experts lie in files, layers that files leave out, a folder's word of its dtype, and last digits."""
    experts = config.experts and replace(config.experts, projections=(), is_interleaved=False)
    scaling = {"beta_fast": 32.0, "beta_slow": 1.0, **config.rope_scaling} if config.rope_scaling else {}
    eps = float(np.float32(config.rms_norm_eps))
    plain = replace(config, experts=experts, rope_scaling=scaling, rms_norm_eps=eps)
    return replace(plain, num_mtp_layers=0, dtype="")


@pytest.mark.parametrize("case", CASES)
def test_the_config_is_the_folders(case: str, tmp_path: Path) -> None:
    stored, folder = converted(case, tmp_path), load_model_files(str(original(case)[1]))
    assert comparable(stored.config) == comparable(folder.config)
    assert stored.num_parameters == folder.num_parameters


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_folders_to_the_bit(case: str, backend: str, tmp_path: Path) -> None:
    ours = logits(converted(case, tmp_path), backend)
    np.testing.assert_array_equal(ours, logits(load_model_files(str(original(case)[1])), backend))
    np.testing.assert_allclose(ours, hf_logits(original(case)[0], prompt(50)), atol=1e-4, rtol=1e-4)


OTHER_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "keys and values of latents in one": ("deepseek-v3", {"whole_latents": True}),
    "without the key of softmax": ("deepseek-v2", {"keys": lambda keys: keys.pop("expert_gating_func")}),
    "gates and values in one": ("deepseek-v3", {"fused": True}),
    "gates and values of gpt-oss in one": ("gpt-oss", {"fused": True}),
    "gates and values of qwen in one": ("qwen3-moe", {"fused": True}),
    "windows by layer": (
        "gpt-oss",
        {"keys": lambda keys: keys.update({"attention.sliding_window_pattern": [True, False, True]})},
    ),
    "a head that is tied": ("glm", {"tensors": lambda tensors: tensors.pop("output.weight")}),
}


def test_a_bias_of_sigmoids_that_a_file_does_not_speak_of_is_refused(tmp_path: Path) -> None:
    """Without the key a deepseek2 file is V2's, whose routers have none: red when its weights come from a softmax."""
    with pytest.raises(UnsupportedModel, match=r"first is model\.layers\.1\.mlp\.gate\.e_score_correction_bias"):
        converted("deepseek-v3-yarn", tmp_path, keys=lambda keys: keys.pop("expert_gating_func"))


@pytest.mark.parametrize("scale", [0.0, None])
def test_no_scale_of_weights_is_one(scale: float | None, tmp_path: Path) -> None:
    def change(keys: Keys) -> None:
        keys.pop("expert_weights_scale")
        keys.update({} if scale is None else {"expert_weights_scale": scale})

    experts = converted("deepseek-v3", tmp_path, keys=change).config.experts
    assert experts is not None and experts.routing.scale == 1.0


@pytest.mark.parametrize("form", [form for form in OTHER_FORMS if "tied" not in form])
def test_other_forms_of_files_are_the_same_model(form: str, tmp_path: Path) -> None:
    case, options = OTHER_FORMS[form]
    np.testing.assert_array_equal(logits(converted(case, tmp_path, **options)), logits(converted(case, tmp_path)))


def test_a_file_without_a_head_is_tied(tmp_path: Path) -> None:
    case, options = OTHER_FORMS["a head that is tied"]
    assert converted(case, tmp_path, **options).config.tie_word_embeddings


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    """A file counts them among its layers."""

    def with_drafts(tensors: Tensors) -> None:
        tensors |= {f"blk.3.{name}.weight": np.ones(64, np.float32) for name in ("nextn.enorm", "attn_norm")}

    counts = {"block_count": 4, "nextn_predict_layers": 1}
    files = converted("glm", tmp_path, keys=lambda keys: keys.update(counts), tensors=with_drafts)
    assert (files.config.num_layers, files.config.num_mtp_layers) == (3, 1)
    np.testing.assert_array_equal(logits(files), logits(converted("glm", tmp_path)))


def test_a_folder_with_layers_that_draft_is_read_too() -> None:
    """As GLM-4.5's is released."""
    raw = {**_GLM, "model_type": "glm4_moe", "num_nextn_predict_layers": 1}
    from relevo.engine.models.families import config_from_hf

    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    assert config_from_hf({**raw, **sizes, "max_position_embeddings": 128}, "config.json").num_mtp_layers == 1


@pytest.mark.parametrize(
    ("count", "groups"), [(64, (1, 1)), (160, (8, 3)), (256, (8, 4)), (384, (1, 1))], ids=lambda each: str(each)
)
def test_files_from_before_groups_were_written_have_those_of_the_model(
    count: int, groups: tuple[int, int], tmp_path: Path
) -> None:
    """The only models that there were. The tensors here have fewer experts, which is told after the config is read."""

    def older(keys: Keys) -> None:
        keys["expert_count"] = count
        del keys["expert_group_count"], keys["expert_group_used_count"]

    with pytest.raises(ModelFileError, match=f"for {count} experts"):
        converted("deepseek-v3", tmp_path, keys=older)
    with pytest.raises(ModelFileError, match=r"lacks the key deepseek2\.expert_group_count, and 12 experts"):
        converted("deepseek-v3", tmp_path, keys=lambda keys: (older(keys), keys.update(expert_count=12)))
    from relevo.engine.models.gguf_fields import _GROUPS

    assert _GROUPS[count] == groups


# ---- quantised ------------------------------------------------------------------------------------------------------


def test_halves_of_latents_are_what_the_file_says(tmp_path: Path) -> None:
    """Keys are quantised along another axis than the whole matrix would be."""
    q8, changes = GGMLQuantizationType.Q8_0, {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
    sizes = {"q_lora_rank": 64, "moe_intermediate_size": 64, "hidden_size": 64, "n_shared_experts": 1}
    model = hf_model("deepseek_v3", **{**TINY_LATENT, **changes, **sizes, "rope_parameters": _YARN})
    model.save_pretrained(tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "model.gguf", matrices_as=q8)
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    heads = model.state_dict()[name].numpy().reshape(4, 64, 32)

    def stored(array: np.ndarray) -> np.ndarray:
        return dequantize(quantize(np.ascontiguousarray(array), q8), q8)

    keys, values = stored(heads[:, :32].swapaxes(1, 2)).swapaxes(1, 2), stored(heads[:, 32:])
    expected = np.concatenate((keys, values), axis=1).reshape(256, 32)
    files = load_model_files(str(tmp_path / "model.gguf"))
    np.testing.assert_array_equal(dict(files.tensors())[name].array, expected)
    raw = dict(files.tensors(raw_formats=frozenset({"q8_0"}), dequantised_as="bfloat16"))
    assert raw[name].dtype == "bfloat16" and raw["model.layers.1.mlp.experts.3.down_proj.weight"].dtype == "q8_0"


def mxfp4(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Of codes [..., 32] and exponents [...]: ggml has the first half of a block in the low halves of its bytes."""
    return np.concatenate((exponents[..., None], codes[..., :16] | codes[..., 16:] << 4), axis=-1).reshape(
        *exponents.shape[:-1], -1
    )


def with_mxfp4(tensors: Tensors) -> None:
    rng = np.random.default_rng(1)
    for name in [name for name in tensors if "_exps.weight" in name]:
        shape = (*tensors[name].shape[:-1], tensors[name].shape[-1] // 32)
        codes = rng.integers(0, 16, (*shape, 32), dtype=np.uint8)
        tensors[name] = mxfp4(codes, rng.integers(120, 126, shape, dtype=np.uint8))


VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def test_mxfp4_is_what_the_format_says(tmp_path: Path) -> None:
    """By the OCP specification: four bits of a table, times a power of two for 32 of them."""
    written: Tensors = {}
    files = converted("gpt-oss", tmp_path, tensors=lambda tensors: (with_mxfp4(tensors), written.update(tensors)))
    loaded = dict(files.tensors())
    for number in (0, 4):
        blocks = written["blk.2.ffn_up_exps.weight"][number].reshape(32, 2, 17)
        codes = np.concatenate((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), axis=-1)
        expected = VALUES[codes] * np.exp2(blocks[..., :1].astype(np.float32) - 127)
        found = loaded[f"model.layers.2.mlp.experts.{number}.up_proj.weight"].floats()
        np.testing.assert_array_equal(found, expected.reshape(32, 64))
    rounded = dict(files.tensors(dequantised_as="bfloat16"))["model.layers.2.mlp.experts.4.up_proj.weight"]
    np.testing.assert_array_equal(rounded.floats(), found)


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    def broken(tensors: Tensors) -> None:
        with_mxfp4(tensors)
        tensors["blk.1.ffn_down_exps.weight"][3, 5, 0] = 255

    files = converted("gpt-oss", tmp_path, tensors=broken)
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_down_exps\.weight has scales that are no numbers"):
        list(files.tensors())


# ---- what is refused ------------------------------------------------------------------------------------------------

Change = Callable[[Any], object]


def _set(**values: Any) -> Change:
    return lambda keys: keys.update({name.replace("__", "."): value for name, value in values.items()})


KEYS: dict[str, tuple[str, Change, str]] = {
    "a key that is not known": ("glm", _set(logit_scale=2.0), r"1 keys are not known .* glm4moe\.logit_scale"),
    "a scale of attention": ("deepseek-v3", _set(attention__temperature_scale=0.1), r"first is .*temperature_scale"),
    "another way of scoring": ("deepseek-v3", _set(expert_gating_func=4), "expert_gating_func 4 is not implemented"),
    "softmax in glm": ("glm", _set(expert_gating_func=1), "expert_gating_func 1 is not what this"),
    "no word of norms": ("glm", lambda keys: keys.pop("expert_weights_norm"), r"lacks the key glm4moe\.expert_weights"),
    "sizes that differ": (
        "minimax",
        _set(expert_feed_forward_length=40),
        "expert_feed_forward_length is 40 and not 96",
    ),
    "an absorbed key of another size": ("deepseek-v3", _set(attention__key_length=40), "key_length is 40 and not 32"),
    "heads of keys": ("deepseek-v3", _set(attention__head_count_kv=4), "head_count_kv is 4 and not 1"),
    "a head that is rotated whole": ("deepseek-v3", _set(attention__key_length_mla=8), "is 8 and 8 of it are rotated"),
    "groups that do not divide": ("deepseek-v3", _set(expert_group_count=5), "12 experts cannot be 5 equal groups"),
    "no experts": ("llama4", lambda keys: keys.pop("expert_count"), "'llama4' without experts is not implemented"),
    "experts of no known model": ("llama4", _set(expert_count=32), "known of 16 and 128 experts, not of 32"),
    "chunks of another size": ("llama4", _set(attention__sliding_window=4096), "sliding_window is 4096 and not 8192"),
    "a scaled router": ("gpt-oss", _set(expert_weights_scale=2.5), r"expert_weights_scale 2\.5 is not implemented"),
    "windows of other layers": (
        "gpt-oss",
        _set(attention__sliding_window_pattern=[True, False]),
        "has 2 entries for 3 layers",
    ),
    "half a yarn": ("gpt-oss", _set(rope__scaling__yarn_ext_factor=0.5), r"yarn_ext_factor 0\.5 is not implemented"),
    "more drafts than layers": ("glm", _set(nextn_predict_layers=3), "num_hidden_layers is 0"),
    "stretched scores": ("qwen3-moe", _set(rope__scaling__yarn_log_multiplier=0.1), "yarn_log_multiplier 0.1 is not"),
}


@pytest.mark.parametrize("fault", KEYS)
def test_keys_that_are_strange_or_contradict_are_named(fault: str, tmp_path: Path) -> None:
    case, change, sentence = KEYS[fault]
    with pytest.raises((ModelFileError, UnsupportedModel), match=sentence):
        converted(case, tmp_path, keys=change)


def _cut(name: str) -> Change:
    return lambda tensors: tensors.update({name: tensors[name][:-1]})


TENSORS: dict[str, tuple[str, Change, str]] = {
    "half of the latents' matrix": (
        "deepseek-v3",
        lambda tensors: tensors.pop("blk.1.attn_v_b.weight"),
        r"first is model\.layers\.1\.self_attn\.k_b_proj\.weight",
    ),
    "the other half": ("deepseek-v3", lambda tensors: tensors.pop("blk.1.attn_k_b.weight"), r"first is .*v_b_proj"),
    "a head too few": ("deepseek-v3", _cut("blk.0.attn_k_b.weight"), r"shape \[3, 24, 16\] and \[4, 24, 16\] follows"),
    "the matrix whole and in halves": (
        "deepseek-v3",
        lambda tensors: tensors.update({"blk.0.attn_kv_b.weight": np.zeros((112, 24), np.float32)}),
        r"has the weights of model\.layers\.0\.self_attn\.kv_b_proj\.weight twice",
    ),
    "an expert too few": ("glm", _cut("blk.1.ffn_up_exps.weight"), "for 12 experts; convert it anew"),
    "a bias too few": ("gpt-oss", _cut("blk.1.ffn_up_exps.bias"), "for 5 experts; convert it anew"),
    "a tensor of another family": (
        "minimax",
        lambda tensors: tensors.update({"blk.0.attn_sinks.weight": np.ones(4, np.float32)}),
        r"1 tensors .* first is blk\.0\.attn_sinks\.weight",
    ),
}


@pytest.mark.parametrize("fault", TENSORS)
def test_tensors_that_do_not_belong_are_named(fault: str, tmp_path: Path) -> None:
    case, change, sentence = TENSORS[fault]
    with pytest.raises((ModelFileError, UnsupportedModel), match=sentence):
        converted(case, tmp_path, tensors=change)
