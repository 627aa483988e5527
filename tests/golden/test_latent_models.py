"""Latent attention computes what `transformers` computes: DeepSeek V2 and V3, R1, Kimi K2, and K2.5 without its eyes.

Red if the two factors of YaRN, the order of rotated elements, the halves of the matrix behind the latents, an inner
norm or a router changes; if a field or a tensor is taken for another, or left out in silence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoders import BACKENDS, BLOCK_SIZE, TINY_LATENT, PagedDecoder, hf_logits, hf_model, prompt, row

from relevo.build.model import kv_layout
from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.kv import KVGroup
from relevo.core.model import ModelConfig, Routing
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf, spec_of
from relevo.policy.perf.model_config import model_shape

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 1.1,
}
V2 = {"norm_topk_prob": False, "topk_method": "group_limited_greedy"}
LITE = {"topk_method": "greedy", "n_group": None, "topk_group": None, "q_lora_rank": None}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "v3": ("deepseek_v3", {}),
    "v3-yarn": ("deepseek_v3", {"rope_parameters": YARN}),
    "v3-queries-without-a-latent": ("deepseek_v3", {"q_lora_rank": None}),
    "v3-biases": ("deepseek_v3", {"attention_bias": True}),
    "v3-halves": ("deepseek_v3", {"rope_interleave": False}),
    "v3-unnormalised": ("deepseek_v3", {"norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
    "v3-dense": ("deepseek_v3", {"first_k_dense_replace": 3}),
    "v2": ("deepseek_v2", V2),
    "v2-lite": ("deepseek_v2", {**V2, **LITE, "rope_parameters": YARN}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    """A prompt in one step, and again in chunks and single tokens."""
    family, changes = CASES[case]
    model = hf_model(family, **{**TINY_LATENT, **changes})
    model.save_pretrained(tmp_path)
    files, tokens, blocks = load_model_files(str(tmp_path)), prompt(60), list(range(20))
    expected = hf_logits(model, tokens)
    whole = PagedDecoder(files, backend=backend).step(row(tokens, 0, blocks))
    np.testing.assert_allclose(whole, expected, atol=1e-4, rtol=1e-4)
    paged = PagedDecoder(files, backend=backend)
    ends = [20, 33, *range(34, 61)]
    steps = [paged.step(row(tokens[start:end], start, blocks)) for start, end in zip([0, *ends], ends, strict=False)]
    np.testing.assert_allclose(np.concatenate(steps), expected, atol=1e-4, rtol=1e-4)


# ---- folders as they lie on the hub ---------------------------------------------------------------------------------


def rewritten(folder: Path, prefix: str = "", more: dict[str, torch.Tensor] | None = None) -> tuple[Any, Path]:
    """A saved model whose tensors have other names, with others beside them."""
    model = hf_model("deepseek_v3", **TINY_LATENT)
    model.save_pretrained(folder)
    tensors = {prefix + name: tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, **(more or {})}, folder / "model.safetensors", metadata={"format": "pt"})
    return model, folder


def wrap(folder: Path, **changes: Any) -> None:
    text = json.loads((folder / "config.json").read_text()) | {"model_type": "kimi_k2", **changes}
    wrapper = {"model_type": "kimi_k25", "text_config": text, "vision_config": {"patch_size": 14}}
    (folder / "config.json").write_text(json.dumps(wrapper))


def test_the_text_part_of_a_wrapper_is_the_text_model(tmp_path: Path) -> None:
    eyes = {"vision_tower.encoder.blocks.0.wqkv.weight": torch.ones(3, 3), "mm_projector.proj.0.bias": torch.ones(3)}
    model, folder = rewritten(tmp_path, "language_model.", eyes)
    wrap(folder)
    tokens = prompt(20)
    logits = PagedDecoder(load_model_files(str(folder))).step(row(tokens, 0, list(range(5))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_layers_that_draft_are_skipped_by_their_number(tmp_path: Path) -> None:
    """And only as many as the config says: a layer too many is another model's."""
    draft = {f"model.layers.3.{name}": torch.ones(4) for name in ("enorm.weight", "eh_proj.weight", "mlp.gate.weight")}
    model, folder = rewritten(tmp_path, more=draft)
    tokens = prompt(20)
    logits = PagedDecoder(load_model_files(str(folder))).step(row(tokens, 0, list(range(5))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"num_nextn_predict_layers": 0}))
    with pytest.raises(ModelFileError, match=r"3 tensors .* first is model\.layers\.3\."):
        load_model_files(str(folder))


