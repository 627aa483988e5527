"""Every family computes the log probabilities and greedy tokens of `transformers` in four rounds: alone, again from the
prefix cache, resumed inside an answer, and fourteen at once.

Red if a chunk, a window's edge, a hit, a resumed answer or a neighbour in a step changes a number. The native backend
gives a token the same bits in every round. `make exactness` measures what these hold, and writes docs/exactness.md.
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from exact_cases import QUANTISED, WHOLE, Case
from four_rounds import FEW_LENGTHS, LENGTHS, TOLERANCE, Engine, Reference, compare
from tiny_decoders import BACKENDS

from relevo.engine.loaders.resolve import load_model_files

CHEAP = {"Qwen2 safetensors", "Gemma 3 safetensors", "DeepSeek V3 safetensors", "Qwen3.5 safetensors"}


def check(case: Case, backend: str, lengths: tuple[int, ...], folder: Path) -> None:
    model, path = case.make(folder)
    files = load_model_files(str(path))
    found = compare(Engine(files, backend), Reference(model), lengths)
    assert found.largest_of_all <= TOLERANCE, found
    assert found.num_equal == found.num_tokens, found
    assert found.num_hit_tokens > 0
    assert found.has_same_bits or backend != "native"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [case for case in WHOLE if case.name in CHEAP], ids=attrgetter("name"))
def test_four_rounds_give_the_numbers_of_transformers(case: Case, backend: str, tmp_path: Path) -> None:
    check(case, backend, FEW_LENGTHS, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [*WHOLE, *QUANTISED], ids=attrgetter("name"))
def test_fourteen_prompts_of_every_family_and_format(case: Case, backend: str, tmp_path: Path) -> None:
    check(case, backend, LENGTHS if case in WHOLE else FEW_LENGTHS, tmp_path)
