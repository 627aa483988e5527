"""`relevo bench engine`: parses argv, has the engine composed, measures, prints tables, writes JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from relevo.bench.engine.pictures import engine_page
from relevo.bench.engine.report import engine_tables
from relevo.bench.engine.run import EngineOptions, EngineReport, measure_engine
from relevo.bench.environment import describe_environment
from relevo.bench.stamp import stamped
from relevo.cli.bench_terminal import JsonOut, Seed, finish, integers, note, out, run_here, write_json, write_page
from relevo.cli.options import make_settings
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.telemetry.progress import Progress


def engine(
    model: Annotated[str | None, typer.Argument(help="As for `relevo serve`. Default: its own default.")] = None,
    cores: Annotated[str | None, typer.Option(help="CPU cores to compute on, such as 0,1.")] = None,
    backend: Annotated[str | None, typer.Option(help="native or torch.")] = None,
    dtype: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    quantization: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    activation_dtype: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    prompt_lens: Annotated[str, typer.Option(help="Prompts to prefill, tokens.")] = "128,512,1500,2048",
    batch_sizes: Annotated[str, typer.Option(help="Rows that decode together.")] = "1,8,32",
    contexts: Annotated[str, typer.Option(help="Tokens of context of every row.")] = "128,1500",
    repeats: Annotated[int, typer.Option(min=1, help="Prompts per length.")] = 5,
    num_steps: Annotated[int, typer.Option(min=1, help="Decode steps per batch and context.")] = 32,
    held: Annotated[bool, typer.Option("--held", help="Hold every row of decodes to a grammar.")] = False,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """A worker's engine in this process: rates, where a step goes, and which share of this machine's limits that is."""
    from relevo.build.bench_engine import engine_under_test

    options = EngineOptions(
        prompt_lens=integers(prompt_lens, "--prompt-lens"),
        batch_sizes=integers(batch_sizes, "--batch-sizes"),
        contexts=integers(contexts, "--contexts"),
        repeats=repeats,
        num_steps=num_steps,
        seed=seed,
        is_held=held,
    )
    given = {
        "model": model,
        "cores": cores,
        "backend": backend,
        "dtype": dtype,
        "quantization": quantization,
        "activation_dtype": activation_dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "max_num_seqs": max(64, *options.batch_sizes),
    }
    environment = describe_environment()
    report = EngineReport()

    def measure(progress: Progress) -> None:
        settings = make_settings({name: value for name, value in given.items() if value is not None})
        progress.begin("loading", unit="bytes")
        with engine_under_test(settings, options.num_kv_tokens, progress) as under_test:
            measure_engine(under_test, options, report, progress)

    interrupted = run_here(measure)
    out.print(engine_tables(report))
    for sentence in report.notes:
        note(sentence)
    body = stamped("engine", {"report": report.to_json()}, interrupted=interrupted)
    write_json(json_out, environment, body)
    write_page(report_out, lambda: engine_page(report), environment, body, interrupted)
    finish(interrupted)
