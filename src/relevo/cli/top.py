"""`relevo top [URL]`: a running server live on a terminal; without a terminal its state as text, once.

Exit status: 0 when the person leaves, 2 where no state comes from there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from relevo.cli.database import DataDir
from relevo.cli.own_key import NotOwnServer, own_key
from relevo.client.server import OpenAIServer
from relevo.client.visible_text import one_line
from relevo.core.errors import RelevoError, SettingsError
from relevo.core.urls import normalise_url
from relevo.top.feed import StateFeed
from relevo.top.plain import plain

if TYPE_CHECKING:  # what draws takes a quarter of a second to import, and a pipe does not need it
    from rich.text import Text

_SHOWN_CHARS = 300  # of a server's message


class NotDone(RelevoError):
    """The server did not do what was asked."""


def top(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="RELEVO_API_KEY",
            help="Sent as Bearer token; of several, the first. Default, for a server on this machine: its operator's.",
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two states.")] = 1.0,
    data_dir: DataDir = None,
) -> None:
    """Watch a running server: workers, requests, sessions, decisions; drain a worker, ask why a request was slow.

    Where the output is no terminal, its state is printed once, every row.
    """
    place = normalise_url(url, "URL")
    asyncio.run(_watch(OpenAIServer(place, api_key=_key(place, api_key, data_dir)), interval))


async def _watch(server: OpenAIServer, interval_s: float) -> None:
    async with server:
        feed = StateFeed(server, interval_s)
        state = await feed.first()
        if not _is_terminal():
            _write(plain(state, server.url))
            return
        from relevo.top.app import TopApp

        app = TopApp(state, feed.updates, ServerActions(server), server.url)
        await app.run_async()
        if app.return_code:
            raise typer.Exit(app.return_code)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _key(url: str, given: str | None, data_dir: str | None) -> str | None:
    """Raises SettingsError."""
    key: str | None = given.split(",")[0].strip() if given else ""
    if not key:
        try:
            key = own_key(url, data_dir)
        except NotOwnServer:
            return None  # an open server needs none
    if key and not (key.isascii() and key.isprintable()):
        raise SettingsError("the API key has characters that no header takes; give it without line breaks and accents")
    return key


def _write(lines: Iterable[str]) -> None:
    """The reader of the pipe may have had enough."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer is flushed at exit


class ServerActions:
    """Implements top.app.Actions."""

    def __init__(self, server: OpenAIServer) -> None:
        self._server = server

    async def why(self, request_id: str, width: int) -> Text:
        from rich.text import Text

        from relevo.cli.timeline_screen import Look, timeline_lines
        from relevo.cli.why import explained

        status, told = await self._server.get_json(f"/v1/requests/{quote(request_id, safe='')}")
        if status == 404:
            raise NotDone(f"the server knows no request {one_line(request_id)} any more, or it is another tenant's")
        if status != 200 or not isinstance(told, dict):
            raise NotDone(_message(status, told))
        look = Look(width=width, has_colour=True)
        return Text.from_ansi("\n".join(timeline_lines(told, explained(told), look)))

    async def drain(self, worker_id: str) -> None:
        request = self._server.request("POST", f"/admin/drain/{quote(worker_id, safe='')}")
        status, told = await self._server.answer(request)
        if status != 202:
            hint = "; start relevo top with an admin key (--api-key)" if status in (401, 403) else ""
            raise NotDone(_message(status, told) + hint)


def _message(status: int, told: object) -> str:
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return one_line(str(message)).rstrip(".")[:_SHOWN_CHARS] if message else f"the server answered HTTP {status}"
