"""Composition root of the edge process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from relevo.build.configs import HttpConfig
from relevo.build.event_loop import run_until_complete
from relevo.build.http_server import build_limiter, build_site
from relevo.build.tracing import build_tracing, check_tracing
from relevo.core.errors import SettingsError
from relevo.core.urls import check_server_url, with_plain_zone
from relevo.gateway.edge.app import edge_app
from relevo.gateway.edge.metrics import EdgeMetrics
from relevo.gateway.edge.regions import Region, Regions
from relevo.gateway.http.server import HttpServer
from relevo.gateway.routes import route_table
from relevo.policy.routing.region_choice import RegionChoice

MAX_BODY_BYTES = 32 * 2**20  # the regions have limits of their own, with their own words


def parse_regions(given: list[str]) -> dict[str, str]:
    """`NAME=URL` each. Raises SettingsError."""
    regions: dict[str, str] = {}
    for text in given:
        name, _, url = text.partition("=")
        if not name or "://" not in url:
            raise SettingsError(f"--region {text}: write it as NAME=URL, for example eu=http://10.0.0.5:8000")
        check_server_url(url, f"--region {name}:")
        parts = urlsplit(url)
        if parts.path.strip("/"):
            raise SettingsError(f"--region {text}: leave the path {parts.path} away, the edge adds the request's own")
        if name in regions:
            raise SettingsError(f"--region {name} is there twice; give each region a name of its own")
        regions[name] = with_plain_zone(url.rstrip("/"))
    if not regions:
        raise SettingsError("an edge needs at least one --region NAME=URL")
    return regions


def run_edge(regions: Mapping[str, str], listener: socket.socket, http: HttpConfig) -> None:
    """Serve on `listener` until SIGTERM or SIGINT; requests that run may finish."""
    run_until_complete(_run(regions, listener, http))


async def _run(regions: Mapping[str, str], listener: socket.socket, http: HttpConfig) -> None:
    choice = RegionChoice()
    known = Regions([Region(name, url) for name, url in regions.items()], choice.lost)
    metrics = EdgeMetrics()
    routes = route_table()
    site = build_site(http, listener.fileno())
    asked = check_tracing(os.environ)
    tracing = build_tracing(asked, "relevo-edge", socket.gethostname()) if asked is not None else None
    traces = tracing.traces if tracing is not None else None
    async with edge_app(known, choice, metrics, MAX_BODY_BYTES, routes, site, traces) as app:
        limiter = build_limiter(http, app, routes.error_format, metrics)
        at_end = tracing.close if tracing is not None else None
        server = HttpServer(limiter, shutdown_timeout_s=30.0, date_header=False, at_end=at_end)
        await server.serve(sockets=[listener])
