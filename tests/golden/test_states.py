"""Gated delta layers compute what `transformers` computes: Qwen3-Next, Qwen3.5, dense and with experts.

Red if the order of projected rows, a gate, an offset of a norm, the convolution or the rule of the state changes; if a
state outlives its sequence, if the cut of a prompt into steps changes what is computed, or if a snapshot is another
prefix's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_grouped_cache import Served, request, traffic
from tiny_decoders import BACKENDS, VOCAB, hf_logits, make_ops, prompt
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from relevo.build.hardware import Hardware
from relevo.build.model import kv_layout
from relevo.build.resolve import ModelAsk, ModelPlan, resolve_model
from relevo.core.errors import ModelFileError, SettingsError, UnsupportedModel
from relevo.core.ids import RequestId
from relevo.core.kv import KVLayout
from relevo.core.plan import ScheduledRow, StepPlan
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.inputs import pack_rows
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf, spec_of
from relevo.engine.models.spec import Model
from relevo.engine.ops.torch.ops import TorchOps
from relevo.engine.step_recovery import end_all
from relevo.policy.worker.table_rules import table_rules
from relevo.settings import Settings

FAMILIES = {
    "qwen3_next": Qwen3NextConfig,
    "qwen3_5_text": Qwen3_5TextConfig,
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig,
}
_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
}
NUM_BLOCKS, BIG_BLOCK = 40, 16


def tiny(family: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"intermediate_size": 96} if family == "qwen3_5_text" else _EXPERTS
    config = FAMILIES[family](**{**_SMALL, **sizes, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            neutral = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
            parameter.normal_(neutral, 0.2)
    return model.eval()


def saved(family: str, folder: Path, **changes: Any) -> tuple[PreTrainedModel, ModelFiles]:
    model = tiny(family, **changes)
    model.save_pretrained(folder)
    return model, load_model_files(str(folder))


class Stateful:
    """A decoder with a small cache of noise, whose rows have a table of tokens and one of states."""

    def __init__(self, files: ModelFiles, dtype: str = "float32", backend: str = "torch") -> None:
        ops = make_ops(backend, dtype)
        self.decoder: Model = spec_of(files.config).load(files.config, files.tensors(), ops, files.config.max_position)
        self.layout = kv_layout(files.config, "tiny", dtype, BIG_BLOCK)
        self.num_state_blocks = table_rules(self.layout)[0].num_state_blocks
        self.memory = bytearray(NUM_BLOCKS * self.layout.bytes_per_block)
        np.frombuffer(self.memory, dtype=np.uint16)[:] = 0x7FC1  # no number in float32, nor in bfloat16
        self.kv = ops.kv_cache(self.layout, NUM_BLOCKS, memoryview(self.memory))

    def row(self, tokens: list[int], start: int, slot: int) -> ScheduledRow:
        """Of a sequence whose blocks are those of a slot of eight."""
        blocks = list(range(slot * 8, slot * 8 + 8))
        request = EngineRequest(request_id="r", prompt_token_ids=(0,), sampling=SamplingParams(max_tokens=1, seed=0))
        states = blocks[-self.num_state_blocks :]
        return ScheduledRow(request, tokens, start, blocks[: -self.num_state_blocks], more_block_ids=(states,))

    def step(self, *rows: ScheduledRow) -> np.ndarray:
        inputs = pack_rows(rows, BIG_BLOCK, num_state_groups=1)
        return self.decoder.forward(inputs, self.kv, range(inputs.num_tokens)).values.copy()

    def in_parts(self, tokens: list[int], lengths: list[int], slot: int) -> np.ndarray:
        """[T, V]"""
        ends = np.cumsum(lengths).tolist()
        parts = zip([0, *ends], ends, strict=False)
        return np.concatenate([self.step(self.row(tokens[start:end], start, slot)) for start, end in parts])


def assert_same(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    def logprobs(logits: np.ndarray) -> np.ndarray:
        return torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()

    np.testing.assert_allclose(logprobs(actual), logprobs(expected), atol=tolerance)
    assert (actual.argmax(axis=-1) == expected.argmax(axis=-1)).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, backend: str, tmp_path: Path) -> None:
    """Whole, in chunks and single tokens, and with others in one step; the slots have held others before."""
    model, files = saved(family, tmp_path)
    tokens, other, third = prompt(70), prompt(70, 1), prompt(9, 2)
    expected, of_other, of_third = (hf_logits(model, each) for each in (tokens, other, third))
    served = Stateful(files, backend=backend)
    assert_same(served.step(served.row(tokens, 0, 0)), expected)
    assert_same(served.in_parts(tokens, [1, 2, 17, *([1] * 8), 33, *([1] * 9)], 1), expected)
    assert_same(served.in_parts(other, [40], 0), of_other[:40])
    assert_same(served.in_parts(tokens, [20], 1), expected[:20])
    logits = served.step(served.row(tokens[20:21], 20, 1), served.row(third, 0, 2), served.row(other[40:41], 40, 0))
    assert_same(logits, np.concatenate((expected[20:21], of_third, of_other[40:41])))
    logits = served.step(served.row(tokens[21:30], 21, 1), served.row(other[41:42], 41, 0))
    assert_same(logits, np.concatenate((expected[21:30], of_other[41:42])))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_that_was_used_gives_the_bits_of_a_new_one(family: str, backend: str, tmp_path: Path) -> None:
    _, files = saved(family, tmp_path)
    served, lengths = Stateful(files, backend=backend), [20, 1, 1, 8]
    fresh = served.in_parts(prompt(30), lengths, 0)
    served.in_parts(prompt(50, 1), [50], 0)
    assert (served.in_parts(prompt(30), lengths, 0) == fresh).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_native_bits_do_not_depend_on_cuts_and_neighbours(family: str, dtype: str, tmp_path: Path) -> None:
    """Also where the cache rounds what the convolution sees."""
    _, files = saved(family, tmp_path)
    served = Stateful(files, dtype, "native")
    tokens, other = prompt(70), prompt(40, 1)
    expected, of_other = served.step(served.row(tokens, 0, 0)), served.in_parts(other, [1] * 40, 2)
    assert np.isfinite(expected).all()
    assert (served.in_parts(tokens, [1, 2, 17, *([1] * 8), 33, *([1] * 9)], 1) == expected).all()
    served.in_parts(tokens, [20], 1)
    logits = served.step(served.row(other, 0, 3), served.row(tokens[20:21], 20, 1))
    assert (logits == np.concatenate((of_other, expected[20:21]))).all()
    logits = served.step(served.row(tokens[21:], 21, 1), served.row(other[:1], 0, 2))
    assert (logits == np.concatenate((expected[21:], of_other[:1]))).all()


def test_the_cut_of_a_row_changes_no_bit_of_its_state(tmp_path: Path) -> None:
    """What a backend's products come to depends on their sizes: so of the operation alone, with the same inputs."""
    from relevo.engine.ops.protocol import DeltaRule
    from relevo.engine.ops.torch.kv_cache import TorchKVCache
    from relevo.engine.ops.torch.states import gated_delta

    _, files = saved("qwen3_next", tmp_path)
    served, sizes = Stateful(files), files.config.delta
    assert sizes is not None and isinstance(served.kv, TorchKVCache)
    torch.manual_seed(1)
    heads = sizes.num_value_heads
    weights = torch.randn(sizes.width, 1, sizes.kernel_size), -torch.rand(heads), torch.randn(heads)
    rule = DeltaRule(sizes, sizes.num_key_heads, 0, *weights)
    x, gates = torch.randn(40, sizes.width), torch.randn(40, 2 * heads)

    def computed(lengths: list[int], slot: int) -> torch.Tensor:
        ends, parts = np.cumsum(lengths).tolist(), []
        for start, end in zip([0, *ends], ends, strict=False):
            inputs = pack_rows([served.row([0] * (end - start), start, slot)], BIG_BLOCK, num_state_groups=1)
            parts.append(gated_delta(served.kv.states, inputs, x[start:end], gates[start:end], 2, rule))
        return torch.cat(parts)

    whole = computed([40], 0)
    assert whole.isfinite().all()
    assert torch.equal(computed([1] * 40, 1), whole)
    assert torch.equal(computed([2, 3, 30, 1, 4], 2), whole)


