"""`relevo bench peers`: parses argv, compares, prints the table, writes JSON."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from relevo.bench.environment import describe_environment
from relevo.bench.peers.pictures import peers_page
from relevo.bench.peers.report import OURS, VARIANT, PeersReport, peers_table
from relevo.bench.peers.run import PeersOptions, Target, compare_peers
from relevo.bench.stamp import stamped
from relevo.cli.bench_terminal import JsonOut, Seed, finish, integers, note, out, run, write_json, write_page
from relevo.cli.quiet import Quiet
from relevo.cli.report_file import ReportOut
from relevo.wire.child_process import python_command

Lengths = Annotated[str, typer.Option(help="Tokens, comma separated.")]


def peers(
    model: Annotated[str | None, typer.Argument(help="What `relevo serve` is given. Default: its own default.")] = None,
    relevo_url: Annotated[str | None, typer.Option(help="A running Relevo server; replaces starting one.")] = None,
    relevo_command: Annotated[
        str | None, typer.Option(help="Starts Relevo, {port} in place of the port. Default: relevo serve MODEL.")
    ] = None,
    relevo_args: Annotated[str, typer.Option(help="Flags for the default command, such as '--cores 0,1'.")] = "",
    relevo_variant: Annotated[
        list[str] | None,
        typer.Option(help="NAME='flags' of another Relevo in the same turns, beside the first; repeat."),
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help="NAME=URL of a running server; repeat.")] = None,
    peer_command: Annotated[
        list[str] | None, typer.Option(help="NAME='command with {port}', run for its turns only; repeat.")
    ] = None,
    peer_body: Annotated[
        list[str] | None, typer.Option(help="NAME='{\"field\": value}' for every request to it; repeat.")
    ] = None,
    peer_version: Annotated[
        list[str] | None, typer.Option(help="NAME='version', as results shall tell it; repeat.")
    ] = None,
    served_model: Annotated[str | None, typer.Option(help="Model to ask for. Default: the first of each.")] = None,
    contexts: Lengths = "128,1500",
    decode_len: Annotated[int, typer.Option(min=2, help="Tokens generated at each of --contexts.")] = 64,
    prefill_lens: Lengths = "512,1500",
    streams: Annotated[str, typer.Option(help="Numbers of concurrent streams.")] = "8,32",
    stream_prompt_len: Annotated[int, typer.Option(min=1)] = 256,
    stream_output_len: Annotated[int, typer.Option(min=2)] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every server: A B A B.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of everything in each turn.")] = 2,
    start_timeout_s: Annotated[float, typer.Option(min=0.1, help="For a command to get ready.")] = 300.0,
    log_dir: Annotated[Path | None, typer.Option(help="Server logs. Default: a temporary folder.")] = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    report_out: ReportOut = None,
    quiet: Quiet = False,
) -> None:
    """The same prompts to Relevo and to other servers, in turns, on the same cores; installs nothing.

    llama.cpp, vLLM, OpenVINO and transformers by URL or command; each must serve the same model.
    """
    bodies = _bodies(peer_body or [])
    versions = dict(map(_named, peer_version or ()))
    targets = [
        *(
            Target(name=VARIANT + name, command=_serve_command(model, shlex.split(flags)))
            for name, flags in map(_named, relevo_variant or ())
        ),
        *(Target(name=name, url=url, extra=bodies.pop(name, {})) for name, url in map(_named, peer or ())),
        *(
            Target(name=name, command=text, extra=bodies.pop(name, {}))
            for name, text in map(_named, peer_command or ())
        ),
    ]
    if bodies:
        raise typer.BadParameter(f"no peer is called {next(iter(bodies))!r}", param_hint="--peer-body")
    unknown = sorted(versions.keys() - {target.name for target in targets})
    if unknown:
        raise typer.BadParameter(f"no peer is called {unknown[0]!r}", param_hint="--peer-version")
    options = PeersOptions(
        ours=_ours(model, relevo_url, relevo_command, shlex.split(relevo_args)),
        peers=[replace(target, version=versions.get(target.name, "")) for target in targets],
        model=served_model,
        contexts=integers(contexts, "--contexts"),
        decode_len=decode_len,
        prefill_lens=integers(prefill_lens, "--prefill-lens"),
        streams=integers(streams, "--streams"),
        stream_prompt_len=stream_prompt_len,
        stream_output_len=stream_output_len,
        rounds=rounds,
        repeats=repeats,
        start_timeout_s=start_timeout_s,
        log_dir=log_dir or Path(tempfile.mkdtemp(prefix="relevo-bench-")),
        seed=seed,
    )
    environment = describe_environment()
    report = PeersReport()
    interrupted = run(lambda progress: compare_peers(options, report, progress))
    out.print(peers_table(report))
    for sentence in report.notes():
        note(sentence)
    body = stamped("peers", {"report": report.to_json()}, interrupted=interrupted)
    write_json(json_out, environment, body)
    write_page(report_out, lambda: peers_page(report), environment, body, interrupted)
    finish(interrupted, failed=report.has_faults)


def _ours(model: str | None, url: str | None, command: str | None, flags: Sequence[str]) -> Target:
    if url is not None:
        return Target(name=OURS, url=url)
    return Target(name=OURS, command=command or _serve_command(model, flags))


def _serve_command(model: str | None, flags: Sequence[str]) -> str:
    named = [] if model is None else [model]
    return shlex.join(python_command("relevo", "serve", *named, "--port", "{port}", "--log-level", "warning", *flags))


def _named(entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals or not name or not value or not name.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise typer.BadParameter(f"{entry!r} is not NAME=VALUE; write llama.cpp=http://127.0.0.1:8080 for example")
    return name, value


def _bodies(entries: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    bodies: dict[str, Mapping[str, Any]] = {}
    for name, text in map(_named, entries):
        try:
            fields = json.loads(text)
        except json.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            raise typer.BadParameter(f"{text!r} is not a JSON object", param_hint="--peer-body")
        bodies[name] = fields
    return bodies
