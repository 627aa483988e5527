"""What evaluation harnesses ask: likelihoods of answers and of whole texts, equal to those of transformers.

The requests are those of lm-eval's `local-completions`: token ids, `echo`, `logprobs: 1`, one token beyond the prompt.
Red if a prompt's log probabilities on the real model, served in processes of their own, are not its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from stack import Stack, stack
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from relevo.engine.loaders.resolve import load_model_files

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTION = "The capital of France is"
ANSWERS = (" Paris", " Berlin", " a river in the north of Spain")
TEXT = "Water boils at one hundred degrees Celsius at sea level, and freezes at zero. " * 12


@pytest.fixture(scope="module")
def model() -> Any:
    files = load_model_files("smollm2")
    config = LlamaConfig(**load_gguf_checkpoint(str(files.path))["config"])
    with torch.device("meta"):
        empty = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(str(files.path), return_tensors=True, model_to_load=empty)["tensors"]
    loaded = LlamaForCausalLM(config).eval()
    loaded.load_state_dict(tensors, strict=False)  # the head is tied
    return loaded


@pytest.fixture(scope="module", params=["unified", "1p1d"])
def served(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with stack("smollm2", "--topology", request.param, "--max-model-len", "2048") as running:
        yield running


def expected(model: Any, token_ids: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = model(torch.tensor([list(token_ids)])).logits[0].float()
    told = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
    return told.numpy()


def told(served: Stack, prompts: list[list[int]]) -> list[list[float]]:
    answer = served.complete(prompts, max_tokens=1, logprobs=1, echo=True, seed=1234)
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return [choice["logprobs"]["token_logprobs"][:-1] for choice in choices]


def test_answers_of_multiple_choice(served: Stack, model: Any) -> None:
    asked = [served.post("/tokenize", {"prompt": QUESTION + answer})["tokens"] for answer in ANSWERS]
    num_given = len(served.post("/tokenize", {"prompt": QUESTION})["tokens"])
    sums = []
    for token_ids, logprobs in zip(asked, told(served, asked), strict=True):
        assert logprobs[0] is None and len(logprobs) == len(token_ids)
        np.testing.assert_allclose(logprobs[1:], expected(model, token_ids), atol=0.05)
        sums.append(sum(logprobs[num_given:]))
    assert sums[0] == max(sums)


def test_a_rolling_likelihood_also_of_a_text_that_is_cached(served: Stack, model: Any) -> None:
    token_ids = served.post("/tokenize", {"prompt": TEXT})["tokens"]
    reference = expected(model, token_ids)
    first, second = told(served, [token_ids])[0], told(served, [token_ids])[0]
    assert first == second, "the same bits, whatever is cached"
    np.testing.assert_allclose(first[1:], reference, atol=0.05)
    assert abs(sum(first[1:]) - float(reference.sum())) < 0.01 * abs(float(reference.sum()))
