"""`relevo bench quality`: parses argv, has the engines composed, compares, prints tables, writes JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.quality.pictures import quality_page
from relevo.bench.quality.run import QualityReport, compare_forwards, cut_windows, quality_tables
from relevo.cli.bench_terminal import JsonOut, finish, out, run_here, write_json, write_page
from relevo.cli.options import make_settings
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.telemetry.progress import Progress

_FIELDS = {
    "backend": "backend",
    "dtype": "dtype",
    "quantization": "quantization",
    "activation": "activation_dtype",
    "kv": "kv_cache_dtype",
}


def quality(
    model: Annotated[str | None, typer.Argument(help="As for `relevo serve`. Default: its own default.")] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help="backend=native,dtype=bfloat16,quantization=int8,activation=int8,kv=int8; what is left out: default. "
            "Repeat."
        ),
    ] = None,
    reference: Annotated[str, typer.Option(help="Backend of the float32 forward: torch or native.")] = "torch",
    text: Annotated[Path | None, typer.Option(help="UTF-8 text. Default: the packaged one.")] = None,
    context: Annotated[int, typer.Option(help="Tokens of a window; its second half is scored.")] = 512,
    max_windows: Annotated[int | None, typer.Option(min=1, help="Use no more windows of the text.")] = None,
    near_tie: Annotated[float, typer.Option(min=0.0, help="Logits between best and second best.")] = 0.05,
    cores: Annotated[str | None, typer.Option(help="CPU cores to compute on, such as 0,1.")] = None,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """KL divergence, perplexity and greedy agreement against a float32 forward of the same (dequantised) weights."""
    from relevo.build.bench_quality import CORPUS, make_forward, tokens_of

    base = {"model": model, "cores": cores}
    variants = [_fields(entry) for entry in variant or [""]]
    environment = describe_environment()
    exact = {"backend": reference, "dtype": "float32", "kv_cache_dtype": "float32"}
    report = QualityReport(reference=f"{reference} float32", context=context, near_tie=near_tie)

    def compare(progress: Progress) -> None:
        token_ids, begin = tokens_of(_settings(base), text or CORPUS)
        windows = cut_windows(token_ids, context, begin)[:max_windows]
        progress.say(f"{len(token_ids)} tokens, {len(windows)} windows")
        _, expected = make_forward(_settings(base | exact), context, progress)
        engines = [make_forward(_settings(base | fields), context, progress) for fields in variants]
        compare_forwards(windows, expected, engines, report, progress)

    interrupted = run_here(compare)
    out.print(quality_tables(report))
    body = {"report": report.to_json()}
    write_json(json_out, environment, body)
    write_page(report_out, lambda: quality_page(report), environment, body, interrupted)
    finish(interrupted)


def _settings(given: dict[str, Any]) -> Any:
    return make_settings({name: value for name, value in given.items() if value is not None})


def _fields(entry: str) -> dict[str, str]:
    fields = {}
    for part in filter(None, entry.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name not in _FIELDS:
            raise typer.BadParameter(
                f"{part!r} is not one of {'=, '.join(_FIELDS)}= with a value", param_hint="--variant"
            )
        fields[_FIELDS[name]] = value
    return fields
