"""Commands that start what a plan says, for Relevo and for engines that serve in its place. Text only; nothing is run.

Source: the engines' own command line documentation (vLLM 0.19, SGLang 0.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from relevo.core.role import DECODE, PREFILL, UNIFIED, Role
from relevo.policy.scaling.candidates import Candidate, Stage

_NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
_PORT = 8000
_RELEVO_BLOCK = 16  # tokens of a block, unless it is set


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    where: str  # which machines run it
    command: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What all commands have in common."""

    model: str
    max_model_len: int
    block_size: int
    utilization: float
    rows: dict[Role, int]  # requests that a worker of the role decodes at a time: what fits its pool


def relevo_commands(candidate: Candidate, serving: Serving) -> list[CommandLine]:
    """One command serves all workers of one machine. Their pool is the plan's, and every row has a token in a step."""
    widest = max(stage.kind.num_devices for stage in candidate.stages)
    kinds = {stage.kind.device.name for stage in candidate.stages}
    counts = {stage.role: stage.num_workers for stage in candidate.stages}
    topology = "unified" if not candidate.is_split else f"{counts[PREFILL]}p{counts[DECODE]}d"
    rows = max(serving.rows.values())
    pool = min(stage.kind.memory.num_pool_tokens for stage in candidate.stages)
    parts = [
        *("relevo", "serve", serving.model, "--topology", topology),
        *("--max-model-len", str(serving.max_model_len)),
        *("--max-num-seqs", str(rows)),
        *("--max-num-batched-tokens", str(max(rows, *(stage.kind.chunk_tokens for stage in candidate.stages)))),
        *("--num-kv-blocks", str(pool // _RELEVO_BLOCK)),
    ]
    notes = []
    if widest > 1:
        notes.append(f"a worker of this plan has {widest} devices; Relevo's own workers have one each today")
    if len(kinds) > 1:
        notes.append("the pools are of different devices: start one server on each machine")
    if not candidate.is_split and counts[UNIFIED] > 1:
        notes.append(f"on each of {counts[UNIFIED]} workers' devices, behind one gateway or load balancer")
    return [CommandLine(where="relevo", command=_joined(parts), note="; ".join(notes))]


def vllm_commands(candidate: Candidate, serving: Serving) -> list[CommandLine]:
    return [_vllm(stage, serving, candidate.is_split) for stage in candidate.stages] + _vllm_router(candidate)


def sglang_commands(candidate: Candidate, serving: Serving) -> list[CommandLine]:
    return [_sglang(stage, serving, candidate.is_split) for stage in candidate.stages] + _sglang_router(candidate)


def _vllm(stage: Stage, serving: Serving, is_split: bool) -> CommandLine:
    kind, spread = stage.kind, stage.kind.parallelism
    parts = ["vllm", "serve", serving.model, "--port", str(_PORT), "--tensor-parallel-size", str(spread.tensor)]
    if spread.pipeline > 1:
        parts += ["--pipeline-parallel-size", str(spread.pipeline)]
    if spread.attention_data > 1:
        parts += ["--data-parallel-size", str(spread.attention_data), "--enable-expert-parallel"]
    rows = max(1, serving.rows[stage.role] // spread.attention_data)  # of each rank
    parts += ["--max-model-len", str(serving.max_model_len), "--max-num-seqs", str(rows)]
    parts += ["--max-num-batched-tokens", str(kind.chunk_tokens + (rows if stage.role == UNIFIED else 0))]
    parts += ["--gpu-memory-utilization", f"{serving.utilization:g}"]
    if is_split:
        parts += ["--kv-transfer-config", _NIXL]
    return CommandLine(where=_where(stage), command=_joined(parts))


def _sglang(stage: Stage, serving: Serving, is_split: bool) -> CommandLine:
    kind, spread = stage.kind, stage.kind.parallelism
    parts = ["python3", "-m", "sglang.launch_server", "--model-path", serving.model, "--port", str(_PORT)]
    parts += ["--tp-size", str(spread.num_ranks)]  # here the ranks of a stage; data parallelism divides them
    if spread.pipeline > 1:
        parts += ["--pp-size", str(spread.pipeline)]
    if spread.attention_data > 1:
        parts += ["--dp-size", str(spread.attention_data), "--enable-dp-attention", "--ep-size", str(spread.expert)]
    parts += ["--context-length", str(serving.max_model_len)]
    parts += ["--max-running-requests", str(serving.rows[stage.role])]
    parts += ["--chunked-prefill-size", str(kind.chunk_tokens * spread.attention_data)]
    parts += ["--mem-fraction-static", f"{serving.utilization:g}"]
    if is_split:
        parts += ["--disaggregation-mode", str(stage.role), "--disaggregation-transfer-backend", "nixl"]
    return CommandLine(where=_where(stage), command=_joined(parts))


def _vllm_router(candidate: Candidate) -> list[CommandLine]:
    if candidate.is_split:
        flags = ["vllm-router", "--vllm-pd-disaggregation", *_urls(candidate)]
    elif candidate.stages[0].num_workers > 1:
        flags = ["vllm-router", "--worker-urls", *(f"http://unified-{i}:{_PORT}" for i in _indices(candidate, 0))]
    else:
        return []
    return [CommandLine(where="router", command=_joined(flags))]


def _sglang_router(candidate: Candidate) -> list[CommandLine]:
    start = ["python3", "-m", "sglang_router.launch_router"]
    if candidate.is_split:
        flags = [*start, "--pd-disaggregation", *_urls(candidate)]
    elif candidate.stages[0].num_workers > 1:
        flags = [*start, "--worker-urls", *(f"http://unified-{i}:{_PORT}" for i in _indices(candidate, 0))]
    else:
        return []
    return [CommandLine(where="router", command=_joined(flags))]


def _urls(candidate: Candidate) -> list[str]:
    prefill = [part for i in _indices(candidate, 0) for part in ("--prefill", f"http://prefill-{i}:{_PORT}")]
    return prefill + [part for i in _indices(candidate, 1) for part in ("--decode", f"http://decode-{i}:{_PORT}")]


def _indices(candidate: Candidate, stage: int) -> range:
    return range(candidate.stages[stage].num_workers)


def _where(stage: Stage) -> str:
    names = f"{stage.role}-0" if stage.num_workers == 1 else f"{stage.role}-0 to {stage.role}-{stage.num_workers - 1}"
    return f"{names}: {stage.kind.num_devices} x {stage.kind.device.name} each"


def _joined(parts: list[str]) -> str:
    return " ".join(quote(part) for part in parts)
