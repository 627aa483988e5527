"""Experts that gpt-oss stacks in MXFP4 are what transformers makes of them; what is no such stack is named.

Red if a nibble, a sign or a power of two is taken for another, if gates and the values beside them are mixed, or if a
stack of another kind ends in anything but a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoders import BACKENDS, LOCAL, PagedDecoder, hf_model, prompt, row
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from relevo.core.errors import ModelFileError, UnsupportedModel
from relevo.engine.loaders.resolve import load_model_files

Tensors = dict[str, torch.Tensor]
GATES, DOWN = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.2.mlp.experts.down_proj"


def write(folder: Path, change: Callable[[Tensors], object] = lambda tensors: None) -> tuple[Path, Path]:
    """The folder with MXFP4, `change`d, and its twin of floats."""
    hf_model("gpt_oss", **LOCAL["gpt_oss"]).save_pretrained(folder / "twin")
    (folder / "stored").mkdir()
    floats, rng = load_file(folder / "twin" / "model.safetensors"), torch.Generator().manual_seed(1)
    stored = dict(floats)
    for name in sorted(floats):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        count, inner, rows = stored.pop(name).shape
        blocks = torch.randint(0, 256, (count, rows, inner // 32, 16), dtype=torch.uint8, generator=rng)
        scales = torch.randint(120, 126, (count, rows, inner // 32), dtype=torch.uint8, generator=rng)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        floats[name] = convert_moe_packed_tensors(blocks, scales).float().contiguous()
    change(stored)
    save_file(floats, folder / "twin" / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, folder / "stored" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "twin" / "config.json").read_text())
    quantization = {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "stored" / "config.json").write_text(json.dumps(config | quantization))
    return folder / "stored", folder / "twin"


def test_every_weight_is_transformers_own(tmp_path: Path) -> None:
    stored, twin = (dict(load_model_files(str(each)).tensors()) for each in write(tmp_path))
    assert stored.keys() == twin.keys()
    packed = [name for name, tensor in stored.items() if ".experts." in name and tensor.dtype == "bfloat16"]
    assert len(packed) == 3 * 5 * 2
    for name, tensor in stored.items():
        np.testing.assert_array_equal(tensor.floats(), twin[name].floats(), err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_are_those_of_the_twin(backend: str, tmp_path: Path) -> None:
    tokens = prompt(20)
    logits = [
        PagedDecoder(load_model_files(str(each)), backend=backend).step(row(tokens, 0, list(range(5))))
        for each in write(tmp_path)
    ]
    np.testing.assert_array_equal(*logits)


BROKEN: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no scales": (lambda tensors: tensors.pop(f"{GATES}_scales"), "has no scales that fit it"),
    "a row too few": (
        lambda t: t.update({f"{GATES}_scales": t[f"{GATES}_scales"][:, 1:].clone()}),
        "no scales that fit",
    ),
    "scales of floats": (lambda t: t.update({f"{DOWN}_scales": t[f"{DOWN}_scales"].float()}), "no scales that fit it"),
    "blocks of floats": (lambda t: t.update({f"{DOWN}_blocks": t[f"{DOWN}_blocks"].float()}), "are stored as F32"),
    "an expert too few": (lambda t: t.update({f"{GATES}_blocks": t[f"{GATES}_blocks"][1:].clone()}), "for 5 experts"),
    "one number": (lambda t: t.update({f"{GATES}_bias": torch.tensor(1.0)}), "for 5 experts"),
    "8-bit floats": (
        lambda t: t.update({GATES: torch.zeros(5, 64, 64).to(torch.float8_e4m3fn)}),
        "stored as F8_E4M3",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_no_stack_is_named(fault: str, tmp_path: Path) -> None:
    change, words = BROKEN[fault]
    stored, _ = write(tmp_path, change)
    with pytest.raises((ModelFileError, UnsupportedModel), match=words):
        load_model_files(str(stored))


def test_a_scale_that_is_no_number_is_named_when_it_is_read(tmp_path: Path) -> None:
    stored, _ = write(tmp_path, lambda tensors: tensors[f"{DOWN}_scales"].fill_(255))
    with pytest.raises(ModelFileError, match="are no numbers"):
        list(load_model_files(str(stored)).tensors())
