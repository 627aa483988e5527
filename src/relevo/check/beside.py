"""What one client notices of another: a stream that runs while something else is done to the server.

Owns the stream, its reference and the judgement; knows nothing of what is done. Where a key of another tenant was given
the stream is that tenant's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer, StreamAnswer
from relevo.check.server import Server
from relevo.check.texts import SECOND_OPENING
from relevo.check.words import Mismatch

_NUM_TOKENS = 96  # of the stream beside; arbitrary
LONGEST_GAP_S = 5.0  # between two pieces of it; arbitrary: a user takes longer ones for a broken connection


@asynccontextmanager
async def stream_beside(ctx: CheckContext) -> AsyncIterator[None]:
    """The body runs while a stream does. Raises Mismatch afterwards if the stream was not as it is when alone."""
    server = ctx.other or ctx.server
    path, body = ctx.prompt_body(SECOND_OPENING, max_tokens=_NUM_TOKENS, **ctx.endless)
    body |= ctx.logprob_fields(path)
    exchange = ctx.stream_exchange(path, body, server)
    reference = await _whole(server, ctx, path, body)
    heard = asyncio.Event()
    stream = asyncio.create_task(server.stream(exchange, heard))
    waiting = asyncio.create_task(heard.wait())
    try:
        await asyncio.wait((stream, waiting), return_when=asyncio.FIRST_COMPLETED)
        yield
        answer = await stream
    finally:
        stream.cancel()
        waiting.cancel()
    assert answer is not None, "a stream without a limit is read to its end"
    ctx.last = exchange
    judge(ctx, answer, reference)


async def _whole(server: Server, ctx: CheckContext, path: str, body: dict[str, object]) -> Answer:
    return (await server.send(ctx.exchange(path, body, server))).ok()


def judge(ctx: CheckContext, answer: StreamAnswer, reference: Answer) -> None:
    """Raises Mismatch unless the stream came whole, without a long gap, with the reference's text."""
    if answer.status != 200 or answer.was_cut:
        raise answer.fail(
            "the stream beside it was cut" if answer.was_cut else f"HTTP {answer.status} for the stream beside it",
            "a stream that another client's request does not end",
        )
    ctx.same_text(answer, reference, "the stream beside it and the same request alone")
    times = answer.piece_at_s
    gap_s = max((after - before for before, after in pairwise(times)), default=0.0)
    if gap_s > LONGEST_GAP_S:
        raise Mismatch(
            f"the stream beside it said nothing for {gap_s:.1f} s",
            expected=f"no gap longer than {LONGEST_GAP_S:g} s",
            exchange=answer.exchange,
        )
