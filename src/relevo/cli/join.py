"""`relevo join HEAD`: this box's workers serve the gateways of a cluster."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from relevo.build.cluster_checks import check_set
from relevo.build.join import JoinRefused, join_ask, plan_joining
from relevo.build.outside import answered_meanwhile, open_probe_port
from relevo.build.serve import serving
from relevo.build.start_phases import StartPhases
from relevo.cli.options import make_settings
from relevo.cli.quiet import Quiet
from relevo.cli.run_server import StartView, supervise
from relevo.telemetry.log import configure, say
from relevo.telemetry.progress import be_quiet


def join(
    heads: Annotated[str, typer.Argument(metavar="HEAD", help="HOST:PORT[,HOST:PORT...] of the cluster's heads.")],
    token_file: Annotated[
        str | None, typer.Option(help="File with a join token, for the first join of this box.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of this box in the cluster. Default: its host name.")] = None,
    role: Annotated[
        str, typer.Option(help="Workers of this box: auto, unified, prefill, decode, or NpMd, Np or Md such as 1p1d.")
    ] = "auto",
    model: Annotated[
        str | None, typer.Option(help="Where the model is on this box, if that is not where the head has it.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT for heads and other nodes. Default: the head's port, every address.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="HOST[:PORT] where others reach this box. Default: the way it reached the head.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="vllm or sglang, if the head computes with it; it does so anyway. Its flags go after --."),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(help="A running engine of this box, as for `relevo serve`; its URL is one that heads reach."),
    ] = None,
    kv_port: Annotated[
        str | None, typer.Option(help="Port for KV, or a range with one per worker, such as 7100-7107. Default: any.")
    ] = None,
    kv_encryption: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    pipeline_parallel_size: Annotated[
        int | None, typer.Option(min=1, max=64, help="As for `relevo serve`; it need not be the head's.")
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(min=1, help="As for `relevo serve`; it need not be the head's.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, max=256, help="Tokens per KV block of this box's workers. Default: the head's.")
    ] = None,
    enable_expert_parallel: Annotated[
        bool,
        typer.Option("--enable-expert-parallel", help="As for `relevo serve`; also where the head asks for it."),
    ] = False,
    expert_load: Annotated[
        str | None, typer.Option(help="As for `relevo serve`; experts need not lie as on the head's box.")
    ] = None,
    num_redundant_experts: Annotated[
        int | None, typer.Option(min=0, help="As for `relevo serve`; it need not be the head's.")
    ] = None,
    cluster_dir: Annotated[str | None, typer.Option(help="Folder of this box's certificate and epochs.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder in which the one above is `cluster`.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of `relevo serve` for this box, such as cores=0,1."
        ),
    ] = None,
    probe_port: Annotated[int | None, typer.Option(help="As for `relevo serve`.")] = None,
    host: Annotated[str | None, typer.Option(help="Of the probe port; as for `relevo serve`.")] = None,
    log_level: Annotated[str | None, typer.Option(help="As for `relevo serve`.")] = None,
    engine_args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="Of an engine that Relevo starts.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Join a cluster: start workers here, and keep them ready for its gateways until Ctrl-C or `relevo drain NODE`.

    Model and types are the head's. A head that is not there yet is waited for.
    """
    named = _named(options or [])
    check_set(named)
    given: dict[str, object] = {"topology": role, "join": ["head"], "cluster_dir": cluster_dir, "data_dir": data_dir}
    given |= {
        "log_level": log_level,
        "probe_port": probe_port,
        "host": host,
        "kv_port": kv_port,
        "kv_encryption": kv_encryption,
        "engine": engine,
        "worker": tuple(worker) if worker else None,
        "pipeline_parallel_size": pipeline_parallel_size,
        "tensor_parallel_size": tensor_parallel_size,
        "block_size": block_size,
        "enable_expert_parallel": enable_expert_parallel or None,
        "expert_load": expert_load,
        "num_redundant_experts": num_redundant_experts,
        "engine_args": tuple(engine_args) if engine_args else None,
        "quiet": quiet or None,
        **named,
    }
    settings = make_settings({key: value for key, value in given.items() if value is not None})
    configure(settings.log_level, "relevo")
    be_quiet(settings.quiet)
    ask = join_ask(heads, token_file or settings.token_file, name, listen, advertise or settings.advertise, model)
    phases = StartPhases()
    probed = open_probe_port(settings.host, settings.probe_port)
    with answered_meanwhile(f"a head at {heads}", probed):
        settings, plan, part = plan_joining(ask, settings, say)
    view = StartView(plan, "", phases, 0, has_node=True)
    with serving(settings, plan, None, view.on_status, part) as supervisor:
        view.show_plan()
        say(f"node {part.name}: control port {part.listen}, others reach it at {part.control}")
        with asyncio.Runner() as loop:
            supervise(loop, supervisor, view, probed)
    if supervisor.stop_reason:
        raise JoinRefused(supervisor.stop_reason)


def _named(options: list[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in options]
    return {name.strip().replace("-", "_"): value for name, _, value in pairs}
