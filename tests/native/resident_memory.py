"""`make plan-memory`: what `relevo plan memory --devices cpu` promises against what a worker's process really holds.

Five models of random weights, each planned for some memory; the pool that the plan leaves room for is then filled by a
worker in a fresh process, and the kernel is asked what that process has in memory (PSS).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from relevo.build.model import kv_layout
from relevo.build.serve import plan_serving
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import config_from_hf, spec_of
from relevo.settings import Settings

MIB = 2**20
TOLERANCE = 0.05
STEP_TOKENS, ROWS = 512, 8
_COMMON = {"dtype": "bfloat16", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "bos_token_id": 1}
_INT4 = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "targets": ["Linear"],
            "weights": {"group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "int"},
        }
    },
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "quant_method": "compressed-tensors",
}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int) -> dict[str, Any]:
    return {
        **_COMMON,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
    }


@dataclass(frozen=True)
class Planned:
    config: dict[str, Any]
    kv_mib: int  # about


MODELS = {
    "dense": Planned({"model_type": "llama", **_sizes(384, 1024, 6, 6, 6, 8192)}, 24),
    "grouped heads, 4 bits": Planned(
        {
            "model_type": "qwen3",
            **_sizes(1024, 3072, 14, 16, 4, 16384),
            "head_dim": 64,
            "quantization_config": _INT4,
        },
        64,
    ),
    "experts": Planned(
        {
            "model_type": "qwen3_moe",
            **_sizes(512, 1024, 12, 8, 2, 16384),
            "head_dim": 64,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "norm_topk_prob": True,
        },
        48,
    ),
    "latents, experts": Planned(
        {
            "model_type": "deepseek_v3",
            **_sizes(768, 2048, 16, 16, 16, 16384),
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 512,
            "n_routed_experts": 16,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "n_group": 4,
            "topk_group": 2,
            "kv_lora_rank": 256,
            "q_lora_rank": 384,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
        64,
    ),
    "windows": Planned(
        {
            "model_type": "gemma3_text",
            **_sizes(1280, 5120, 18, 8, 4, 65536),
            "head_dim": 160,
            "query_pre_attn_scalar": 160,
            "sliding_window": 512,
        },
        128,
    ),
}


def write_model(config: dict[str, Any], folder: Path) -> None:
    model = config_from_hf(config, "config.json")
    generator, tensors = torch.Generator().manual_seed(0), {}
    for group in spec_of(model).weights(model, None):
        for name, shape in group.items():
            if "quantization_config" in config and name.endswith("_proj.weight"):
                stem, (rows, columns) = name.removesuffix(".weight"), shape
                packed = torch.randint(-(2**31), 2**31 - 1, (rows, columns // 8), generator=generator)
                tensors[f"{stem}.weight_packed"] = packed.to(torch.int32)
                tensors[f"{stem}.weight_scale"] = torch.full((rows, columns // 32), 0.005, dtype=torch.bfloat16)
                tensors[f"{stem}.weight_shape"] = torch.tensor(shape)
            else:
                tensors[name] = torch.randn(shape, generator=generator).mul(0.02).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


_WORKER = """
import gc, json, re, sys
import msgspec, numpy as np
from relevo.build.configs import WorkerConfig
from relevo.build.worker import build_model, scheduler_config
from relevo.core.ids import RequestId
from relevo.core.request import EngineRequest, SamplingParams
from relevo.policy.worker.scheduler import Scheduler

config = msgspec.json.decode(sys.argv[1], type=WorkerConfig)
built = build_model(config, lambda status: None)
runner = built.runner
scheduler = Scheduler(scheduler_config(config, runner.layout, built.costs.costs, runner.vocab_size))
each = config.max_num_batched_tokens // config.max_num_seqs
for number in range(config.max_num_seqs):  # the largest step, then one of most rows
    tokens = tuple((number + 7 * place) % runner.vocab_size for place in range(each))
    request = EngineRequest(
        request_id=RequestId(str(number)), prompt_token_ids=tokens, sampling=SamplingParams(max_tokens=3, seed=0)
    )
    assert scheduler.submit(request, (), 0) is None
