"""Which backend, dtypes and extras follow from settings, and what is said when a part is missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from relevo.build import backend
from relevo.build.configs import WorkerConfig
from relevo.build.hardware import Hardware
from relevo.build.model import kv_layout
from relevo.build.resolve import WORKER_BYTES, ModelAsk, ModelPlan, resolve_model, worker_bytes
from relevo.build.worker import scheduler_config
from relevo.cli.main import make_app
from relevo.core.errors import SettingsError, StartError
from relevo.core.events import StepCosts
from relevo.core.model import ModelConfig
from relevo.settings import Settings

MODEL = ModelConfig(
    architecture="llama", vocab_size=96, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4,
    num_kv_heads=2, head_size=16, rms_norm_eps=1e-5, rope_theta=1e4, max_position=128, rope_scaling={},
    tie_word_embeddings=True, qkv_bias=False, attention_bias=False, mlp_bias=False, qk_norm=False, sliding_window=None,
)  # fmt: skip
LAYOUT = kv_layout(MODEL, "hash", "float32", 16)


def plan(num_cuda_devices: int = 0, **asked: Any) -> ModelPlan:
    hardware = Hardware(
        cores=(0, 1), available_memory_bytes=2**34, has_bf16=False, num_cuda_devices=num_cuda_devices,
        cuda_memory_bytes=2**34,
    )  # fmt: skip
    ask = ModelAsk(settings=Settings(model="x.gguf", **asked), model=MODEL, model_hash="hash")
    return resolve_model(ask, hardware)


def worker(num_cuda_devices: int = 0, **asked: Any) -> WorkerConfig:
    return plan(num_cuda_devices, **asked).workers[0]


def test_cpus_compute_natively_and_cuda_devices_through_torch() -> None:
    assert worker().backend == "native"
    assert worker(num_cuda_devices=1).backend == "torch"
    assert worker(backend="torch").backend == "torch"
    with pytest.raises(SettingsError, match="--backend native computes on CPUs"):
        plan(num_cuda_devices=1, backend="native")


@pytest.mark.parametrize(
    ("asked", "dtype", "kv_dtype"),
    [
        ({}, "auto", "float16"),
        ({"dtype": "float32"}, "float32", "float32"),
        ({"dtype": "bfloat16"}, "bfloat16", "bfloat16"),
        ({"kv_cache_dtype": "int8"}, "auto", "int8"),
        ({"backend": "torch"}, "float32", "float32"),
        ({"backend": "torch", "kv_cache_dtype": "bfloat16"}, "float32", "bfloat16"),
    ],
)
def test_dtypes_follow_from_the_backend(asked: dict[str, Any], dtype: str, kv_dtype: str) -> None:
    made = worker(**asked)
    assert (made.dtype, made.kv_cache_dtype) == (dtype, kv_dtype)
    assert plan(**asked).layout.dtype == kv_dtype


@pytest.mark.parametrize("asked", [{}, {"max_num_batched_tokens": 512}])
def test_steps_stay_shorter_than_the_time_to_let_go_of_a_request(
    asked: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that is slow at start serves all the same, and says in what steps."""
    slow = StepCosts(base_s=0.1, per_token_s=0.05, per_kv_token_s=0.0)
    config = scheduler_config(worker(**asked), LAYOUT, costs=slow, vocab_size=9)
    assert config.max_batched_tokens == config.max_prefill_tokens == 32  # 64 take more than half of 5 s
    assert "step budget 32 instead of" in caplog.text
    hopeless = StepCosts(base_s=6.0, per_token_s=0.05, per_kv_token_s=0.0)
    with pytest.raises(SettingsError, match=r"longer than --drain-lease-s 5; raise that to 12"):
        scheduler_config(worker(**asked), LAYOUT, costs=hopeless, vocab_size=9)


@pytest.mark.parametrize(
    ("asked", "beside_decodes"),
    [
        ({"topology": "unified"}, 256),  # of 10 ms a step and 0.9 ms a token, 211 waste a twentieth
        ({}, 512),  # auto has a target, to which each step is cut
        ({"topology": "unified", "max_prefill_tokens": 64}, 64),
        ({"topology": "unified", "max_prefill_tokens": 512}, 512),
        ({"topology": "unified", "max_num_batched_tokens": 512}, 512),
        ({"topology": "unified", "slo_itl_p90": 0.05}, 512),
    ],
)
def test_prompts_beside_decodes_come_in_chunks_that_hardly_cost_more_than_larger_ones(
    asked: dict[str, Any], beside_decodes: int
) -> None:
    costs = StepCosts(base_s=0.01, per_token_s=0.0009, per_kv_token_s=0.0)
    config = scheduler_config(worker(**asked), LAYOUT, costs=costs, vocab_size=9)
    assert (config.max_batched_tokens, config.max_prefill_tokens) == (512, beside_decodes)


def test_inputs_are_rounded_to_16_bits_unless_8_are_asked_for() -> None:
    assert worker().activation_dtype == "int16"
    assert worker(activation_dtype="int8").activation_dtype == "int8"
    with pytest.raises(ValidationError, match="int4"):
        Settings(activation_dtype="int4")


@pytest.mark.parametrize(
    "asked", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}, {"activation_dtype": "bfloat16"}]
)
def test_what_only_the_native_backend_does_is_refused_elsewhere(asked: dict[str, Any]) -> None:
    assert worker(**asked).backend == "native"
    with pytest.raises(SettingsError, match=r"(int8|bfloat16) needs --backend native"):
        plan(backend="torch", **asked)


