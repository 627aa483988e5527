"""Prompts of many lengths through the latent cache, in four rounds, against `transformers`' whole forward.

Red if a split of keys, a merge of splits, a group of heads or the order of steps changes a token. The native backend
gives a token the same bits in every round.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_decoders import BACKENDS, BLOCK_SIZE, TINY_LATENT, PagedDecoder, hf_logits, hf_model, prompt, row

from relevo.engine.loaders.resolve import load_model_files

SLOW = [pytest.param(length, marks=pytest.mark.slow) for length in (1, 2, 17, 64, 255, 256, 257, 511, 600, 750)]
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 128}
CHANGES = {
    **TINY_LATENT,
    "max_position_embeddings": 1024,
    "num_attention_heads": 20,  # two groups that threads share
    "num_key_value_heads": 20,
    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}
TOGETHER = 14


def blocks(first: int, num_tokens: int) -> list[int]:
    return list(range(first, first - (-num_tokens // BLOCK_SIZE)))


@pytest.mark.parametrize("length", [300, *SLOW])
@pytest.mark.parametrize("backend", BACKENDS)
def test_four_rounds_give_the_tokens_of_transformers(backend: str, length: int, tmp_path: Path) -> None:
    model = hf_model("deepseek_v3", **CHANGES)
    model.save_pretrained(tmp_path)
    tokens = prompt(length + 4, length)
    expected = hf_logits(model, tokens)
    paged = PagedDecoder(load_model_files(str(tmp_path)), num_blocks=4096, backend=backend)
    table, kept = blocks(1, len(tokens)), length // BLOCK_SIZE * BLOCK_SIZE

    alone = np.concatenate(
        (
            paged.step(row(tokens[:length], 0, table)),
            *(one(paged, tokens, at, table) for at in range(length, len(tokens))),
        )
    )
    again = paged.step(row(tokens[kept:length], kept, table)) if kept < length else alone[kept:length]
    resumed = np.concatenate(
        (
            paged.step(row(tokens[: length + 2], 0, blocks(1000, len(tokens)))),
            *(one(paged, tokens, at, blocks(1000, len(tokens))) for at in (length + 2, length + 3)),
        )
    )
    rows = [
        row(prompt(length // 3 + each, 50 + each), 0, blocks(1300 + 150 * each, length)) for each in range(TOGETHER - 1)
    ]
    own = 1300 + 150 * TOGETHER
    many = paged.step(*rows[:6], row(tokens[:length], 0, blocks(own, len(tokens))), *rows[6:])
    first = sum(len(each.token_ids) for each in rows[:6])
    together = many[first : first + length]

    for found, start in ((alone, 0), (again, kept), (resumed, 0), (together, 0)):
        part = expected[start : start + len(found)]
        assert np.abs(found - part).max(initial=0.0) <= 1e-4
        np.testing.assert_array_equal(found.argmax(axis=1), part.argmax(axis=1))
        if backend == "native":
            np.testing.assert_array_equal(found, alone[start : start + len(found)])


def one(paged: PagedDecoder, tokens: list[int], at: int, table: list[int]) -> np.ndarray:
    return paged.step(row(tokens[at : at + 1], at, table))
