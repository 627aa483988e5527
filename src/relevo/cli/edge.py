"""`relevo edge`: one address in front of several regional gateways."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from relevo.build.configs import HttpConfig
from relevo.build.edge import parse_regions, run_edge
from relevo.build.listening import bound_address, open_listener
from relevo.build.tracing import check_tracing
from relevo.core.urls import server_url
from relevo.telemetry.log import configure, say


def edge(
    region: Annotated[
        list[str] | None, typer.Option(help="NAME=URL of a region's gateway; give one for each region.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)] = 8080,
    allowed_hosts: Annotated[
        list[str] | None, typer.Option(help="Names it may be called by on a loopback address; * for any.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Send each session to the region that holds its KV cache; balance, shed and fail over the rest.

    Keys, errors, usage and streams pass through untouched: clients use it as they use a gateway.
    """
    regions = parse_regions(region or [])
    configure(log_level, "edge")
    traces = check_tracing(os.environ)
    listener = open_listener(host, port)
    if traces is not None:
        say(f"traces go to {traces.shown}")
    say(f"edge before {', '.join(regions)}, ready: {server_url(*bound_address(listener))}/v1")
    run_edge(regions, listener, HttpConfig(allowed_hosts=tuple(allowed_hosts or ())))