@pytest.mark.parametrize("asked", [{"dtype": "float32"}, {"dtype": "float16"}, {"quantization": "int8"}])
def test_inputs_in_bfloat16_are_refused_where_no_matrix_is(asked: dict[str, Any]) -> None:
    """Red when the setting is taken and does nothing."""
    assert worker(dtype="bfloat16", activation_dtype="bfloat16").activation_dtype == "bfloat16"
    with pytest.raises(SettingsError, match=rf"--\w+ {next(iter(asked.values()))} leaves none; use --dtype bfloat16"):
        plan(activation_dtype="bfloat16", **asked)


@given(st.sampled_from(["float32", "float16", "bfloat16", "int8"]), st.integers(1, 64), st.integers(1, 8))
def test_a_block_has_room_for_its_numbers_and_scales(dtype: str, block_size: int, num_kv_heads: int) -> None:
    """int8 has one float32 scale per token and head beside its D integers."""
    layout = kv_layout(MODEL, "hash", dtype, block_size)
    per_head = {"float32": 64, "float16": 32, "bfloat16": 32, "int8": 16 + 4}[dtype]
    assert layout.bytes_per_block == block_size * 2 * 2 * 2 * per_head


@pytest.mark.parametrize(
    ("name", "module", "way_out"),
    [("native", "relevo_native", r"pip install \./native.*--backend torch"), ("torch", "torch", r"pip install torch")],
)
def test_a_backend_that_is_not_installed_is_one_sentence(
    name: str, module: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        backend.importlib.util, "find_spec", lambda asked, *rest: None if asked == module else found(asked, *rest)
    )
    with pytest.raises(StartError, match=way_out):
        backend.make_ops(worker(backend=name))


def test_the_makefile_has_installed_the_kernels() -> None:
    """The native tests skip without the package; this one does not."""
    assert importlib.util.find_spec("relevo_native") is not None


def test_version_says_which_path_runs_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, app = CliRunner(), make_app("version")
    monkeypatch.setenv("RELEVO_CPU_PATH", "portable")
    forced = runner.invoke(app, ["version", "--cpu"])
    assert forced.exit_code == 0 and "path portable: " in forced.output
    monkeypatch.setenv("RELEVO_CPU_PATH", "avx9")
    refused = runner.invoke(app, ["version", "--cpu"])
    assert isinstance(refused.exception, StartError) and "avx9" in refused.exception.message


def test_a_cpu_worker_needs_neither_torch_nor_gguf() -> None:
    """Every module of a native worker is importable where both are missing. Red when an import drags one in."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['gguf'] = None\n"
        "import relevo.cli.child, relevo.build.worker, relevo.build.gateway, relevo.build.backend\n"
        "import relevo.engine.runner, relevo.engine.sampler, relevo.engine.models.decoder\n"
        "from relevo.engine.loaders.resolve import load_model_files\n"
        "from relevo.engine.ops.native.ops import NativeOps\n"
        "files, ops = load_model_files(), NativeOps()\n"
        "name, tensor = next(iter(files.tensors(raw_formats=ops.native_formats)))\n"
        "print(name, tensor.dtype)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=os.environ.copy()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] in ("q4_0", "q4_1", "q8_0", "float32")


def test_children_do_not_load_what_only_the_command_line_needs() -> None:
    """A worker starts in well under two seconds because of this list, the gateway too."""
    code = (
        "import sys, relevo.cli.child, relevo.build.worker, relevo.build.rank\n"
        "heavy = {'pydantic', 'pydantic_settings', 'typer', 'rich', 'starlette', 'uvicorn', 'aiohttp', 'torch',\n"
        "         'gguf', 'prometheus_client', 'tokenizers', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_ranks_are_told_to_workers_and_said() -> None:
    made = plan(pipeline_parallel_size=2, topology="1p1d")
    assert [each.pipeline_parallel_size for each in made.workers] == [2, 2]
    assert [each.cores for each in made.workers] == [(0,), (1,)], "ranks share the cores of their worker"
    assert any("layers in 2 stages, each in a process of its own" in note for note in made.notes)
    assert not any("stages" in note for note in plan().notes)


@pytest.mark.parametrize(
    ("num_cuda_devices", "asked", "said"),
    [
        (0, 3, "is more than the 2 layers of the model, and every stage needs one; use at most 2"),
        (1, 2, "--device cuda keeps it in device memory; use --device cpu, or leave it out"),
    ],
)
def test_ranks_that_cannot_be_are_refused(num_cuda_devices: int, asked: int, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        plan(num_cuda_devices, pipeline_parallel_size=asked)


def test_memory_of_ranks_is_counted() -> None:
    """Each is a process, and the first and the last both have a tied embedding."""
    settings = {size: Settings(model="x.gguf", pipeline_parallel_size=size) for size in (1, 2, 3)}
    asks = {
        size: ModelAsk(settings=each, model=MODEL, model_hash="hash", weights_bytes=8000, num_parameters=4000)
        for size, each in settings.items()
    }
    one, two, three = (worker_bytes(ask) for ask in asks.values())
    assert two - one == WORKER_BYTES + 2 * 96 * 64
    assert three - two == WORKER_BYTES
