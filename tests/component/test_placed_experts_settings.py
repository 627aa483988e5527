"""What `--expert-load` and `--num-redundant-experts` come to: where experts lie, what is said and counted, and what is
refused.

Red when a file of another model is taken, when copies are not counted in memory, when workers place experts otherwise
than is said, or when what cannot be is tried.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_backend_selection import MODEL

from relevo.build.cluster import compute_of
from relevo.build.expert_loads import Loads
from relevo.build.hardware import Hardware
from relevo.build.model import rank_share
from relevo.build.placed_experts import asked_expert_loads, placement_line
from relevo.build.resolve import ModelAsk, ModelPlan, resolve_model, worker_bytes
from relevo.core.errors import SettingsError
from relevo.core.model import ExpertsConfig, ModelConfig, Routing
from relevo.settings import Settings

NUM_EXPERTS = 8
EXPERTS = replace(
    MODEL,
    architecture="mixtral",
    experts=ExpertsConfig(layers=(0, 1), num_experts=NUM_EXPERTS, intermediate_size=96, routing=Routing(num_active=2)),
)
HOT: Loads = ((100.0, *7 * (10.0,)), (*7 * (10.0,), 100.0))
WHOLE: dict[str, Any] = {"tensor_parallel_size": 2, "enable_expert_parallel": True}


def plan_of(model: ModelConfig, loads: Loads | None, **asked: Any) -> ModelPlan:
    hardware = Hardware(
        cores=(0, 1), available_memory_bytes=2**34, has_bf16=False, num_cuda_devices=0, cuda_memory_bytes=2**34
    )
    settings = Settings(model="x.gguf", topology="unified", **asked)
    return resolve_model(ModelAsk(settings=settings, model=model, model_hash="hash", expert_loads=loads), hardware)


def test_hot_experts_lie_on_both_ranks() -> None:
    made = plan_of(EXPERTS, HOT, expert_load="loads.json", num_redundant_experts=2, **WHOLE)
    (worker,) = made.workers
    first, second = worker.expert_ranks
    assert first[0] == (0, 1) and second[7] == (0, 1)
    for rank in range(2):
        share = rank_share(worker, EXPERTS, rank)
        assert share is not None
        lead, *others = (each.config.experts for each in share.slices(EXPERTS))
        assert lead is not None and len(lead.places) == 2
        assert [len(each.held) for each in lead.places] == [5, 5]
        assert not any(each.held for other in others if other is not None for each in other.places)
    (note,) = (note for note in made.notes if "loads.json" in note)
    assert "the fullest rank computes 1.00 times the mean, in order 1.53 times" in note
    assert placement_line(worker) == (
        "experts of 2 layers placed by load: 10, 10 of them on the ranks of a stage, at most 2 copies in a layer"
    )


def test_without_copies_hot_experts_are_spread() -> None:
    loads: Loads = 2 * ((50.0, 50.0, *6 * (10.0,)),)
    (worker,) = plan_of(EXPERTS, loads, expert_load="loads.json", **WHOLE).workers
    for layer in worker.expert_ranks:
        assert sorted(layer) == sorted([(0,)] * 4 + [(1,)] * 4) and layer[0] != layer[1]


def test_placement_is_no_part_of_what_bits_depend_on() -> None:
    placed, in_order = plan_of(EXPERTS, HOT, expert_load="x", **WHOLE), plan_of(EXPERTS, None, **WHOLE)
    assert compute_of(placed.workers[0]) == compute_of(in_order.workers[0])
    assert in_order.workers[0].expert_ranks == () and placement_line(in_order.workers[0]) is None


def test_copies_are_counted_in_memory() -> None:
    def needed(num_redundant: int) -> int:
        settings = Settings(model="x.gguf", num_redundant_experts=num_redundant, **WHOLE)
        ask = ModelAsk(
            settings=settings, model=EXPERTS, model_hash="hash", weights_bytes=400_000, num_parameters=200_000
        )
        return worker_bytes(ask)

    assert needed(4) - needed(0) == 2 * 4 * 2 * 3 * 64 * 96


@pytest.mark.parametrize(
    ("model", "loads", "asked", "said"),
    [
        (EXPERTS, None, {"num_redundant_experts": 2, **WHOLE}, "name the file that says which these are with --expert"),
        (EXPERTS, HOT, {"expert_load": "f"}, "--expert-load f says which ranks have which experts whole; add --enable"),
        (
            EXPERTS,
            HOT,
            {"expert_load": "f", "tensor_parallel_size": 2},
            "add --enable-expert-parallel and --tensor-parallel-size",
        ),
        (
            EXPERTS,
            HOT,
            {"expert_load": "f", **WHOLE, "tensor_parallel_size": 1},
            "there is one rank; ask for 2, 4 or 8 with --tensor-parallel-size",
        ),
        (
            EXPERTS,
            HOT,
            {"expert_load": "f", "num_redundant_experts": 3, **WHOLE},
            "choose --num-redundant-experts 2, or",
        ),
        (EXPERTS, HOT, {"expert_load": "f", "num_redundant_experts": 10, **WHOLE}, "choose at most 8"),
        (EXPERTS, HOT, {"expert_load": "f", **WHOLE, "backend": "torch"}, "needs --backend native, not torch"),
        (MODEL, None, {"expert_load": "f", **WHOLE}, "a model without experts has none to place whole"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    model: ModelConfig, loads: Loads | None, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        plan_of(model, loads, **asked)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (json.dumps([[1] * 8]), "must be a list of 2 layers with experts, and is 1 of them; mend it"),
        (json.dumps([[1] * 8] * 3), "must be a list of 2 layers with experts, and is 3 of them; mend it"),
        (json.dumps([[1] * 7] * 2), "layer 0 of the list must have 8 numbers; mend it"),
        (json.dumps([[1] * 8, [1] * 7 + [-1]]), "layer 1 of the list has '-1', which is no count of tokens"),
        (json.dumps([[1] * 8, [1] * 7 + [0.5]]), "layer 1 of the list has '0.5', .*write a whole number of 0 or more"),
        ('{"layers": []}', "and is no list; mend it"),
        ("[", "cannot be read"),
        (
            "".join(
                f'relevo:expert_tokens_total{{model_name="{name}",layer="0",expert="0"}} 1\n' for name in ("a", "b")
            ),
            "of 2 models; keep the lines of one of them",
        ),
    ],
)
def test_files_that_are_none(tmp_path: Path, written: str, words: str) -> None:
    path = tmp_path / "loads.json"
    path.write_text(written)
    with pytest.raises(SettingsError, match=words) as refused:
        asked_expert_loads(Settings(expert_load=str(path)), EXPERTS)
    assert str(refused.value).startswith(f"--expert-load {path}")


def test_a_file_that_is_missing_and_a_model_without_experts(tmp_path: Path) -> None:
    missing = Settings(expert_load=str(tmp_path / "none.json"))
    with pytest.raises(SettingsError, match=r"--expert-load .*none.json cannot be read: .*No such file"):
        asked_expert_loads(missing, EXPERTS)
    with pytest.raises(SettingsError, match=r"is of experts, and the model has none; leave it out"):
        asked_expert_loads(missing, MODEL)
    assert asked_expert_loads(Settings(), MODEL) is None
