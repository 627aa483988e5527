"""GPTQ and AWQ folders compute what their dequantised twin computes, bit for bit.

Red if eight values of a word change places, a zero point is off by one, a group is another row's, or a file that says
`gptq` and holds `gptq_v2` is computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file
from tiny_decoders import BACKENDS, PagedDecoder, hf_model, prompt, row

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.quantization import quantization_of

GROUP = 32
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # of a column: the nibble that it lies in


def words(values: torch.Tensor, bits: int, nibbles: tuple[int, ...] | None = None) -> torch.Tensor:
    """[rows, columns] -> int32 [rows, columns * bits / 32]"""
    per_word = 32 // bits
    shifts = bits * torch.tensor(nibbles or range(per_word))
    packed = (values.to(torch.int64).view(len(values), -1, per_word) << shifts).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


@dataclass(frozen=True)
class Method:
    config: dict[str, Any]
    bits: int = 4
    is_symmetric: bool = False
    zero_offset: int = 0  # what is stored less
    is_awq: bool = False
    is_reordered: bool = False

    def store(self, module: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """What is stored of a weight [out, in], and what that means."""
        generator, last = torch.Generator().manual_seed(len(module)), (1 << self.bits) - 1
        num_out, num_in = weight.shape
        groups = torch.arange(num_in) // GROUP
        if self.is_reordered:
            groups = groups[torch.randperm(num_in, generator=generator)]
        num_groups = num_in // GROUP
        scales = (torch.rand(num_groups, num_out, generator=generator) * 0.01 + 0.005).half()
        zeros = torch.randint(0, last + 1, (num_groups, num_out), generator=generator)
        zeros[0, :2] = torch.tensor([0, last])
        if self.is_symmetric:
            zeros[:] = (last + 1) // 2
        rows = weight.T
        codes = (rows / scales.float()[groups] + zeros[groups]).round().clamp(0, last)
        meant = (codes - zeros[groups]) * scales.float()[groups]
        nibbles = AWQ_NIBBLES if self.is_awq else None
        parts = {
            "qweight": words(codes, self.bits, nibbles) if self.is_awq else words(codes.T, self.bits).T.contiguous(),
            "qzeros": words((zeros - self.zero_offset) & last, self.bits, nibbles),
            "scales": scales,
        }
        if not self.is_awq:
            parts |= {"g_idx": groups.to(torch.int32), "bias": torch.zeros(num_out, dtype=torch.float16)}
        return {f"{module}.{name}": tensor for name, tensor in parts.items()}, meant.T.contiguous()


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": GROUP,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": None,
}
METHODS = {
    "gptq": Method(GPTQ, zero_offset=1),
    "gptq symmetric": Method(GPTQ | {"sym": True, "checkpoint_format": "gptq"}, is_symmetric=True, zero_offset=1),
    "gptq reordered": Method(GPTQ | {"desc_act": True}, zero_offset=1, is_reordered=True),
    "gptq symmetric, reordered": Method(
        GPTQ | {"desc_act": True, "sym": True}, is_symmetric=True, zero_offset=1, is_reordered=True
    ),
    "gptq v2": Method(GPTQ | {"checkpoint_format": "gptq_v2"}),
    "gptq of 8 bits": Method(GPTQ | {"bits": 8}, bits=8, zero_offset=1),
    "awq": Method(AWQ, is_awq=True),
}


def write(folder: Path, method: Method, left: str = "lm_head") -> tuple[Path, Path]:
    """The quantised folder and its twin of floats. `left`: part of the names of what is not quantised."""
    model = hf_model("qwen2", hidden_size=64, intermediate_size=96)
    model.save_pretrained(folder / "twin")
    (folder / "quantised").mkdir()
    tensors = load_file(folder / "twin" / "model.safetensors")
    quantised: dict[str, torch.Tensor] = {}
    for name in sorted(tensors):
        module = name.removesuffix(".weight")
        if module.endswith("_proj") and left not in module:
            parts, tensors[name] = method.store(module, tensors[name])
            quantised = parts | quantised  # q, k and v have a bias of their own
        else:
            quantised[name] = tensors[name]
    save_file(tensors, folder / "twin" / "model.safetensors", metadata={"format": "pt"})
    save_file(quantised, folder / "quantised" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "twin" / "config.json").read_text())
    (folder / "quantised" / "config.json").write_text(json.dumps(config | {"quantization_config": method.config}))
    return folder / "quantised", folder / "twin"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", METHODS)
def test_logits_are_those_of_the_dequantised_twin(name: str, backend: str, tmp_path: Path) -> None:
    folder, twin = write(tmp_path, METHODS[name])
    tokens = prompt(40)
    logits = [
        PagedDecoder(load_model_files(str(each)), backend=backend).step(row(tokens, 0, list(range(10))))
        for each in (folder, twin)
    ]
    np.testing.assert_array_equal(*logits)


def test_symmetric_integers_become_the_blocks_that_backends_multiply(tmp_path: Path) -> None:
    """The same numbers, in the bytes of a GGUF file."""
    folder, twin = write(tmp_path, METHODS["gptq symmetric"])
    raw = dict(load_model_files(str(folder)).tensors(raw_formats=frozenset({"q4_0"})))
    floats = dict(load_model_files(str(twin)).tensors())
    names = [name for name, tensor in raw.items() if tensor.dtype == "q4_0"]
    assert len(names) == sum(name.endswith("_proj.weight") for name in floats)
    for name in names:
        np.testing.assert_array_equal(dequantize(raw[name].array, GGMLQuantizationType.Q4_0), floats[name].array)


@pytest.mark.parametrize("name", ["gptq", "gptq symmetric, reordered", "awq"])
def test_integers_that_are_no_such_blocks_become_floats(name: str, tmp_path: Path) -> None:
    folder, twin = write(tmp_path, METHODS[name])
    raw = dict(load_model_files(str(folder)).tensors(raw_formats=frozenset({"q4_0"})))
    for name_of, tensor in load_model_files(str(twin)).tensors():
        np.testing.assert_array_equal(raw[name_of].array, tensor.array)


def edit(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = {**tensors, name: change(tensors.get(name, torch.ones(1)))}
    kept = {key: tensor for key, tensor in changed.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def test_zero_points_make_another_model(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, METHODS["gptq"])
    before = load_model_files(str(folder)).model_hash
    edit(folder, "model.layers.0.self_attn.o_proj.qzeros", lambda zeros: zeros ^ 1)
    assert load_model_files(str(folder)).model_hash != before


def test_a_file_of_the_other_format_is_not_computed(tmp_path: Path) -> None:
    """Symmetric zero points say which of both a file is."""
    stated = METHODS["gptq symmetric"].config
    folder, _ = write(tmp_path, Method(stated, is_symmetric=True, zero_offset=0))
    for raw_formats in (frozenset[str](), frozenset({"q4_0"})):
        with pytest.raises(ModelFileError, match="zero points other than 8, which symmetric weights have"):
            list(load_model_files(str(folder)).tensors(raw_formats=raw_formats))


O_PROJ = "model.layers.0.self_attn.o_proj"
BROKEN: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor | None], str]] = {
    "no scales": ("scales", lambda scales: None, "scales is missing"),
    "no zero points": ("qzeros", lambda zeros: None, "qzeros is missing"),
    "a scale too few": ("scales", lambda scales: scales[1:].clone(), "scales has shape"),
    "zero points too many": ("qzeros", lambda zeros: torch.cat((zeros, zeros)), "qzeros has shape"),
    "zero points of floats": ("qzeros", lambda zeros: zeros.float(), "is stored as F32; one of I32 is implemented"),
    "no integers": ("qweight", lambda packed: packed.float(), "no matrix of 32-bit integers"),
    "outputs that fill no words": ("qweight", lambda packed: packed[:, 4:].clone(), "no multiple of 8"),
    "no rows": ("qweight", lambda packed: packed[:0].clone(), "no matrix of 32-bit integers"),
    "an order too short": ("g_idx", lambda order: order[1:].clone(), "g_idx has shape"),
    "a bias of numbers": ("bias", lambda bias: bias + 1, "the first is model.layers.0.self_attn.o_proj.bias"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_parts_that_do_not_belong_together_are_named(fault: str, tmp_path: Path) -> None:
    part, change, message = BROKEN[fault]
    folder, _ = write(tmp_path, METHODS["gptq"])
    edit(folder, f"{O_PROJ}.{part}", change)
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        load_model_files(str(folder))


def test_groups_that_are_not_there_are_named(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, METHODS["gptq"])
    edit(folder, f"{O_PROJ}.g_idx", lambda order: order + 1)
    with pytest.raises(ModelFileError, match=r"g_idx names groups from 1 to \d+ and there are"):
        list(load_model_files(str(folder)).tensors())


def test_what_the_config_leaves_is_not_quantised(tmp_path: Path) -> None:
    dynamic = GPTQ | {"dynamic": {r"-:.*layers\.1\.mlp.*": {}}}
    folder, _ = write(tmp_path, Method(dynamic, zero_offset=1), left="layers.1.mlp")
    load_model_files(str(folder))
    (tmp_path / "other").mkdir()
    folder, _ = write(tmp_path / "other", Method(dynamic, zero_offset=1))
    with pytest.raises(ModelFileError, match=r"layers\.1\.mlp.* is quantised and config\.json says that it is not"):
        load_model_files(str(folder))


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (GPTQ | {"bits": 3}, "GPTQ weights of 3 bits"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (GPTQ | {"is_marlin_format": True}, "checkpoint_format 'marlin'"),
        (GPTQ | {"pack_dtype": "int8"}, "packed into int8"),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 8}}}, "differ by module"),
        (GPTQ | {"group_size": 0}, "group_size is 0"),
        (GPTQ | {"sym": "yes"}, "sym is 'yes'"),
        (AWQ | {"version": "gemv"}, "version 'gemv'"),
        (AWQ | {"bits": 8}, "AWQ weights of 8 bits"),
        (AWQ | {"zero_point": False}, "without zero points"),
        (AWQ | {"group_size": None}, "group_size is missing"),
        (AWQ | {"modules_to_not_convert": "visual"}, "must be a list of names"),
    ],
)
def test_ways_that_are_not_read_are_refused_in_a_sentence(stated: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedModel, ModelFileError), match=message) as refused:
        quantization_of({"quantization_config": stated}, "config.json")
    assert str(refused.value).startswith("config.json: ")


def test_one_group_may_be_all_of_a_row() -> None:
    for stated in (GPTQ | {"group_size": -1}, AWQ | {"group_size": -1}):
        read = quantization_of({"quantization_config": stated}, "config.json")
        assert read is not None and read.block_columns == 0
