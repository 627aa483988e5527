"""Results as one page of Markdown: a section per kind of CPU, in it a table per file. Pure, and the same every time.

Nothing is worked out here but what a file says: medians, shares and ratios are those of the commands that measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from relevo.bench.html.secrets import shell_line
from relevo.bench.page.results import (
    AnyResult,
    EngineResult,
    Environment,
    GatewayResult,
    PeersResult,
    Spread,
    StartResult,
)
from relevo.bench.peers.report import is_ours

_ORDER = (EngineResult, PeersResult, GatewayResult, StartResult)
_HEAD = """# Performance

Made by `relevo bench page {folder}` from the JSON files there: change those, not this page. Every figure was measured
on the CPU that its section names, by the command above its table. Shares are of what the same run found that CPU able
to do: products of that operand in registers, and reading a working set of that size. What these words mean, and
how to measure, is in the [guide to benchmarks](guides/benchmarks.md); the [lab log](lab-log.md) has what came before.
"""


def performance_page(results: Sequence[AnyResult], folder: str) -> str:
    """`folder`: as the page names it."""
    parts = [_HEAD.format(folder=folder)]
    for cpu, group in groupby(sorted(results, key=_place), key=lambda result: cpu_name(result.environment)):
        parts.append(f"## {cpu}\n")
        parts += map(_section, group)
    return "\n".join(parts)


def cpu_name(environment: Environment) -> str:
    """What tells one kind of CPU from another for the kernels: its name, its cores, its instructions."""
    cores = f"{environment.num_usable_cpus} core{'s' if environment.num_usable_cpus != 1 else ''}"
    features = ", ".join(environment.cpu_features) or "no vector instructions that count here"
    return f"{environment.cpu_model}, {cores}: {features}"


def _place(result: AnyResult) -> tuple[str, int, str]:
    return cpu_name(result.environment), _ORDER.index(type(result)), result.name


def _section(result: AnyResult) -> str:
    match result:
        case EngineResult():
            title, lines = _engine(result)
        case PeersResult():
            title, lines = _peers(result)
        case GatewayResult():
            title, lines = _gateway(result)
        case StartResult():
            title, lines = _start(result)
    return "\n".join((f"### {title}\n", *_origin(result), "", *lines, ""))


def _origin(result: AnyResult) -> Iterable[str]:
    environment = result.environment
    versions = ", ".join(f"{name} {version}" for name, version in sorted(environment.versions.items()))
    yield f"On {environment.started_at[:10]}, {versions}; file `{result.name}`:"
    yield ""
    yield f"    {shell_line(environment.command)}"


def _engine(result: EngineResult) -> tuple[str, list[str]]:
    facts, report = result.report.facts, result.report
    weights = f"{facts.dtype}, {facts.quantization}" if facts.quantization else facts.dtype
    inputs = f", {facts.activation_dtype} inputs" if facts.activation_dtype else ""
    title = f"Engine: {facts.model}, weights {weights}{inputs}, KV cache {facts.kv_dtype}"
    backend = " ".join(filter(None, (facts.backend, facts.path)))
    lines = [f"Backend {backend}, on cores {', '.join(map(str, facts.cores))}.", ""]
    lines += _table(
        ("prefill of", "tokens/s (least to most)", "GOP/s", "limit", "share of it"),
        (
            (
                f"{row.prompt_len} tokens",
                _spread(row.tokens_per_s, 1.0),
                _giga(row.operations_per_s),
                _giga(row.limit_operations_per_s),
                _percent(row.limit_fraction),
            )
            for row in report.prefill
        ),
    )
    lines += ["", *_decode_table(result)]
    return title, lines + _notes(report.notes)


def _decode_table(result: EngineResult) -> list[str]:
    return _table(
        ("streams, context", "ms per step (least to most)", "tokens/s", "bound, ms", "share of it", "GOP/s"),
        (
            (
                f"{row.batch_size} at {row.context}",
                _spread(row.step_s, 1e3),
                f"{row.tokens_per_s:,.0f}",
                "-" if row.bound_s is None else f"{1e3 * row.bound_s:.2f}",
                _percent(row.bound_fraction),
                _giga(row.operations_per_s),
            )
            for row in result.report.decode
        ),
    )


def _peers(result: PeersResult) -> tuple[str, list[str]]:
    servers = result.report.servers
    names = [server.name for server in servers]
    ours = [name for name in names if any(name in row.ratios for row in result.report.comparisons)]
    lines = _table(
        ("", *names, "best peer", *(f"{name} / it" for name in ours)),
        (
            (
                row.metric,
                *(_number(row.medians[name]) if name in row.medians else "-" for name in names),
                row.best_peer or "-",
                *(f"{row.ratios[name]:.2f}" if name in row.ratios else "-" for name in ours),
            )
            for row in result.report.comparisons
        ),
    )
    versions = "; ".join(f"{server.name} {server.version or '(version not said)'}" for server in servers)
    lines += ["", f"Versions: {versions}."]
    lines += [line for server in servers for fault in server.faults for line in ("", f"{server.name}: {fault}.")]
    return f"Beside {', '.join(name for name in names if not is_ours(name)) or 'no peer'}, over HTTP", lines


def _gateway(result: GatewayResult) -> tuple[str, list[str]]:
    title = f"HTTP: {result.num_streams} streams, an engine that computes nothing, steps of {1e3 * result.step_s:g} ms"
    lines = _table(
        ("way", "CPU µs per token", "adds to TTFT p50 / p99, ms", "adds to ITL p50 / p99, ms", "tokens", "failed"),
        (
            (
                way.name,
                "-" if way.cpu_us_per_token is None else f"{way.cpu_us_per_token:.1f}",
                _pair(way.adds_ms.get("ttft_p50"), way.adds_ms.get("ttft_p99")),
                _pair(way.adds_ms.get("itl_p50"), way.adds_ms.get("itl_p99")),
                f"{way.num_tokens:,}",
                str(way.num_failed),
            )
            for way in result.ways
        ),
    )
    return title, lines


def _start(result: StartResult) -> tuple[str, list[str]]:
    kinds = list(dict.fromkeys(kind for start in result.starts for kind in start.cpu_s))
    lines = _table(
        ("topology", "command to first token, s (least to most)", *(f"CPU of {kind}, s" for kind in kinds)),
        (
            (
                start.topology,
                _spread(start.first_token_s, 1.0),
                *(f"{start.cpu_s[kind]:.2f}" if kind in start.cpu_s else "-" for kind in kinds),
            )
            for start in result.starts
        ),
    )
    return f"Start: {result.model}, median of {result.rounds}", lines + _notes(result.notes)


def _notes(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in ("", f"{note[:1].upper()}{note[1:]}.")]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    ruler = "|".join(("---", *("---:" for _ in headings[1:])))
    return [_row(headings), f"|{ruler}|", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _spread(spread: Spread, unit: float) -> str:
    median, least, most = (_number(unit * value) for value in (spread.median, spread.least, spread.most))
    return f"{median} ({least} to {most})"


def _pair(first: float | None, second: float | None) -> str:
    return "-" if first is None or second is None else f"{first:.1f} / {second:.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _giga(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s / 1e9:,.1f}"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"
