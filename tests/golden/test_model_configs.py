"""What config.json and GGUF keys say is taken or refused in one sentence: zeros, windows, lengths, frequencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import BACKENDS, PagedDecoder, hf_logits, hf_model, prompt, row, write_gguf
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.core.model import ModelConfig, Routing
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf
from relevo.engine.models.rope import rope_frequencies

_MINIMAL: dict[str, Any] = {
    "vocab_size": 10,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def read(model_type: str = "llama", **changes: Any) -> ModelConfig:
    return config_from_hf(_MINIMAL | {"model_type": model_type} | changes, "config.json")


# ---- what is written is not absent ----------------------------------------------------------------------------------


COUNTS = (*_MINIMAL, "num_key_value_heads", "head_dim", "sliding_window")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, [4], 1e400])
def test_a_count_that_is_none_is_refused_with_its_rule(name: str, value: Any) -> None:
    """Red when zero is taken for absent, or when a text or a fraction is made a number."""
    with pytest.raises(ModelFileError, match=rf"^config\.json: {name} is .* whole number of at least 1; mend it"):
        read("qwen2", **{name: value})


@pytest.mark.parametrize(("name", "value"), [("rope_theta", 0), ("rope_theta", -1e4), ("rope_theta", "1e4")])
def test_a_number_that_is_none_is_refused_with_its_rule(name: str, value: Any) -> None:
    for changes in ({name: value}, {"rope_parameters": {name: value, "rope_type": "default"}}):
        with pytest.raises(ModelFileError, match=rf"{name} is .* number above 0"):
            read(**changes)
    with pytest.raises(ModelFileError, match="rope_theta is 1 and must be above 1"):
        read(rope_theta=1)
    with pytest.raises(ModelFileError, match="rms_norm_eps"):
        read(rms_norm_eps=-1e-6)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [2.0, 3.0], "factor": 2.0}


@pytest.mark.parametrize(
    ("scaling", "name"),
    [
        *((YARN, name) for name in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale")),
        *((LLAMA3, name) for name in ("factor", "low_freq_factor", "high_freq_factor")),
        ({"rope_type": "linear", "factor": 2.0}, "factor"),
        ({"type": "dynamic", "factor": 2.0}, "factor"),
        (LONG, "factor"),
    ],
)
@pytest.mark.parametrize("value", [0, -2.0, "4", False])
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_a_scaling_without_sense_is_refused(scaling: dict[str, Any], name: str, value: Any, spelling: str) -> None:
    with pytest.raises(ModelFileError, match=rf"rope scaling '\w+': {name} is"):
        read(**{spelling: scaling | {name: value}})


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rope_scaling": {"type": "linear"}}, UnsupportedModel, "lacks 'factor'"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, UnsupportedModel, "lacks 'long_factor'"),
        (
            {"rope_scaling": LONG | {"long_factor": [1.0, 0]}},
            ModelFileError,
            "long_factor is .* list of numbers above 0",
        ),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 5.0}}, ModelFileError, "must be at least low_freq_factor"),
        ({"rope_scaling": "yarn"}, ModelFileError, "rope_scaling is 'yarn' and must be an object"),
        ({"rope_scaling": {"factor": 4.0}}, ModelFileError, "has factor and no rope_type"),
        ({"rope_scaling": YARN | {"type": "linear"}}, ModelFileError, "rope_type 'yarn' and type 'linear'"),
        ({"rope_scaling": YARN | {"factor": 1e300}}, ModelFileError, "at most 65536"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, UnsupportedModel, "kinds of layers"),
        ({"partial_rotary_factor": 0}, UnsupportedModel, "partial_rotary_factor 0"),
        ({"num_key_value_heads": 3}, ModelFileError, "4 attention heads cannot share 3"),
        ({"num_attention_heads": 3}, ModelFileError, "hidden_size 16 is no multiple"),
        ({"head_dim": 5}, ModelFileError, "must be even"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(**changes)


@pytest.mark.parametrize("name", ["tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"])
@pytest.mark.parametrize("value", ["false", 0, 1, []])
def test_a_flag_that_is_none_is_refused(name: str, value: Any) -> None:
    """Red when the text "false" is taken for true."""
    with pytest.raises(ModelFileError, match=rf"{name} is .* true or false"):
        read("qwen2" if name == "use_sliding_window" else "llama", **{name: value})


def test_null_is_absent() -> None:
    absent = ("num_key_value_heads", "head_dim", "rope_scaling", "rope_theta", "rms_norm_eps", "dtype", "layer_types")
    assert read(**dict.fromkeys(absent)) == read()


@pytest.mark.parametrize("key", ["attention.sliding_window", "rope.freq_base"])
def test_zeros_of_a_gguf_file_are_refused_likewise(key: str, tmp_path: Path) -> None:
    write_gguf(hf_model("llama"), tmp_path / "model.gguf", keys={key: 0.0})
    with pytest.raises(ModelFileError, match=rf"{key} is 0\.0 and must be"):
        load_model_files(str(tmp_path / "model.gguf"))


def test_a_yarn_factor_of_zero_in_a_gguf_file_is_refused(tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 0.0}
    write_gguf(hf_model("llama"), tmp_path / "model.gguf", keys=keys)
    with pytest.raises(ModelFileError, match=r"rope\.scaling\.factor is 0\.0"):
        load_model_files(str(tmp_path / "model.gguf"))


# ---- windows by layer -----------------------------------------------------------------------------------------------

FULL, SLIDING = ["full_attention"] * 2, ["sliding_attention"] * 2
WINDOW = {"use_sliding_window": True, "sliding_window": 9}


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("qwen2", WINDOW | {"max_window_layers": 0}, 9),
        ("qwen2", WINDOW | {"max_window_layers": 0, "layer_types": FULL}, None),
        ("qwen2", WINDOW | {"max_window_layers": 2, "layer_types": SLIDING}, 9),
        ("qwen2", WINDOW | {"max_window_layers": 1, "layer_types": SLIDING}, 9),
        ("qwen2", {"sliding_window": 9, "layer_types": FULL}, None),
        ("mistral", {"sliding_window": 9, "layer_types": FULL}, None),
        ("mistral", {"layer_types": SLIDING}, 4096),
        ("llama", {"sliding_window": 9, "layer_types": FULL}, None),
    ],
)
def test_the_kinds_of_layers_decide_for_one_kind_too(family: str, changes: dict[str, Any], window: int | None) -> None:
    """Red when a window beside them, or how many layers have one, wins."""
    assert read(family, **changes).sliding_window == window


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("stated", [{}, {"use_sliding_window": False}, {"use_sliding_window": None}])
def test_a_window_that_is_switched_off_is_none(family: str, stated: dict[str, Any]) -> None:
    assert read(family, sliding_window=9, max_window_layers=0, **stated).sliding_window is None


@pytest.mark.parametrize(
    ("family", "changes", "error", "words"),
    [
        ("qwen2", {"sliding_window": 9, "layer_types": SLIDING}, ModelFileError, "use_sliding_window is false"),
        ("mistral", {"sliding_window": None, "layer_types": SLIDING}, ModelFileError, "sliding_window is null"),
        ("llama", {"sliding_window": 9, "layer_types": SLIDING}, UnsupportedModel, "llama model with sliding windows"),
        ("qwen2", WINDOW | {"layer_types": [*FULL[:1], *SLIDING[:1]]}, UnsupportedModel, "layers of different kinds"),
        ("qwen2", {"layer_types": ["linear_attention"] * 2}, UnsupportedModel, "'linear_attention'"),
        ("qwen2", {"layer_types": FULL[:1]}, ModelFileError, "1 entries for 2 layers"),
        ("qwen2", {"layer_types": "full_attention"}, ModelFileError, "'full_attention' entries"),
    ],
)
def test_contradictions_are_refused(family: str, changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(family, **changes)


@pytest.mark.parametrize("layer_types", [FULL, SLIDING])
def test_windows_by_layer_equal_transformers(layer_types: list[str], tmp_path: Path) -> None:
    model = hf_model("qwen2", **WINDOW, max_window_layers=1, layer_types=layer_types)
    model.save_pretrained(tmp_path)
    tokens = prompt(40)
    logits = PagedDecoder(load_model_files(str(tmp_path))).step(row(tokens, 0, list(range(10))))
    np.testing.assert_allclose(logits, hf_logits(model, tokens), atol=1e-4, rtol=1e-4)


# ---- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "default"}, 128),
        (YARN, 512),
        (YARN | {"original_max_position_embeddings": 32}, 128),
        ({"type": "yarn", "factor": 4.0}, 512),
        ({"rope_type": "yarn", "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "linear", "factor": 2.5}, 320),
        ({"rope_type": "dynamic", "factor": 3.0}, 384),
        (LLAMA3 | {"original_max_position_embeddings": 16}, 128),
        (LONG | {"original_max_position_embeddings": 32}, 128),
        (LONG | {"type": "su", "rope_type": None}, 128),
    ],
)
def test_the_longest_context_follows_the_kind_of_scaling(scaling: dict[str, Any], longest: int, spelling: str) -> None:
    """Red when 512 tokens are refused for a model of 128 that is stretched four times."""
    assert read(**{spelling: scaling}).max_context == longest


@pytest.mark.parametrize(
    "theta", [{"rope_theta": 1e6}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}]
)
def test_a_scaling_that_is_added_to_a_config_counts_in_either_spelling(theta: dict[str, Any]) -> None:
    """Model cards say: add `rope_scaling`. Red when it is ignored beside the `rope_parameters` of transformers 5."""
    config = read(**theta, rope_scaling=YARN)
    assert (config.max_context, config.rope_theta, config.rope_scaling["rope_type"]) == (512, 1e6, "yarn")
    assert read(rope_parameters={}, rope_scaling=YARN).max_context == 512
    assert read(**theta, rope_scaling={}).rope_theta == 1e6


# ---- frequencies ----------------------------------------------------------------------------------------------------

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": LLAMA3 | {"original_max_position_embeddings": 256},
    "llama3, nothing between": LLAMA3 | {"original_max_position_embeddings": 256, "high_freq_factor": 1.0},
    "yarn": YARN | {"original_max_position_embeddings": 256},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 256},
}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("head_size", [8, 24, 64, 80, 128])
@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
def test_frequencies_are_those_of_torch_to_a_step_of_float32(kind: str, head_size: int, theta: float) -> None:
    """And nearly all of them bit for bit: red when powers are taken in float64, which is off in a third of them."""
    scaling = SCALINGS[kind] | {"rope_theta": theta}
    if kind == "longrope":
        factors = [1.0 + 0.37 * i for i in range(head_size // 2)]
        scaling |= {"short_factor": factors, "long_factor": factors}
    sizes = {"hidden_size": head_size * 2, "num_attention_heads": 2, "head_dim": head_size}
    reference = LlamaConfig(**sizes, max_position_embeddings=1024, rope_parameters=scaling)
    compute = ROPE_INIT_FUNCTIONS.get(scaling["rope_type"]) or LlamaRotaryEmbedding.compute_default_rope_parameters
    expected, factor = compute(reference, device=None)
    config = read(**sizes | {"max_position_embeddings": 1024, "rope_parameters": scaling})
    ours, our_factor = rope_frequencies(config, 1024)
    assert ours.dtype == np.float32 and our_factor == pytest.approx(factor)
    theirs = expected.numpy()
    steps = np.abs(ours.view(np.int32) - theirs.view(np.int32))
    assert steps.max() <= 2 and (steps > 0).mean() <= 0.1


LONG_PROMPTS: dict[str, dict[str, Any]] = {
    "head size 24": {"head_dim": 24},
    "theta 1e6": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "both": {"head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", LONG_PROMPTS)
def test_long_prompts_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    model = hf_model("llama", max_position_embeddings=1024, **LONG_PROMPTS[case])
    model.save_pretrained(tmp_path)
    tokens = prompt(700)
    paged = PagedDecoder(load_model_files(str(tmp_path)), num_blocks=176, backend=backend)
    ours, theirs = paged.step(row(tokens, 0, list(range(175)))), hf_logits(model, tokens)

    def logprobs(logits: np.ndarray) -> np.ndarray:
        peak = logits.max(axis=1, keepdims=True)
        return logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))

    np.testing.assert_allclose(logprobs(ours), logprobs(theirs), atol=1e-4)


def read_experts(model_type: str, **changes: Any) -> ModelConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    stated = {"model_type": model_type, "vocab_size": 8, "max_position_embeddings": 8, **sizes, **changes}
    return config_from_hf(stated, "config.json")


def test_what_a_config_leaves_out_is_the_familys_own() -> None:
    mixtral, qwen = read_experts("mixtral"), read_experts("qwen3_moe")
    glm, minimax = read_experts("glm4_moe", head_dim=8), read_experts("minimax_m2")
    assert mixtral.experts is not None and mixtral.experts.routing == Routing(num_active=2)
    assert qwen.experts is not None and not qwen.experts.routing.normalises
    assert glm.experts is not None and glm.experts.layers == (1, 2) and glm.rotary_size == 4
    assert minimax.experts is not None and minimax.experts.routing.has_bias
    assert (minimax.head_size, minimax.rotary_size) == (128, None)
    assert (mixtral.rope_theta, minimax.rope_theta, glm.rope_theta) == (1e6, 5e6, 1e4)


@pytest.mark.parametrize(
    "changes",
    [{"rotary_dim": 64}, {"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}],
)
def test_a_part_that_is_rotated_stands_in_one_of_three_places(changes: dict[str, Any]) -> None:
    assert read_experts("minimax_m2", **changes).rotary_size == 64


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("mixtral", {"num_experts_per_tok": 9}, "9 of 8 experts are used"),
        ("qwen3_moe", {"num_experts": 4, "num_local_experts": 8}, "num_experts and num_local_experts say 4 and 8"),
        ("qwen3_moe", {"mlp_only_layers": "0"}, "mlp_only_layers is '0'"),
        ("glm4_moe", {"n_group": 3}, "cannot be 3 equal groups"),
        ("glm4_moe", {"n_group": 64, "topk_group": 2}, "leaves too few experts"),
        ("glm4_moe", {"partial_rotary_factor": 0.3}, "cannot be rotated in pairs"),
        ("minimax_m2", {"rotary_dim": 64, "partial_rotary_factor": 0.25}, "say 32 and 64 elements"),
        ("minimax_m2", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not implemented"),
    ],
)
def test_experts_that_do_not_fit_together_are_refused(model_type: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModel), match=words):
        read_experts(model_type, **changes)