while (plan := scheduler.plan(0)) is not None:
    scheduler.commit(plan, runner.execute(plan), 0)
np.frombuffer(built.arena.buffer, dtype=np.uint8)[::4096] = 1  # the pool is full
gc.collect()
text = open("/proc/self/smaps_rollup").read()
told = {key: int(value) * 1024 for key, value in re.findall(r"^(\\w+):\\s+(\\d+) kB", text, re.MULTILINE)}
told["packed"] = runner._model.ops.weight_bytes
print(json.dumps(told))
"""


@dataclass(frozen=True, kw_only=True)
class Resident:
    name: str
    weight_bytes: float  # planned
    packed_bytes: int  # held
    step_bytes: float  # planned
    process_bytes: float  # planned
    pool_bytes: int
    resident_bytes: int

    @property
    def planned_bytes(self) -> float:
        return self.weight_bytes + self.step_bytes + self.process_bytes + self.pool_bytes

    @property
    def error(self) -> float:
        return self.planned_bytes / self.resident_bytes - 1.0


def measure(name: str) -> Resident:
    planned = MODELS[name]
    with TemporaryDirectory(prefix="relevo-resident-") as path:
        folder = Path(path)
        write_model(planned.config, folder)
        weights = (folder / "model.safetensors").stat().st_size
        stage = _plan(folder, (weights / MIB + 100 + planned.kv_mib) / 1024)
        files = load_model_files(path)
        layout = kv_layout(files.config, "hash", "float16", 16)
        num_blocks = int((stage["free_bytes"] + stage["bounded_bytes"]) / layout.bytes_per_block)
        settings = Settings(
            model=path,
            topology="unified",
            backend="native",
            num_kv_blocks=num_blocks,
            max_num_batched_tokens=STEP_TOKENS,
            max_num_seqs=ROWS,
            max_model_len=1024,
        )
        config = plan_serving(settings).models[0].workers[0]
        command = [sys.executable, "-P", "-c", _WORKER, msgspec.json.encode(config).decode()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
    return Resident(
        name=name,
        weight_bytes=stage["weight_bytes"],
        packed_bytes=told["packed"],
        step_bytes=stage["activation_bytes"],
        process_bytes=stage["runtime_bytes"],
        pool_bytes=num_blocks * layout.bytes_per_block,
        resident_bytes=told["Pss"],
    )


def _plan(folder: Path, memory_gib: float) -> dict[str, Any]:
    answer = folder / "answer.json"
    command = [sys.executable, "-m", "relevo", "plan", "memory", str(folder), "--devices", "cpu"]
    command += ["--memory-gib", str(memory_gib), "--max-num-seqs", str(ROWS), "--json", str(answer)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stage: dict[str, Any] = json.loads(answer.read_text())["layouts"][0]["stages"][0]
    return stage


def main() -> None:
    sys.stdout.write("| model | weights planned, held | step | process | pool | planned | resident | error |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    worst = 0.0
    for name in MODELS:
        found = measure(name)
        parts = (found.weight_bytes, found.packed_bytes, found.step_bytes, found.process_bytes, found.pool_bytes)
        weights, held, step, process, pool, planned, resident = (
            f"{size / MIB:.1f}" for size in (*parts, found.planned_bytes, found.resident_bytes)
        )
        error = f"{found.error:+.1%}"
        sys.stdout.write(
            f"| {name} | {weights}, {held} | {step} | {process} | {pool} | {planned} | {resident} | {error} |\n"
        )
        sys.stdout.flush()
        worst = max(worst, abs(found.error))
    raise SystemExit(f"the worst is {worst:.1%} off, more than {TOLERANCE:.0%}" if worst > TOLERANCE else 0)


if __name__ == "__main__":
    main()
