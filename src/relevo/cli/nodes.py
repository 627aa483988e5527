"""`relevo nodes`: the machines of a cluster, their workers, and the ways between them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from relevo.cli.admin import AdminKey, Gateway, NotDone, admin_key
from relevo.cli.database import DataDir
from relevo.cli.http import fetch, read_json
from relevo.client.visible_text import one_line
from relevo.core.errors import SettingsError
from relevo.core.urls import normalise_url

_COLUMNS = ("NODE", "ROLE", "STATE", "SINCE", "EPOCH", "WORKERS", "ADDRESS")


def nodes(
    url: Gateway = "http://127.0.0.1:8000",
    api_key: AdminKey = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="As the gateway tells it.")] = False,
) -> None:
    """Show the boxes of a cluster: who is there, since when, with which workers, and how KV gets between them."""
    url = normalise_url(url, "--url")
    found = nodes_of(url, admin_key(url, api_key, data_dir))
    if as_json:
        typer.echo(json.dumps({"nodes": found}, indent=2))
        return
    if not found:
        typer.echo("this server belongs to no cluster; see `relevo serve --cluster`")
        return
    for line in table(found, time.time()):
        typer.echo(line)


def nodes_of(url: str, key: str | None) -> list[dict[str, Any]]:
    """As GET /v1/nodes tells them. Raises NotDone, SettingsError."""
    try:
        status, body = fetch(f"{url}/v1/nodes", headers={"authorization": f"Bearer {key}"} if key else {})
    except (OSError, ValueError) as error:
        raise SettingsError(f"no gateway answers at {url} ({error}); give its address with --url") from error
    try:
        said = read_json(body)
        if status == 200:
            found: list[dict[str, Any]] = said["nodes"]
            return found
        message = one_line(str(said["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        message = f"status {status}"
    raise NotDone(f"{url}: {message}")


def table(found: list[dict[str, Any]], now_s: float) -> Iterator[str]:
    rows = [_COLUMNS, *(_row(node, now_s) for node in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for node in found:
        for link in node.get("links", ()):
            yield _link(node["name"], link)
        for note in node.get("notes", ()):
            yield f"{node['name']}: {one_line(note)}"


def _row(node: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
    workers = ",".join(worker["worker_id"].removeprefix(f"{node['name']}/") for worker in node["workers"])
    since = _since(now_s - node["since_unix_s"])
    cells = (node["name"], node["role"], node["state"], since, str(node["epoch"]), workers or "-", node["address"])
    return tuple(one_line(str(cell)) for cell in cells)


def _link(name: str, link: Mapping[str, Any]) -> str:
    way = f"{name} -> {link['to_node']}"
    if link["fault"]:
        return f"no KV link {way}: {one_line(link['fault'])}"
    figures = [
        f"{link['bytes_per_s'] / 1e6:,.0f} MB/s" if link["bytes_per_s"] else "",
        f"round trip {link['round_trip_s'] * 1e3:.2f} ms" if link["round_trip_s"] else "",
        f"MTU {link['mtu_bytes']}" if link["mtu_bytes"] else "",
        one_line(link["encryption"]),
    ]
    return f"KV {way}: {', '.join(filter(None, figures))}"


def _since(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
