"""A plan fits into the memory that there is: weights, KV caches and processes; or one sentence says what to change.

Red when KV caches are sized from the machine alone, or beside weights and processes instead of behind them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relevo.build.hardware import Hardware, detect_hardware
from relevo.build.plan import ServePlan, resolve
from relevo.build.resolve import GATEWAY_BYTES, SUPERVISOR_BYTES, WORKER_BYTES, ModelAsk
from relevo.core.errors import SettingsError
from relevo.core.model import ModelConfig
from relevo.settings import Settings

MIB = 2**20
GIB = 2**30
SMALL = ModelConfig(  # SmolLM2 135M's shape
    architecture="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
    num_kv_heads=3, head_size=64, rms_norm_eps=1e-5, rope_theta=1e4, max_position=8192, rope_scaling={},
    tie_word_embeddings=True, qkv_bias=False, attention_bias=False, mlp_bias=False, qk_norm=False, sliding_window=None,
)  # fmt: skip


def plan(free_bytes: int, *, weights_bytes: int = 97 * MIB, num_cores: int = 2, **asked: Any) -> ServePlan:
    settings = Settings(model="x.gguf", **asked)
    ask = ModelAsk(settings=settings, model=SMALL, model_hash="hash", weights_bytes=weights_bytes)
    cores = tuple(range(num_cores))
    return resolve(settings, [ask], Hardware(cores=cores, available_memory_bytes=free_bytes, has_bf16=False))


def planned_bytes(planned: ServePlan, weights_bytes: int, num_gateways: int) -> int:
    model = planned.models[0]
    workers = len(model.workers) * (weights_bytes + WORKER_BYTES)
    return workers + model.kv_bytes + num_gateways * GATEWAY_BYTES + SUPERVISOR_BYTES


@pytest.mark.parametrize("topology", ["auto", "unified", "1p1d", "2p2d"])
@pytest.mark.parametrize("gateways", [1, 3])
@pytest.mark.parametrize("free_mib", [300, 400, 512, 600, 800, 1024, 1500, 2048, 4096, 65536])
def test_every_plan_fits_or_says_what_to_change(free_mib: int, gateways: int, topology: str) -> None:
    try:
        planned = plan(free_mib * MIB, topology=topology, gateways=gateways, num_cores=4)
    except SettingsError as error:
        assert free_mib < 2048, error.message
        assert "GiB" in error.message and ("give it more memory" in error.message or "fewer" in error.message)
        return
    assert planned_bytes(planned, 97 * MIB, gateways) <= free_mib * MIB
    assert planned.models[0].workers[0].num_blocks >= 4


def test_a_gibibyte_holds_two_workers_of_the_embedded_model_and_half_of_it_one() -> None:
    assert str(plan(GIB, topology="auto").models[0].topology) == "hybrid"
    small = plan(560 * MIB, topology="auto").models[0]
    assert str(small.topology) == "unified"
    assert "do not fit into" in small.topology_reason


def test_auto_says_that_the_planner_may_change_what_it_chose() -> None:
    """Red when an operator has to guess why roles are not those of the start, or why they never change."""
    modes = ("auto", "on", "dry-run", "off")
    chosen = {mode: plan(GIB, topology="auto", planner=mode).models[0] for mode in modes}
    follows = {mode: "roles follow the traffic" in model.topology_reason for mode, model in chosen.items()}
    assert follows == {"auto": True, "on": True, "dry-run": False, "off": False}
    assert [chosen[mode].served.planner for mode in modes] == ["on", "on", "dry-run", "off"]
    assert plan(GIB, topology="1p1d").models[0].served.planner == "off", "a topology that was written stays"
    one = plan(560 * MIB, topology="auto", planner="on", num_cores=1).models[0]
    assert str(one.topology) == "unified" and "nothing to choose with one worker" in one.topology_reason


def test_weights_that_do_not_fit_are_named_with_the_way_out() -> None:
    with pytest.raises(SettingsError, match=r"3\.00 GiB of weights.*--topology unified.*smaller model"):
        plan(4 * GIB, weights_bytes=3 * GIB, topology="1p1d")
    with pytest.raises(SettingsError, match="--kv-cache-memory-bytes"):
        plan(GIB, topology="1p1d", kv_cache_memory_bytes=400 * MIB)


def test_the_plan_follows_the_container_and_says_so(tmp_path: Path) -> None:
    """A root folder with the files that a container of 1 GiB and half of two cores shows."""
    groups = tmp_path / "sys/fs/cgroup"
    groups.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable: 88888888 kB\n")
    (groups / "memory.max").write_text(f"{GIB}\n")
    (groups / "cpu.max").write_text("100000 100000\n")
    hardware = detect_hardware("cpu", tmp_path)
    assert hardware.available_memory_bytes == GIB
    settings = Settings(model="x.gguf")
    ask = ModelAsk(settings=settings, model=SMALL, model_hash="hash", weights_bytes=97 * MIB)
    planned = resolve(settings, [ask], hardware)
    assert planned_bytes(planned, 97 * MIB, 1) <= GIB
    assert any("1.00 GiB of memory" in note and "memory.max" in note for note in planned.notes)
    if len(hardware.cores) > 1:
        assert len(planned.workers) == 1 and len(planned.workers[0].cores) == 1
        assert any("cpu.max" in note for note in planned.notes)