STRANGE = {
    "an indexer": "model.layers.0.self_attn.indexer.wk.weight",
    "a bias while the flag is false": "model.layers.1.self_attn.kv_a_proj_with_mqa.bias",
    "keys of their own": "model.layers.1.self_attn.k_proj.weight",
    "eyes without a wrapper": "vision_tower.encoder.blocks.0.wqkv.weight",
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_tensor_that_nothing_asks_for_is_named(case: str, tmp_path: Path) -> None:
    _, folder = rewritten(tmp_path, more={STRANGE[case]: torch.ones(4)})
    with pytest.raises(ModelFileError, match=rf"1 tensors .* first is {STRANGE[case]}"):
        load_model_files(str(folder))


# ---- config.json ----------------------------------------------------------------------------------------------------

KIMI_K2: dict[str, Any] = {  # as released, but for its quantisation
    "model_type": "kimi_k2",
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "rope_scaling": {
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def read(**changes: Any) -> ModelConfig:
    return config_from_hf(KIMI_K2 | changes, "config.json")


def test_a_released_config_is_read_as_it_is_meant() -> None:
    config = read()
    assert config.max_context == 131072
    assert config.experts is not None
    assert config.experts.layers == tuple(range(1, 61))
    assert config.experts.shared_size == 2048
    assert config.experts.routing == Routing(num_active=8, scoring="sigmoid", scale=2.827, has_bias=True)
    assert config.latent is not None
    assert (config.latent.width, config.latent.query_rank, config.latent.is_interleaved) == (576, 1536, True)
    assert read(moe_layer_freq=2).experts.layers == tuple(range(2, 61, 2))  # type: ignore[union-attr]


def test_what_the_planner_of_memory_counts_is_what_the_engine_keeps() -> None:
    """From one config.json; 61 x 576 x 2 bytes per token of Kimi K2."""
    groups = spec_of(read()).kv_groups(read())
    assert groups == (KVGroup.latent(range(61), 576),)
    assert groups == tuple(layers.cache for layers in model_shape("kimi", KIMI_K2).attention)
    assert kv_layout(read(), "hash", "float16", 16).bytes_per_block == 16 * 61 * 576 * 2
    assert model_shape("kimi", KIMI_K2 | {"moe_layer_freq": 2}).experts.layers == tuple(range(2, 61, 2))  # type: ignore[union-attr]


def test_null_is_absent() -> None:
    names = ("head_dim", "qk_head_dim", "rope_interleave", "num_key_value_heads", "moe_layer_freq", "topk_method")
    assert read(**dict.fromkeys(names)) == read()
    assert read(n_routed_experts=None).experts is None
    assert read(n_shared_experts=None).experts.shared_size == 0  # type: ignore[union-attr]


COUNTS = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "moe_layer_freq")


@pytest.mark.parametrize("name", [*COUNTS, "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_a_count_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"^config\.json: {name} is .* whole number of at least 1; mend it"):
        read(**{name: value})


NO_FACTOR = {key: value for key, value in KIMI_K2["rope_scaling"].items() if key != "factor"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"index_topk": 2048}, UnsupportedModel, "1 fields are not known .* first is 'index_topk'"),
        ({"mla_use_nope": True, "qk_norm": True}, UnsupportedModel, "2 fields are not known .* 'mla_use_nope'"),
        ({"scoring_func": "softmax"}, UnsupportedModel, "scoring_func 'softmax' is not implemented here; 'sigmoid' is"),
        ({"topk_method": "greedy"}, UnsupportedModel, "topk_method 'greedy' is not implemented here; of 'noaux_tc'"),
        ({"hidden_act": "situ"}, UnsupportedModel, "hidden_act 'situ'"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor"),
        ({"num_key_value_heads": 8}, ModelFileError, "num_key_value_heads is 8 and num_attention_heads is 64"),
        ({"head_dim": 192}, ModelFileError, "head_dim is 192 and qk_rope_head_dim is 64; mend one of them"),
        ({"qk_head_dim": 128}, ModelFileError, "qk_head_dim is 128 and qk_nope_head_dim .* is 192"),
        ({"qk_rope_head_dim": 63}, ModelFileError, "qk_rope_head_dim 63 cannot be rotated in pairs"),
        ({"n_group": 5}, ModelFileError, "384 experts cannot be 5 equal groups"),
        ({"num_experts_per_tok": 385}, ModelFileError, "385 of 384 experts"),
        ({"rope_scaling": NO_FACTOR}, ModelFileError, "mscale_all_dim and no factor"),
        ({"rope_interleave": "yes"}, ModelFileError, "rope_interleave is 'yes' and must be true or false"),
        ({"kv_lora_rank": None}, ModelFileError, "kv_lora_rank is missing"),
        ({"quantization_config": {"quant_method": "modelopt"}}, UnsupportedModel, "modelopt"),
    ],
)
def test_what_is_not_known_or_contradicts_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as refused:
        read(**changes)
    assert str(refused.value).startswith("config.json: ")


def test_a_wrapper_of_another_text_model_is_refused() -> None:
    for text, words in (({"model_type": "kimi_linear"}, "model_type 'kimi_linear'"), (None, "text_config is missing")):
        with pytest.raises((UnsupportedModel, ModelFileError), match=words):
            config_from_hf({"model_type": "kimi_k25", "text_config": text}, "config.json")
    with pytest.raises(UnsupportedModel, match=r"^config\.json: text_config: 1 fields"):
        config_from_hf({"model_type": "kimi_k25", "text_config": KIMI_K2 | {"index_topk": 1}}, "config.json")
    assert config_from_hf({"model_type": "kimi_k25", "text_config": KIMI_K2}, "config.json") == read()


def test_a_cache_of_integers_is_refused_before_weights_are_read() -> None:
    with pytest.raises(UnsupportedModel, match=r"latents in int8 is not implemented; choose one of float16, bfloat16"):
        kv_layout(read(), "hash", "int8", BLOCK_SIZE)
