"""`bench engine`'s report as tables for a terminal. Milliseconds, GB/s (10^9) and GOP/s (two for a multiply-add)."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from relevo.bench.engine.run import Breakdown, EngineReport, Spread

PARTS = ("kernels", "inputs", "schedule", "sampling", "rest")


def engine_tables(report: EngineReport) -> RenderableType:
    return Group(_facts_table(report), _prefill_table(report), _decode_table(report), _breakdown_table(report))


def _facts_table(report: EngineReport) -> Table:
    table = Table(show_header=False)
    table.add_column("")
    table.add_column("")
    facts = report.facts
    if facts is not None:
        quantised = f", {facts.quantization}" if facts.quantization else ""
        table.add_row("model", facts.model)
        table.add_row("backend", " ".join(filter(None, (facts.backend, facts.path))))
        table.add_row("weights / KV cache", f"{facts.dtype}{quantised} / {facts.kv_dtype}")
        table.add_row("cores", ",".join(map(str, facts.cores)))
        if facts.work is not None:
            table.add_row("weights read per step", f"{facts.work.weight_bytes / 1e6:,.1f} MB")
            table.add_row("KV per token", f"{facts.work.kv_bytes_per_token / 1e3:,.1f} kB")
    return table


def _prefill_table(report: EngineReport) -> Table:
    table = Table(title="Prefill: median (least-most)", title_justify="left")
    for heading in ("prompt", "tokens/s", "chunks", "outside kernels", "GOP/s", "limit GOP/s", "of limit"):
        table.add_column(heading, justify="right")
    for row in report.prefill:
        table.add_row(
            str(row.prompt_len),
            _spread(row.tokens_per_s, 1.0),
            str(row.num_steps),
            _percent(row.breakdown.overhead_fraction),
            _giga(row.operations_per_s),
            _giga(row.limit_operations_per_s),
            _percent(row.limit_fraction),
        )
    return table


def _decode_table(report: EngineReport) -> Table:
    table = Table(title="Decode: median (least-most); bound: bytes per step / read bandwidth", title_justify="left")
    headings = ("batch", "context", "ms/step", "tokens/s", "MB/step", "GB/s", "limit GB/s", "bound ms", "bound/step")
    for heading in (*headings, "GOP/s"):
        table.add_column(heading, justify="right")
    for row in report.decode:
        table.add_row(
            str(row.batch_size),
            str(row.context),
            _spread(row.step_s, 1e3),
            f"{row.tokens_per_s:,.1f}",
            "-" if row.step_bytes is None else f"{row.step_bytes / 1e6:,.1f}",
            _giga(row.bytes_per_s),
            _giga(row.limit_bytes_per_s),
            _ms(row.bound_s),
            _percent(row.bound_fraction),
            _giga(row.operations_per_s),
        )
    return table


def _breakdown_table(report: EngineReport) -> Table:
    table = Table(title="Where a step goes, ms (medians)", title_justify="left")
    table.add_column("")
    for part in (*PARTS, "outside kernels"):
        table.add_column(part, justify="right")
    for prompt in report.prefill:
        table.add_row(f"prompt of {prompt.prompt_len}", *_parts(prompt.breakdown))
    for row in report.decode:
        table.add_row(f"{row.batch_size} at {row.context}", *_parts(row.breakdown))
    return table


def _parts(breakdown: Breakdown) -> list[str]:
    seconds = [getattr(breakdown, f"{part}_s") for part in PARTS]
    return [*map(_ms, seconds), _percent(breakdown.overhead_fraction)]


def _spread(spread: Spread, scale: float) -> str:
    return f"{spread.median * scale:,.2f} ({spread.least * scale:,.2f}-{spread.most * scale:,.2f})"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.3f}"


def _giga(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:,.1f}"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f} %"
