"""`relevo bench openvino-server`: parses argv, loads the model, serves until it is told to end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from relevo.bench.openvino.engine import EngineOptions, OpenVinoEngine
from relevo.bench.openvino.server import CompletionServer
from relevo.build.event_loop import run_until_complete
from relevo.build.listening import bound_address, open_listener
from relevo.cli.bench_terminal import friendly, note
from relevo.core.urls import server_url


def openvino_server(
    model: Annotated[Path, typer.Argument(help="Folder that `optimum-cli export openvino` wrote, or a GGUF file.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)] = 9000,
    device: Annotated[str, typer.Option(help="OpenVINO's name of what computes.")] = "CPU",
    threads: Annotated[int | None, typer.Option(min=1, help="Default: as OpenVINO decides.")] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a step.")] = 512,
    max_model_len: Annotated[
        int, typer.Option(min=1, help="Most tokens of a prompt and its answer together.")
    ] = 131_072,
    kv_cache_gb: Annotated[int, typer.Option(min=1, help="Memory for KV.")] = 1,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", help="NAME=VALUE of OpenVINO, such as INFERENCE_PRECISION_HINT=f32; repeat."),
    ] = None,
) -> None:
    """OpenVINO GenAI with continuous batching behind /v1/completions: a peer for `relevo bench peers`.

    Needs `pip install openvino-genai`. Every step's tokens are sent at once, and no prefix is cached.
    """
    options = EngineOptions(
        model=model,
        device=device,
        num_threads=threads,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_gb=kv_cache_gb,
        properties=_properties(properties or ()),
    )
    listener = friendly(lambda: open_listener(host, port))
    with listener, contextlib.suppress(KeyboardInterrupt):
        engine = friendly(lambda: OpenVinoEngine(options))
        note(f"OpenVINO GenAI {engine.version}, ready: {server_url(*bound_address(listener))}/v1")
        run_until_complete(CompletionServer(engine, model.resolve().stem, max_model_len).serve(listener))


def _properties(entries: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter(f"{entry!r} is not NAME=VALUE", param_hint="--property")
        named[name] = value
    return named
