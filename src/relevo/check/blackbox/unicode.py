"""Text beyond ASCII, on its way in and out."""

from __future__ import annotations

import json

import orjson

from relevo.check.blackbox.stop import stop_inside
from relevo.check.context import CHAT, CheckContext
from relevo.check.sources import JSON, OPENAI_CHAT, UNICODE
from relevo.check.texts import EMOJI_OPENING, MANY_SCRIPTS, OPENING
from relevo.check.words import Need, Skip, check

_CHAT = (Need.CHAT,)


@check(
    "unicode.echo",
    "A prompt in many scripts comes back with echo as it was sent.",
    why="Normalised or re-encoded text is another text.",
    source=UNICODE,
    needs=(Need.COMPLETIONS, Need.ECHO),
)
async def echo(ctx: CheckContext) -> None:
    await _check_echo(ctx, MANY_SCRIPTS)


async def _check_echo(ctx: CheckContext, text: str) -> None:
    ascii_only = (await ctx.complete(OPENING, echo=True, max_tokens=1)).ok()
    if not ascii_only.text().startswith(OPENING):
        raise Skip("echo is accepted and ignored, which shape.completion_echo tells")
    answer = (await ctx.complete(text, echo=True, max_tokens=1)).ok()
    if not answer.text().startswith(text):
        raise answer.fail(f"text is {answer.text()!r}", f"text that begins with {text!r}")


@check(
    "unicode.escapes",
    "A body with \\u escapes means the same as one in UTF-8, surrogate pairs included.",
    why="Python's json escapes by default, JavaScript's does not.",
    source=JSON,
    needs=_CHAT,
)
async def escapes(ctx: CheckContext) -> None:
    body = ctx.chat_body(MANY_SCRIPTS, **ctx.logprob_fields(CHAT))
    plain = (await ctx.post(CHAT, orjson.dumps(body))).ok()
    escaped = (await ctx.post(CHAT, json.dumps(body).encode())).ok()
    if plain.usage("prompt_tokens") != escaped.usage("prompt_tokens"):
        raise escaped.fail(f"{escaped.usage('prompt_tokens')} prompt tokens", f"{plain.usage('prompt_tokens')}")
    ctx.same_text(escaped, plain, "escaped and plain")


@check(
    "unicode.lone_surrogate",
    "Half a surrogate pair is a 4xx error or replaced, not a failure of the server.",
    why="JavaScript clients cut strings in the middle of an emoji.",
    source=UNICODE,
    needs=_CHAT,
)
async def lone_surrogate(ctx: CheckContext) -> None:
    body = json.dumps(ctx.chat_body("a lone \ud83c surrogate", max_tokens=2)).encode()
    answer = await ctx.post(CHAT, body)
    if answer.status != 200 and not answer.is_refusal:
        raise answer.fail(f"HTTP {answer.status}", "HTTP 200 or a 4xx status")
    if answer.status == 200:
        answer.text()


@check(
    "unicode.nul",
    "A NUL character in a prompt is an answer or a 4xx error.",
    why="Code in C takes it for the end of the text.",
    source=UNICODE,
    needs=_CHAT,
)
async def nul(ctx: CheckContext) -> None:
    answer = await ctx.chat("before \x00 after", max_tokens=2)
    if answer.status != 200 and not answer.is_refusal:
        raise answer.fail(f"HTTP {answer.status}", "HTTP 200 or a 4xx status")
    if answer.status == 200:
        short = (await ctx.chat("before ", max_tokens=2)).ok()
        if answer.usage("prompt_tokens") <= short.usage("prompt_tokens"):
            raise answer.fail(
                f"{answer.usage('prompt_tokens')} prompt tokens", "more than for the text before the NUL alone"
            )


@check(
    "unicode.stop_string",
    "A stop string of characters with several bytes is found.",
    why="Chinese full stops and emoji are common stop strings.",
    source=OPENAI_CHAT,
)
async def stop_string(ctx: CheckContext) -> None:
    whole = (await ctx.ask(EMOJI_OPENING)).ok()
    text = whole.text()
    wide = next(
        (place for place, letter in enumerate(text) if place > 2 and ord(letter) > 127 and letter != "\ufffd"), None
    )
    if wide is None:
        raise Skip("the model answered in ASCII")
    stop = stop_inside(text, 1, wide)
    answer = (await ctx.ask(EMOJI_OPENING, stop=stop)).ok()
    if answer.text() != text[: text.find(stop)]:
        raise answer.fail(f"text is {answer.text()!r}", repr(text[: text.find(stop)]))


@check(
    "unicode.not_mangled",
    "An answer in UTF-8 is valid and decodes to the text that its tokens stand for.",
    why="A wrong charset shows as Ã and â.",
    source=UNICODE,
    needs=_CHAT,
)
async def not_mangled(ctx: CheckContext) -> None:
    answer = (await ctx.chat(f"Repeat exactly: {MANY_SCRIPTS}")).ok()
    try:
        answer.raw.decode()
    except UnicodeDecodeError as error:
        raise answer.fail(f"byte {error.start} of the body is not UTF-8", "UTF-8") from None
    charset = answer.headers.get("content-type", "").lower().partition("charset=")[2].strip('"; ')
    if charset not in ("", "utf-8", "utf8"):
        raise answer.fail(f"charset is {charset!r}", "utf-8")


@check(
    "unicode.normal_forms",
    "The same letters in different normal forms are different prompts.",
    why="A server that normalises changes what users typed.",
    source=UNICODE,
    needs=(Need.COMPLETIONS, Need.ECHO),
)
async def normal_forms(ctx: CheckContext) -> None:
    for text in ("caf\u00e9 bar", "cafe\u0301 bar"):
        await _check_echo(ctx, text)
