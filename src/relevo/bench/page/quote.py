"""The few figures of a page that another page quotes, kept between two marks there. Pure.

<!-- figures: begin --> ... <!-- figures: end -->
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relevo.bench.page.markdown import cpu_name
from relevo.bench.page.results import AnyResult, EngineResult, GatewayResult, PeersResult, StartResult
from relevo.core.errors import SettingsError

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
_PROMPT_LEN = 512  # of the prefill that is quoted, where it was measured
_QUOTED_METRICS = ("ms/token", "tokens/s")  # ends of names, of those in which servers are compared


def quoted(text: str, results: Sequence[AnyResult], name: str) -> str:
    """`text` with the figures between its marks. `name`: of what it is, for errors. Raises SettingsError."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SettingsError(f"{name} has no place for figures; write the lines {BEGIN} and {END} where they belong")
    lines = ["| measured | figure | CPU |", "|---|---|---|", *dict.fromkeys(_rows(results))]
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}"


def _rows(results: Sequence[AnyResult]) -> Iterator[str]:
    for result in results:
        for what, figure in _figures(result):
            yield f"| {what} | {figure} | {cpu_name(result.environment)} |"
    yield from _beside_peers([result for result in results if isinstance(result, PeersResult)])


def _beside_peers(results: Sequence[PeersResult]) -> Iterator[str]:
    """Of all files of a kind of CPU, each of ours beside the peer that does best: the worst of its ratios."""
    worst: dict[tuple[str, str, str], tuple[float, str | None]] = {}
    for result in results:
        for row in result.report.comparisons:
            if not row.metric.endswith(_QUOTED_METRICS):
                continue
            for name, ratio in row.ratios.items():
                key = cpu_name(result.environment), row.metric, name
                is_worse = key not in worst or (ratio > worst[key][0]) == row.lower_is_better
                if is_worse:
                    worst[key] = ratio, row.best_peer
    for (cpu, metric, name), (ratio, peer) in worst.items():
        yield f"| {metric}: {name} / {peer} | {ratio:.2f} | {cpu} |"


def _figures(result: AnyResult) -> Iterator[tuple[str, str]]:
    match result:
        case EngineResult():
            yield from _of_engine(result)
        case GatewayResult():
            for way in result.ways:
                if way.cpu_us_per_token is not None and way.name == "gateway":
                    what = f"CPU of the gateway per streamed token, {result.num_streams} streams"
                    yield what, f"{way.cpu_us_per_token:.0f} µs"
        case StartResult():
            for start in result.starts:
                yield f"command to first token, `{start.topology}`", f"{start.first_token_s.median:.2f} s"


def _of_engine(result: EngineResult) -> Iterator[tuple[str, str]]:
    model, inputs = result.report.facts.model, result.report.facts.activation_dtype
    named = f"{model}, {inputs} inputs" if inputs else model
    for row in result.report.prefill:
        if row.prompt_len == _PROMPT_LEN:
            yield f"prefill of {row.prompt_len} tokens, {named}", f"{row.tokens_per_s.median:,.0f} tokens/s"
    for step in result.report.decode[:1]:
        what = f"decode, {step.batch_size} at context {step.context}, {named}"
        yield what, f"{1e3 * step.step_s.median:.2f} ms per step"
