"""A mixture of experts that are copies of a dense model's MLP answers as the dense model does, however it is cut.

Red when an expert of another rank is taken for one's own, or when the weights of the chosen ones do not come to one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tensor_groups import computed
from tiny_decoders import hf_model

from kept_folders import kept_folder
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from upcycled import write_upcycled

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}


@cache
def model(num_active: int) -> ModelFiles:
    """The dense one, for none."""
    folder = kept_folder("upcycled")
    if num_active == 0:
        hf_model("llama", **HEADS).save_pretrained(folder)
    else:
        write_upcycled(model(0), folder, num_active=num_active)
    return load_model_files(str(folder))


@pytest.mark.parametrize(
    ("size", "whole_experts"), [(None, False), (1, False), (2, False), (1, True), (2, True), (4, True)]
)
def test_experts_that_are_copies_are_the_mlp(size: int | None, whole_experts: bool) -> None:
    (expected, *_), (found, *_) = (
        computed(model(0), "native", None).logits,
        computed(model(2), "native", size, whole_experts=whole_experts).logits,
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(np.abs(theirs).max()))
        np.testing.assert_array_equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("size", [None, 1, 2, 4])
def test_one_expert_has_the_bits_of_the_mlp(size: int | None) -> None:
    """Cut alike, so that sums are the same tree."""
    assert computed(model(1), "native", size).equals(computed(model(0), "native", size))
