"""`relevo why`: why a request took as long as it did, told by the server that served it.

Reads `GET /v1/requests/{id}` and `GET /v1/requests?slowest=N`; prints with `cli.timeline_screen`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from relevo.cli.database import DataDir
from relevo.cli.http import fetch, read_json
from relevo.cli.own_key import NotOwnServer, own_key
from relevo.cli.timeline_screen import SUMMARY_HEADING, Look, summary_lines, timeline_lines, wrapped
from relevo.client.visible_text import one_line
from relevo.core.errors import RelevoError, SettingsError
from relevo.core.urls import normalise_url
from relevo.gateway.metering.usage_query import parse_moment
from relevo.gateway.requests.report import explanation_of
from relevo.policy.slowness.difference import diff as difference_of
from relevo.policy.slowness.words import Explanation

_MAX_SLOWEST = 100  # as gateways have it
_MAX_SHOWN = 200  # characters of a server's message


class By(StrEnum):
    TTFT = "ttft"
    E2E = "e2e"
    GAP = "gap"


class WhyFailed(RelevoError):
    """The server did not tell."""


def why(
    request: Annotated[
        str | None, typer.Argument(help="Its id: `id` of the answer, or the header x-request-id.", show_default=False)
    ] = None,
    slowest: Annotated[
        int | None, typer.Option(min=1, max=_MAX_SLOWEST, help="The slowest requests that are remembered.")
    ] = None,
    by: Annotated[By, typer.Option(help="What slow means: first token, all of it, or the longest gap.")] = By.E2E,
    since: Annotated[
        str | None, typer.Option(help="Of --slowest: that ended since then: 10m, 24h, 2026-11-30.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Of --slowest: of one model.")] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Two requests: what makes the difference.")
    ] = None,
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="RELEVO_API_KEY",
            help="Sent as Bearer token; of several, the first. Default, for a server on this machine: its operator's.",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="What the server says, as JSON.")] = False,
) -> None:
    """Tell why a request took as long as it did: its phases, the cause, and what would help."""
    if sum(asked is not None for asked in (request, slowest, diff)) != 1:
        raise SettingsError("name one request (`relevo why ID`), or give --slowest N, or --diff A B")
    if slowest is None and (since is not None or model is not None):
        raise SettingsError("--since and --model choose among the --slowest; give --slowest N too")
    if since is not None:
        parse_moment(since, round(time.time() * 1000), "--since")
    server = _Server(normalise_url(url, "--url"), api_key, data_dir)
    if diff is not None:
        _print_difference(server.request(diff[0]), server.request(diff[1]), as_json=as_json)
    elif request is not None:
        _print_one(server.request(request), as_json=as_json)
    else:
        asked = {"slowest": str(slowest), "by": by.value, "since": since, "model": model}
        _print_slowest(server.slowest({name: value for name, value in asked.items() if value}), as_json=as_json)


# ---- asking ----------------------------------------------------------------------------------------------------------


class _Server:
    def __init__(self, url: str, api_key: str | None, data_dir: str | None) -> None:
        self.url = url
        key = api_key.split(",")[0].strip() if api_key else None
        if key is None:
            try:
                key = own_key(url, data_dir)
            except NotOwnServer:
                key = None  # an open server needs none
        if key is not None and not (key.isascii() and key.isprintable()):
            raise SettingsError(
                "the API key has a line break or another character that no header takes; check --api-key"
            )
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def request(self, request_id: str) -> dict[str, Any]:
        if not request_id or request_id in (".", ".."):
            raise SettingsError("an empty name is no request; name it by its id")
        status, body = self._get(f"/v1/requests/{quote(request_id, safe='')}")
        if status == 404 and self._is_relevo():
            raise WhyFailed(
                f"{self.url} knows no request {one_line(request_id)[:_MAX_SHOWN]!r}: it was another server's, another "
                "tenant's, or is forgotten by now; `relevo why --slowest 10` lists some that are remembered"
            )
        return self._answer(status, body)

    def slowest(self, asked: Mapping[str, str]) -> dict[str, Any]:
        answer = self._answer(*self._get(f"/v1/requests?{urlencode(asked)}"))
        if not isinstance(answer.get("data"), list):
            raise self._is_another()
        return answer

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            return fetch(f"{self.url}{path}", headers=self._headers)
        except (OSError, ValueError) as error:
            raise SettingsError(f"no gateway answers at {self.url} ({error}); give its address with --url") from error

    def _answer(self, status: int, body: bytes) -> dict[str, Any]:
        try:
            answer = read_json(body)
        except ValueError:
            raise self._is_another() from None
        if status == 200 and isinstance(answer, dict):
            return answer
        if status == 404 or not isinstance(answer, dict):
            raise self._is_another()
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        told = one_line(str(message))[:_MAX_SHOWN] if message else f"status {status}"
        if status in (401, 403):
            told += " Give a key of the request's tenant, or an admin key, with --api-key or RELEVO_API_KEY."
        raise WhyFailed(f"{self.url} did not tell: {told}")

    def _is_relevo(self) -> bool:
        """A gateway of ours lists its workers, also when it is not ready."""
        try:
            return isinstance(read_json(self._get("/ready")[1])["workers"], list)
        except (ValueError, KeyError, TypeError):
            return False

    def _is_another(self) -> RelevoError:
        return SettingsError(f"{self.url} is no Relevo gateway that tells of requests; give its address with --url")


# ---- printing --------------------------------------------------------------------------------------------------------


def _print_one(request: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        _print_json(request)
        return
    for line in timeline_lines(request, explained(request), _look()):
        typer.echo(line)


def _print_slowest(answer: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        _print_json(answer)
        return
    if not answer["data"]:
        typer.echo("No request that fits is remembered.")
        return
    look = _look()
    typer.echo(look.painted(SUMMARY_HEADING, "2"))
    for number, request in enumerate(answer["data"], start=1):
        for line in summary_lines(number, request, explained(request), look):
            typer.echo(line)


def _print_difference(first: Mapping[str, Any], second: Mapping[str, Any], *, as_json: bool) -> None:
    sentence = difference_of(explained(first), explained(second))
    if as_json:
        _print_json({"sentence": sentence, "a": first, "b": second})
        return
    look = _look()
    for name, request in (("A", first), ("B", second)):
        typer.echo(look.painted(f"{name}:", "1"))
        for line in timeline_lines(request, explained(request), look):
            typer.echo(line)
        typer.echo()
    for line in wrapped(sentence, look):
        typer.echo(line)


def explained(request: Any) -> Explanation:
    try:
        return explanation_of(request)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WhyFailed(
            f"the server told of a request in a way that this version does not know ({error!r}); use its own `relevo`"
        ) from error


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def _look() -> Look:
    is_terminal = sys.stdout.isatty()
    return Look(
        width=shutil.get_terminal_size().columns if is_terminal else 80,
        has_colour=is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        has_blocks=_can_write("█─"),
    )


def _can_write(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