@pytest.fixture(scope="module", params=BACKENDS)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Whose states take few of the small blocks of `Served`."""
    sizes = {"linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4}
    _, files = saved("qwen3_5_text", tmp_path_factory.mktemp("small"), **sizes)
    return spec_of(files.config).load(files.config, files.tensors(), make_ops(request.param), 128)


def served_by(model: Model, num_blocks: int, **how: Any) -> Served:
    return Served(model, spec_of(model.config).kv_groups(model.config), num_blocks, **how)


@pytest.mark.parametrize("num_blocks", [400, 60])
def test_hits_preemptions_and_forks_leave_no_trace(small: Model, num_blocks: int) -> None:
    """Against each request alone, computed whole. Steps are cut elsewhere, so of other cuts: the same tokens, and their
    log probabilities within what products of other sizes round on torch; with the same bits on the native backend."""
    tolerance = 1e-4 if isinstance(small.ops, TorchOps) else 0.0
    alone, together = served_by(small, 400, caches=False), served_by(small, num_blocks)
    for requests in traffic():
        for each in requests:
            alone.serve([each])
        together.serve(requests)
    assert together.scheduler.num_prefix_hits > 50
    assert (together.scheduler.num_preemptions > 0) == (num_blocks < 400)
    assert together.answers.keys() == alone.answers.keys()
    for key, tokens in together.answers.items():
        assert [each.token_id for each in tokens] == [each.token_id for each in alone.answers[key]]
        logprobs, whole = ([each.logprob for each in answer] for answer in (tokens, alone.answers[key]))
        np.testing.assert_allclose(logprobs, whole, rtol=0, atol=tolerance)


def test_a_hit_has_the_bits_of_the_same_steps(small: Model) -> None:
    """What begins with a snapshot computes the last steps of what left it behind."""
    served, asked = served_by(small, 400), request("first", prompt(33, 5))
    (first,) = served.serve([asked]).values()
    again = served.serve([replace(asked, request_id=RequestId("again"))])[RequestId("again"), 0]
    assert served.scheduler.num_prefix_hits == 32
    assert again == first


def test_requests_of_a_step_that_failed_end() -> None:
    """Their states may hold tokens of it already."""
    plan, error = StepPlan(step_id=7), ValueError("no numbers")
    result = end_all(plan, [RequestId("a"), RequestId("b"), RequestId("a")], error)
    assert set(result.failures) == {"a", "b"}
    assert result.failures[RequestId("a")].reason == "the engine failed in a step: no numbers"


def test_heads_of_states_that_cannot_be_shared_are_refused_at_the_start() -> None:
    message = "^--tensor-parallel-size 4: 4 ranks cannot share 2 key heads of states evenly; choose .* size of 2$"
    with pytest.raises(SettingsError, match=message):
        planned(tensor_parallel_size=4)


@pytest.mark.parametrize(
    "asked", [{"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2}, {"cluster": "127.0.0.1:7000"}]
)
def test_states_are_served_in_stages_and_over_boxes(asked: dict[str, Any]) -> None:
    assert planned(**asked).workers


def test_states_beside_integers_are_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match=r"^--kv-cache-dtype int8 is not .*; leave it out or choose float16"):
        planned(kv_cache_dtype="int8")


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("topology", ["unified", "1p1d", "hybrid", "auto"])
def test_states_are_served_in_every_topology(topology: str, backend: str) -> None:
    plan = planned(topology=topology, backend=backend)
    assert {worker.backend for worker in plan.workers} == {backend if backend in BACKENDS else "native"}
    assert topology in (str(plan.topology), "auto")


def planned(**asked: Any) -> ModelPlan:
    config = config_from_hf(Qwen3NextConfig(**{**_SMALL, **_EXPERTS}).to_dict(), "config.json")
    hardware = Hardware(
        cores=(0, 1, 2, 3),
        available_memory_bytes=2**34,
        has_bf16=False,
        num_cuda_devices=0,
        cuda_memory_bytes=0,
    )
    settings = Settings(model="folder", block_size=16, **asked)
    return resolve_model(ModelAsk(settings=settings, model=config, model_hash="hash"), hardware)


def test_bfloat16_equals_transformers_as_far_as_it_rounds(tmp_path: Path) -> None:
    model, files = saved("qwen3_5_text", tmp_path)
    tokens = prompt(40)
    exact, rounded = hf_logits(model, tokens), hf_logits(model.bfloat16(), tokens)
    served = Stateful(files, "bfloat16")
    logits = served.in_parts(tokens, [30, *([1] * 10)], 0)
    most = np.abs(rounded - exact).max()
    assert np.abs(logits - exact).max() < 2 * most


def test_a_wrapper_is_read_without_its_eyes_and_drafts(tmp_path: Path) -> None:
    model = tiny("qwen3_5_moe_text")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    renamed |= {"model.visual.patch_embed.proj.weight": torch.ones(2), "mtp.fc.weight": torch.ones(2)}
    save_file(renamed, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    text["rope_parameters"] |= {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
    wrapped = {"model_type": "qwen3_5_moe", "text_config": {**text, "model_type": "qwen3_5_moe_text"}}
    (tmp_path / "config.json").write_text(json.dumps({**wrapped, "vision_config": {"depth": 1}}))
    served, tokens = Stateful(load_model_files(str(tmp_path))), prompt(20)
    assert_same(served.step(served.row(tokens, 0, 0)), hf_logits(model, tokens))


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe_text"])
def test_experts_that_a_checkpoint_stacks_are_those_of_its_twin(family: str, tmp_path: Path) -> None:
    """All of a layer in one tensor [E, 2 * I, hidden], as transformers computes them, and one [E, hidden, I]."""
    model, files = saved(family, tmp_path, num_experts=12)  # 10 and 11 come after 9
    twin = dict(files.tensors())
    tensors = {name: tensor for name, tensor in load_file(tmp_path / "model.safetensors").items() if not stacked(name)}
    stacks = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if stacked(name)}
    assert len(stacks) == 2 * 4
    save_file({**tensors, **stacks}, tmp_path / "model.safetensors")
    found = dict(load_model_files(str(tmp_path)).tensors())
    assert found.keys() == twin.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.floats(), twin[name].floats(), err_msg=name)
    up = next(iter(stacks))
    save_file({**tensors, **stacks, up: stacks[up][1:].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"has shape \[11, .* for 12 experts"):
        load_model_files(str(tmp_path))
    save_file({**tensors, **stacks, up: stacks[up].to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="stored as F8_E4M3"):
        load_model_files(str(tmp_path))


def stacked(name: str) -> bool:
    return ".mlp.experts." in name


def test_a_tensor_that_is_not_known_is_refused(tmp_path: Path) -> None:
    tiny("qwen3_next").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "mtp.fc.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    load_model_files(str(tmp_path))
    save_file({**tensors, "model.layers.0.linear_attn.beta": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"the first is model\.layers\.0\.linear_attn\.beta"):
        load_model_files(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_gamma": 2}, "1 fields are not known .* 'linear_gamma'"),
        ({"attn_output_gate": False}, "attn_output_gate False is not implemented"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype 'bfloat16' is not implemented"),
        ({"layer_types": ["full_attention"] * 4}, "0 of 4 layers are linear_attention"),
        ({"layer_types": ["linear_attention"] * 4}, "4 of 4 layers are linear_attention"),
        ({"layer_types": ["mamba"] * 4}, "layers of kind 'mamba' are not implemented"),
        ({"mlp_only_layers": [1]}, "layers without experts"),
        ({"linear_num_value_heads": 3}, "3 linear value heads cannot share 2 key heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1 and must be"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim is 0 and must be"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(changes: dict[str, Any], message: str) -> None:
    raw = {**Qwen3NextConfig(**{**_SMALL, **_EXPERTS}).to_dict(), **changes}
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        config_from_hf(raw, "config.json")


def test_every_layer_of_four_sees_everything_where_the_config_says_nothing() -> None:
    raw = {**Qwen3NextConfig(**{**_SMALL, **_EXPERTS}).to_dict(), "layer_types": None, "num_hidden_layers": 8}
    delta = config_from_hf(raw, "config.json").delta
    assert delta is not None and delta.layers == (0, 1, 2, 4, 5, 6)


def test_states_count_in_the_layout_of_35b_a3b() -> None:
    """61.4 MiB per sequence, and a block that is too small for the state of a layer says how large it must be."""
    raw = Qwen3_5MoeTextConfig(dtype="bfloat16").to_dict()
    config = config_from_hf(raw, "config.json")
    layout = KVLayout("35b", "bfloat16", 128, spec_of(config).kv_groups(config))
    assert (layout.growing_bytes_per_token, layout.bytes_per_sequence) == (20_480, 64_389_120)
    assert table_rules(layout)[0].num_state_blocks == 30
    with pytest.raises(UnsupportedModel, match="raise --block-size to at least 105"):
        table_rules(KVLayout("35b", "bfloat16", 16, layout.groups))


def test_a_cache_of_another_dtype_than_the_activations_is_refused(tmp_path: Path) -> None:
    _, files = saved("qwen3_5_text", tmp_path)
    layout = kv_layout(files.config, "tiny", "bfloat16", BIG_BLOCK)
    with pytest.raises(UnsupportedModel, match="--kv-cache-dtype is bfloat16; leave that out"):
        TorchOps().kv_cache(layout, 2, memoryview(bytearray(2 * layout.bytes_per_block)))
