"""`relevo chat [MODEL|URL]`: talk to a running server. Parses argv, finds the model, hands over to `relevo.chat`.

Exit status: 0 when the person leaves, 1 if a piped question was not answered, 2 for a mistake of the operator, 130
after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Iterable
from typing import Annotated, NoReturn

import typer

from relevo.chat.answer import AnswerFacts, AnswerFailed, Piece, answer
from relevo.chat.conversation import Conversation
from relevo.chat.screen import Style
from relevo.chat.talk import Talk
from relevo.cli.chat_input import LineReader, piped_text
from relevo.client.server import OpenAIServer, Unreachable
from relevo.client.visible_text import one_line, visible
from relevo.core.errors import RelevoError, SettingsError

DEFAULT_URL = "http://127.0.0.1:8000"
EXIT_UNANSWERED, EXIT_INTERRUPTED = 1, 130
_READY_WAIT_S = 120.0  # how long a server that is starting is waited for; arbitrary
_READY_POLL_S = 0.5


def chat(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODEL|URL]", help="A served model, or where the server is.")
    ] = None,
    url: Annotated[str | None, typer.Option(help=f"The server. [default: {DEFAULT_URL}]")] = None,
    model: Annotated[str | None, typer.Option(help="Served model. Default: the first of /v1/models.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="RELEVO_API_KEY", help="Sent as Bearer token; of several, the first.")
    ] = None,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, for example temperature=0.7; repeat.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest silence of the server.")] = 600.0,
    history: Annotated[bool, typer.Option(help="Keep what is typed for the arrow keys of the next time.")] = True,
) -> None:
    """Talk to a running server: streamed, with TTFT, cached tokens and workers of each answer.

    With a pipe, the text that comes through it is asked and the plain answer is written.
    """
    place, wanted = _target(target, url, model)
    conversation = Conversation(system=system)
    for entry in settings or ():
        name, _, value = entry.partition("=")
        conversation.set(name.strip(), value.strip())
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows another
    server = OpenAIServer(place, api_key=_key(api_key), reuse_connections=False)  # minutes lie between two questions
    with asyncio.Runner() as runner:
        try:
            served = runner.run(_entered(server, wanted))
            _converse(runner, server, served, conversation, timeout_s=timeout_s, has_history=history)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        finally:
            runner.run(server.__aexit__(None, None, None))


def _converse(
    runner: asyncio.Runner,
    server: OpenAIServer,
    model: str,
    conversation: Conversation,
    *,
    timeout_s: float,
    has_history: bool,
) -> None:
    def answered(facts: AnswerFacts) -> AsyncGenerator[Piece, None]:
        body = conversation.body(model)
        return answer(server, body, facts, session_id=conversation.session_id, silence_s=timeout_s)

    if not sys.stdin.isatty():
        conversation.ask(piped_text(sys.stdin.buffer))
        runner.run(_answer_pipe(answered(AnswerFacts())))
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started it with Ctrl-C ignored
    talk = Talk(
        conversation=conversation,
        answer=answered,
        read_line=LineReader(has_history).read,
        write=_write,
        style=Style(has_colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR")),
        width=lambda: shutil.get_terminal_size().columns,
    )
    _write(f"{one_line(model)} at {server.url}: /help lists commands, Ctrl-D leaves\n")
    talk.run(runner)


async def _answer_pipe(pieces: AsyncGenerator[Piece, None]) -> None:
    """The answer and nothing else; a terminal gets no control characters, a file or pipe what was said."""
    end = ""
    try:
        async for piece in pieces:
            if not piece.is_reasoning:
                _write(visible(piece.text) if sys.stdout.isatty() else piece.text)
                end = "" if piece.text.endswith("\n") else "\n"
    except AnswerFailed as error:
        _write(end)
        sys.stderr.write(f"relevo chat: {visible(error.message)}\n")
        raise typer.Exit(EXIT_UNANSWERED) from None
    _write(end)


async def _entered(server: OpenAIServer, wanted: str | None) -> str:
    """The model to ask for, once the server takes requests. Raises RelevoError."""
    await server.__aenter__()
    try:
        model = await server.pick_model(wanted)
        await _wait_until_ready(server)
    except Unreachable:
        _no_server(server.url)
    except RelevoError as error:
        raise SettingsError(visible(error.message)) from error
    return model


def _no_server(url: str) -> NoReturn:
    elsewhere = "; a server elsewhere is named with --url" if url == DEFAULT_URL else ""
    raise SettingsError(f"no server answers at {url}: start one in another terminal with `relevo serve`{elsewhere}")


async def _wait_until_ready(server: OpenAIServer) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _READY_WAIT_S
    is_told = False
    while not await server.is_ready():
        if loop.time() > deadline_s:
            raise SettingsError(f"{server.url} is not ready after {_READY_WAIT_S:.0f} s; see its log, or /ready there")
        if not is_told:
            sys.stderr.write(f"{server.url} is starting, or has no worker; waiting until it is ready\n")
            is_told = True
        await asyncio.sleep(_READY_POLL_S)


def _target(target: str | None, url: str | None, model: str | None) -> tuple[str, str | None]:
    """Where, and which model. Raises SettingsError."""
    if target is None:
        return url or DEFAULT_URL, model
    if _is_url(target):
        if url is not None:
            raise SettingsError(f"{target} and --url {url} both say where the server is; give one of them")
        return target, model
    if model is not None:
        raise SettingsError(f"{target} and --model {model} both name a model; give one of them")
    return url or DEFAULT_URL, target


def _is_url(target: str) -> bool:
    host, colon, port = target.partition("/v1")[0].rstrip("/").rpartition(":")
    return "://" in target or bool(colon and host and port.isdecimal()) or target == "localhost"


def _key(given: str | None) -> str | None:
    """Servers are given several with commas in between. Raises SettingsError."""
    keys: Iterable[str] = (part.strip() for part in (given or "").split(","))
    key = next((part for part in keys if part), None)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise SettingsError("the API key has characters that no header takes; give it without line breaks and accents")
    return key


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
