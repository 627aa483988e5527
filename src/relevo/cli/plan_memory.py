"""`relevo plan memory`: what of a model lies where, and how much context there is room for. Parses argv, prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from relevo.build.expert_loads import read_expert_loads
from relevo.build.plan_memory import (
    GIB,
    KV_DTYPES,
    Wanted,
    answer_memory,
    kv_value_bytes,
    memory_json,
    memory_sentences,
    memory_tables,
)
from relevo.build.simulated_machines import read_shape
from relevo.build.this_machine import is_this_machine, this_machine
from relevo.cli.bench_terminal import note, out
from relevo.core.errors import SettingsError
from relevo.core.kv import SCALE_BYTES
from relevo.policy.perf.memory_plan import MemoryLimits
from relevo.policy.perf.rank_memory import MemoryAsk
from relevo.policy.scaling.inventory import parse_inventory

_EXIT_DOES_NOT_FIT = 1
_STEP_TOKENS, _CPU_STEP_TOKENS = 8192, 512  # of vLLM, and of `relevo serve` on CPUs
_MODEL = "A config.json, a folder with one, or a hub id. Weights are not read."
_DCP = "Tensor ranks over which a cache is divided by tokens (decode context parallel). Default: the best."
_REDUNDANT = "With --ep: copies of hot experts in each layer, over all its ranks."
_LOADS = "JSON: for each layer with experts, the tokens that passed each of them. Says how evenly ranks are loaded."
_OVERHEAD = "Of a rank: all that is neither weights nor KV. Default: counted."


def memory(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    devices: Annotated[str, typer.Option(help="Of one worker: 8xH100, or cpu: this machine.")],
    tp: Annotated[int | None, typer.Option(min=1, max=4096, help="Tensor ranks. Default: the best.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, max=4096, help="Pipeline stages. Default: the best.")] = None,
    ep: Annotated[bool, typer.Option("--ep", help="Ranks hold whole experts instead of a part of each.")] = False,
    num_redundant_experts: Annotated[int, typer.Option(min=0, max=10**6, help=_REDUNDANT)] = 0,
    expert_loads: Annotated[str | None, typer.Option("--expert-load", "--expert-loads", help=_LOADS)] = None,
    dcp: Annotated[int | None, typer.Option(min=1, max=4096, help=_DCP)] = None,
    kv_dtype: Annotated[str, typer.Option(help=f"One of {', '.join(KV_DTYPES)}.")] = "bfloat16",
    max_model_len: Annotated[
        int | None, typer.Option(min=1, max=10**9, help="Longest context, tokens. Default: the model's.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, max=10**7, help="Of a step. Default: 8192, on this machine 512.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, max=10**6, help="Of a step.")] = 256,
    block_size: Annotated[int, typer.Option(min=1, max=4096, help="Tokens of a KV block.")] = 16,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.001, max=1e6, help="Of a device, as a process sees it. Default: known.")
    ] = None,
    overhead_gib: Annotated[float | None, typer.Option(min=0.0, max=1e6, help=_OVERHEAD)] = None,
    memory_utilization: Annotated[float, typer.Option(min=0.05, max=1.0, help="Of device memory.")] = 1.0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the answer to this file.")] = None,
) -> None:
    """What of a model lies on which rank, and how many tokens of context are left room for. Exit 1: it does not fit."""
    is_native = is_this_machine(devices)
    holdings = (this_machine(),) if is_native else parse_inventory(devices)
    shape = read_shape(model, is_native=is_native)
    limits = MemoryLimits(
        max_step_tokens=max_num_batched_tokens or (_CPU_STEP_TOKENS if is_native else _STEP_TOKENS),
        max_rows=max_num_seqs,
        block_size=block_size,
        kv_value_bytes=kv_value_bytes(kv_dtype),
        kv_scale_bytes=float(SCALE_BYTES.get(kv_dtype, 0)),
        utilization=memory_utilization,
        max_sequence_tokens=max_model_len or shape.max_context or 131_072,
    )
    ask = MemoryAsk(
        device_bytes=holdings[0].device.memory_bytes if memory_gib is None else memory_gib * GIB,
        limits=limits,
        overhead_bytes=None if overhead_gib is None else overhead_gib * GIB,
        is_native=is_native,
    )
    wanted = Wanted(
        tensor=tp, pipeline=pp, decode_context=dcp, has_expert_groups=ep, num_redundant_experts=num_redundant_experts
    )
    loads = None if expert_loads is None else read_expert_loads(expert_loads, shape.experts)
    answer = answer_memory(shape, holdings, wanted, ask, loads)
    for table in memory_tables(answer):
        out.print(table)
    for sentence in memory_sentences(answer):
        note(sentence)
    if json_out is not None:
        try:
            json_out.write_text(json.dumps(memory_json(answer), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"cannot write {json_out}: {error.strerror}") from error
    if not answer.fits:
        raise typer.Exit(_EXIT_DOES_NOT_FIT)
