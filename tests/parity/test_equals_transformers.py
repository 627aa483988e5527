"""What comes out of the whole stack is what `transformers` generates: HTTP, two workers, a handoff in between.

Greedy tokens of 60 prompts against `transformers`' own forward pass and cache, float32, its own reading of the same
4-bit file. Red when anything on the way changes a number: chunks, block tables, positions, the handoff, the sampler.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import torch
from stack import Stack, stack
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from relevo.engine.loaders.resolve import load_model_files

torch.set_num_threads(1)  # threads that wait for each other lose more than they bring when something else runs

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(1500)]

NUM_PROMPTS = 60
NUM_NEW_TOKENS = 64
EDGES = (1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1024, 1500)  # of blocks and of chunks
LICENSE = Path(__file__).parents[2] / "LICENSE"
FLAGS = ("--topology", "1p1d", "--dtype", "float32", "--max-model-len", "2048", "--num-kv-blocks", "1024")
SCRIPTS = (
    "El viento del norte y el sol discutían sobre cuál de ellos era más fuerte. ",
    "北风和太阳正在争论谁更有本事。",
    "北風と太陽が、どちらが強いか言い争っていました。",
    "Однажды Северный ветер и Солнце поспорили, кто из них сильнее. ",
    "Ο βοριάς κι ο ήλιος μάλωναν ποιος είναι ο δυνατότερος. ",
    "كانت ريح الشمال تتجادل والشمس في أيهما أقوى. ",
    "북풍과 태양이 서로 힘이 더 세다고 다투고 있었습니다. ",
    "उत्तरी हवा और सूरज इस बात पर झगड़ रहे थे। ",
    "👩‍🚀🚀 naïve café – 3½ × ∑ₙ ≈ ∞ “quoted” … ",
)


@dataclass(frozen=True)
class Reference:
    """What `transformers` generates, and by how much it preferred each token to the next best one."""

    token_ids: list[int]
    gaps: list[float]  # logits


def text_of(kind: str, rng: Random) -> str:
    if kind == "natural":
        text = LICENSE.read_text()
    elif kind == "code":
        text = inspect.getsource(textwrap)
    else:
        text = "".join(rng.choice(SCRIPTS) for _ in range(400))
    start = rng.randrange(len(text))
    return text[start:] + text[:start]


def make_prompts(running: Stack) -> list[list[int]]:
    rng = Random(1)
    lengths = [*EDGES, *(round(3 * 500 ** rng.random()) for _ in range(NUM_PROMPTS - len(EDGES)))]
    rng.shuffle(lengths)
    prompts = []
    for number, length in enumerate(lengths):
        kind = ("natural", "code", "unicode", "random ids")[number % 4]
        if kind == "random ids":
            tokens = [rng.randrange(49152) for _ in range(length)]
        else:
            tokens = running.post("/tokenize", {"prompt": text_of(kind, rng), "add_special_tokens": False})["tokens"]
        assert len(tokens) >= length
        prompts.append(tokens[:length])
    return prompts


def served_tokens(running: Stack, prompts: list[list[int]], concurrency: int) -> list[list[int]]:
    def ask(prompt: list[int]) -> list[int]:
        asked = {"max_tokens": NUM_NEW_TOKENS, "ignore_eos": True, "return_token_ids": True}
        return running.complete(prompt, **asked)["choices"][0]["token_ids"]

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(ask, prompts))


def load_transformers() -> LlamaForCausalLM:
    """Config and weights as `transformers` reads them from the file, without the package `from_pretrained` asks for."""
    path = str(load_model_files().path)
    with torch.device("meta"):
        names = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(path)["config"]))
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=names)["tensors"]
    model = LlamaForCausalLM(names.config).eval()
    absent, unknown = model.load_state_dict(tensors, strict=False)
    assert (absent, unknown) == (["lm_head.weight"], [])  # tied
    assert model.dtype == torch.float32
    return model


def generate(model: LlamaForCausalLM, prompt: list[int]) -> Reference:
    """Greedy, with the model's own KV cache; `model.generate` would end at the end-of-sequence token."""
    reference, tokens, cache = Reference([], []), prompt, None
    for _ in range(NUM_NEW_TOKENS):
        with torch.inference_mode():
            out = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, best = out.past_key_values, out.logits[0, -1].topk(2)
        tokens = [int(best.indices[0])]
        reference.token_ids.extend(tokens)
        reference.gaps.append(float(best.values[0] - best.values[1]))
    return reference


def first_difference(prompt: list[int], served: list[int], reference: Reference) -> str | None:
    if served == reference.token_ids:
        return None
    theirs = reference.token_ids
    at = next((i for i, (a, b) in enumerate(zip(served, theirs, strict=False)) if a != b), len(served))
    return (
        f"prompt of {len(prompt)} tokens: token {at} is {served[at : at + 1]}, transformers has {theirs[at : at + 1]}, "
        f"{reference.gaps[at : at + 1]} logits ahead of its next best"
    )


def test_greedy_tokens_equal_transformers(say: Callable[[str], None]) -> None:
    """Half of the prompts one at a time, half eight at a time."""
    model = load_transformers()
    with stack("smollm2", *FLAGS) as running:
        prompts = make_prompts(running)
        alone, together = prompts[::2], prompts[1::2]
        served = served_tokens(running, alone, 1) + served_tokens(running, together, 8)
        running.wait_idle()
        num_handoffs = running.metric("relevo:handoffs_total", outcome="completed")
    with ThreadPoolExecutor(2) as pool:  # two prompts at once, each in forward passes of its own
        references = list(pool.map(lambda prompt: generate(model, prompt), alone + together))
    compared = zip(alone + together, served, references, strict=True)
    wrong = [difference for one in compared if (difference := first_difference(*one)) is not None]
    smallest_gap = min(gap for reference in references for gap in reference.gaps)
    say(
        f"parity with transformers: {NUM_PROMPTS - len(wrong)}/{NUM_PROMPTS} prompts of {min(map(len, prompts))} to "
        f"{max(map(len, prompts))} tokens, {NUM_NEW_TOKENS} greedy tokens each, {num_handoffs:.0f} handoffs; "
        f"the closest of all choices was won by {smallest_gap:.1e} logits"
    )
    assert not wrong, "\n".join(wrong)
    assert num_handoffs > NUM_PROMPTS / 2, "most prompts were to change worker"
