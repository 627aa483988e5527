"""What `--tensor-parallel-size` and `--enable-expert-parallel` come to: who computes where, and what is refused.

Red when a size that cannot be had is tried, when a worker that computes in slices is taken for one that does not, when
a node does not follow its head in it, or when ranks take the cores of each other.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from test_backend_selection import MODEL, plan

from relevo.build.backend import check_collectives_installed
from relevo.build.cluster import cluster_facts, compute_of, node_facts
from relevo.build.hardware import Hardware
from relevo.build.join import _with_equal as with_equal
from relevo.build.model import rank_share
from relevo.build.resolve import TORCH_BYTES, WORKER_BYTES, ModelAsk, ModelPlan, resolve_model, worker_bytes
from relevo.core.errors import SettingsError, StartError
from relevo.core.model import ModelConfig
from relevo.engine.ranks.rank_cores import cores_of_rank
from relevo.settings import Settings

NINE_HEADS = replace(MODEL, num_heads=9, num_kv_heads=3)


def plan_of(model: ModelConfig, num_cores: int = 2, **asked: Any) -> ModelPlan:
    hardware = Hardware(
        cores=tuple(range(num_cores)), available_memory_bytes=2**34, has_bf16=False, num_cuda_devices=0,
        cuda_memory_bytes=2**34,
    )  # fmt: skip
    return resolve_model(ModelAsk(settings=Settings(model="x.gguf", **asked), model=model, model_hash="hash"), hardware)


def test_ranks_are_told_to_workers_and_said() -> None:
    made = plan_of(MODEL, 4, tensor_parallel_size=2, topology="1p1d")
    assert [(each.tensor_parallel_size, each.num_ranks) for each in made.workers] == [(2, 2), (2, 2)]
    assert any("every layer shared by 2 processes" in note for note in made.notes)
    assert not any("warning" in note for note in made.notes)
    both = plan_of(MODEL, 4, tensor_parallel_size=4, pipeline_parallel_size=2, topology="unified")
    assert both.workers[0].num_ranks == 8
    assert any("layers in 2 stages, each in 4 processes that share its layers" in note for note in both.notes)
    assert plan_of(MODEL).workers[0].tensor_parallel_size is None
    assert rank_share(plan_of(MODEL).workers[0], MODEL, 0) is None


def test_more_ranks_than_cores_is_said_and_works() -> None:
    made = plan_of(MODEL, 2, tensor_parallel_size=4, topology="unified")
    assert any("warning: 4 ranks of a worker compute at the same time and share 2 cores" in each for each in made.notes)


@pytest.mark.parametrize("num_cores", range(1, 10))
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_ranks_have_cores_of_their_own_where_there_are_enough(num_cores: int, size: int) -> None:
    cores = [10 + core for core in range(num_cores)]
    shares = [cores_of_rank(cores, rank, size) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1, "a sum waits for the slowest"
    assert all(share and set(share) <= set(cores) for share in shares)
    if num_cores >= size:
        taken = [core for share in shares for core in share]
        assert len(set(taken)) == len(taken) > num_cores - size


@pytest.mark.parametrize(
    ("model", "asked", "said"),
    [
        (MODEL, {"tensor_parallel_size": 3}, "a tensor parallel size of 3 is not one of 1, 2, 4, 8"),
        (MODEL, {"tensor_parallel_size": 16}, "16 is not one of 1, 2, 4, 8"),
        (MODEL, {"tensor_parallel_size": 8}, "8 ranks cannot share 4 attention heads evenly; choose .* size of 4"),
        (
            MODEL,
            {"tensor_parallel_size": 2, "backend": "torch"},
            "--tensor-parallel-size 2 needs --backend native, not torch",
        ),
        (MODEL, {"enable_expert_parallel": True}, "say how many there are with --tensor-parallel-size"),
        (MODEL, {"tensor_parallel_size": 2, "enable_expert_parallel": True}, "a model without experts has none"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(model: ModelConfig, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        plan_of(model, **asked)


def test_formats_that_are_not_multiplied_as_stored_may_be_cut() -> None:
    """Of float columns a slice may begin anywhere; of rows always."""
    down, up = "model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.up_proj.weight"
    hardware = Hardware(
        cores=(0,), available_memory_bytes=2**34, has_bf16=False, num_cuda_devices=0, cuda_memory_bytes=0
    )
    for formats, is_refused in (({down: "q8_0"}, True), ({up: "q4_k"}, False), ({}, False)):
        settings = Settings(model="x.gguf", tensor_parallel_size=2, topology="unified")
        ask = ModelAsk(settings=settings, model=MODEL, model_hash="hash", block_formats=formats)
        with pytest.raises(SettingsError, match=f"{down} is stored as q8_0") if is_refused else nullcontext():
            resolve_model(ask, hardware)


def test_ranks_on_a_device_are_refused() -> None:
    with pytest.raises(SettingsError, match="--device cuda keeps it in device memory; use --device cpu, or leave"):
        plan(1, tensor_parallel_size=2)


def test_one_rank_has_what_cannot_be_cut() -> None:
    """And then its bits are those of a worker that was not asked for slices."""
    norms = replace(MODEL, qk_norm=True, qk_norm_spans_heads=True)
    (worker,) = plan_of(norms, tensor_parallel_size=1, topology="unified").workers
    assert worker.tensor_parallel_size is None
    assert "slices" not in compute_of(worker)


def test_a_worker_that_computes_in_slices_is_known_by_it() -> None:
    """Streams continue where the same bits come out: with every number of ranks, and not without any."""

    def computes(**asked: Any) -> str:
        return compute_of(plan_of(MODEL, topology="unified", **asked).workers[0])

    assert computes(tensor_parallel_size=1) == computes(tensor_parallel_size=4) != computes()
    assert computes(tensor_parallel_size=2, pipeline_parallel_size=2) == computes(tensor_parallel_size=1)
    assert computes(pipeline_parallel_size=2) == computes()


@pytest.mark.parametrize(
    ("head", "node", "computes"),
    [
        ({}, {}, None),
        ({}, {"tensor_parallel_size": 2}, 2),
        ({"tensor_parallel_size": 2}, {}, 1),
        ({"tensor_parallel_size": 1}, {"tensor_parallel_size": 4}, 4),
        ({"tensor_parallel_size": 4}, {"tensor_parallel_size": 1}, 1),
    ],
)
def test_nodes_compute_as_their_head_unless_they_are_asked_for_a_size(
    monkeypatch: pytest.MonkeyPatch, head: dict[str, Any], node: dict[str, Any], computes: int | None
) -> None:
    monkeypatch.setattr("relevo.build.cluster.tokenizer_hash", lambda settings: "tokenizer")
    made = plan_of(MODEL, topology="unified", **head)
    facts = cluster_facts(made, node_facts(made))
    assert facts.is_cut is bool(head)
    assert with_equal(Settings(topology="unified", **node), facts, None).tensor_parallel_size == computes


def test_experts_are_whole_where_head_or_node_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.build.cluster.tokenizer_hash", lambda settings: "tokenizer")
    made = plan_of(MODEL, topology="unified", tensor_parallel_size=1)
    facts = cluster_facts(made, node_facts(made))
    for of_head, of_node in ((False, False), (False, True), (True, False), (True, True)):
        node = Settings(topology="unified", enable_expert_parallel=of_node)
        equal = with_equal(node, replace(facts, enable_expert_parallel=of_head), None)
        assert equal.enable_expert_parallel is (of_head or of_node)


@pytest.mark.parametrize(
    ("num_cuda_devices", "asked", "said"),
    [
        (0, {"collectives": "gloo"}, "here a worker has one; ask for more with --tensor-parallel-size or"),
        (0, {"collectives": "gloo", "tensor_parallel_size": 1}, "here a worker has one"),
        (0, {"collectives": "nccl", "tensor_parallel_size": 2}, "device for each of 2 ranks, and torch finds none"),
        (
            3,
            {"collectives": "nccl", "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "device": "cpu"},
            "device for each of 4 ranks, and torch finds 3 here; use gloo, or leave it out",
        ),
    ],
)
def test_collectives_that_cannot_be_are_refused(num_cuda_devices: int, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        plan(num_cuda_devices, topology="unified", **asked)


def test_collectives_are_told_to_workers() -> None:
    ranks = {"tensor_parallel_size": 2, "topology": "unified"}
    assert [plan(**ranks).workers[0].collectives, plan(**ranks, collectives="gloo").workers[0].collectives] == [
        "shm",
        "gloo",
    ]
    over_devices = plan(2, **ranks, collectives="nccl", device="cpu")
    assert over_devices.workers[0].collectives == "nccl"


def test_what_a_way_between_ranks_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_collectives_installed("shm")
    with pytest.raises(StartError, match="--collectives gloo needs torch, which is not installed; run: pip install"):
        check_collectives_installed("gloo")


def test_an_unknown_way_between_ranks_names_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="'shm', 'gloo' or 'nccl'"):
        Settings(model="x.gguf", collectives="mpi")  # type: ignore[arg-type]


def test_memory_of_ranks_is_counted() -> None:
    """Each is a process, and all have the embedding."""

    def needed(**asked: Any) -> int:
        settings = Settings(model="x.gguf", **asked)
        ask = ModelAsk(settings=settings, model=MODEL, model_hash="hash", weights_bytes=8000, num_parameters=4000)
        return worker_bytes(ask)

    one = needed()
    assert needed(tensor_parallel_size=1) == one
    over_gloo = needed(tensor_parallel_size=2, collectives="gloo") - needed(tensor_parallel_size=2)
    assert over_gloo == 2 * TORCH_BYTES
    assert needed(tensor_parallel_size=4) - one == 3 * (WORKER_BYTES + 2 * 96 * 64)
    assert needed(tensor_parallel_size=2, pipeline_parallel_size=2) - one == 3 * (WORKER_BYTES + 2 * 96 * 64)
