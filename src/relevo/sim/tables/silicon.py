"""Reader of AIConfigurator's `silicon_sample.csv`: TTFT and TPOT that engines reached on real devices.

Source: ai-dynamo/aiconfigurator, Apache-2.0; a dump of InferenceX's database and NVIDIA's own runs.

What is put right or left out, and counted:
- A run that is listed several times (several dumps, names DeepSeek-R1 and -V3) counts once, with its layout if one of
  them has it.
- Layouts of single-node runs that were written as products (tp 8 and ep 8 as 64 ranks) are taken back to their roots.
- Disaggregated runs without the workers' layout cannot be told apart and are left out, also where they are listed as
  aggregated ones with more ranks than a node has.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isqrt
from statistics import median

from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.plausible import check_tpot

_NODE_SIZE = 8  # devices; aggregated runs of this table stay in one
_FIXED_LENGTHS = "auto-gap-analysis"  # in the source of such runs; InferenceX draws lengths
_SAME_RUN = ("system", "backend", "isl", "osl")
_CONCURRENCY = re.compile(r"concurrency=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSide:
    """Of a disaggregated run."""

    num_workers: int
    parallelism: Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class SiliconRow:
    """One measured point. `parallelism` and `num_workers` are of the workers that decode."""

    row_id: str
    model: str
    engine: str
    version: str
    device: str
    precision: str  # bf16, fp8, fp8_block, fp4, int4
    num_input_tokens: int
    num_output_tokens: int
    has_fixed_lengths: bool  # every request alike; else lengths are drawn up to those stated
    concurrency: int
    parallelism: Parallelism
    num_workers: int
    prefill: PrefillSide | None  # None: aggregated
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class SiliconTable:
    rows: tuple[SiliconRow, ...]
    left_out: Mapping[str, int]  # number by reason


def read_silicon(lines: Iterable[str]) -> SiliconTable:
    """Raises StartError for times in another unit."""
    runs: dict[tuple[str, ...], tuple[SiliconRow | None, str]] = {}
    num_again = 0
    for record in csv.DictReader(lines):
        times = (
            f"{float(record[name]):.2f}" for name in ("silicon_ttft_ms", "silicon_tpot_ms")
        )  # some dumps are rounded
        key = (*(record[name] for name in _SAME_RUN), *times)
        num_again += key in runs
        if key not in runs or runs[key][0] is None:
            runs[key] = _row(record)
    left_out = Counter(reason for row, reason in runs.values() if row is None)
    left_out["the same run again"] = num_again
    rows = tuple(row for row, _ in runs.values() if row)
    if rows:
        check_tpot(median(row.tpot_s for row in rows), "the table of measured servers")
    return SiliconTable(rows, dict(left_out))


def _row(record: Mapping[str, str]) -> tuple[SiliconRow | None, str]:
    """The row, or why there is none."""
    is_split = record["mode"] == "disagg"
    if is_split and not record["prefill_num_workers"]:
        return None, "disaggregated, layout of workers missing"
    side = "decode_" if is_split else ""
    spread = _parallelism(record, side)
    if not is_split and spread.num_ranks > _NODE_SIZE:
        return None, "more ranks than a node has: disaggregated, layout missing"
    num_workers = int(record["decode_num_workers"] or 1) if is_split else 1
    stated = _CONCURRENCY.search(record["silicon_data_source"])
    batch_size = int(record[f"{side}batch_size"]) * num_workers * spread.attention_data
    prefill = None
    if is_split:
        prefill = PrefillSide(
            num_workers=int(record["prefill_num_workers"]), parallelism=_parallelism(record, "prefill_")
        )
    row = SiliconRow(
        row_id=record["id"],
        model=record["model_path"],
        engine=record["backend"],
        version=record["backend_version"],
        device=record["system"].removesuffix("_sxm"),
        precision=_precision(record),
        num_input_tokens=int(record["isl"]),
        num_output_tokens=int(record["osl"]),
        has_fixed_lengths=_FIXED_LENGTHS in record["silicon_data_source"],
        concurrency=int(stated[1]) if stated else batch_size,
        parallelism=spread,
        num_workers=num_workers,
        prefill=prefill,
        ttft_s=float(record["silicon_ttft_ms"]) / 1e3,
        tpot_s=float(record["silicon_tpot_ms"]) / 1e3,
    )
    return row, ""


def _precision(record: Mapping[str, str]) -> str:
    stated = record["precision"] or "bf16"
    return "fp8_block" if stated == "fp8" and "block" in record["moe_quant_mode"] else stated


def _parallelism(record: Mapping[str, str], side: str) -> Parallelism:
    tensor, data, expert_tensor, expert = (
        int(record[f"{side}{name}"] or 1) or 1
        for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    root = isqrt(tensor * data)
    is_product = not side and root > 1 and root * root == tensor * data == expert_tensor * expert
    if is_product and data > 1 and (expert_tensor == expert or tensor == data):
        return Parallelism(attention_data=root, expert=root)
    if is_product and tensor * data > root and expert_tensor == expert and record["attention_dp_size"]:
        return Parallelism(tensor=root, expert=root)
    return Parallelism(tensor=tensor, attention_data=data, expert=expert if (tensor * data) % expert == 0 else 1)
