"""Log probabilities: one entry per token, numbers that are probabilities, and the same text as without."""

from __future__ import annotations

from math import exp

from relevo.check.context import CheckContext
from relevo.check.exchange import Answer
from relevo.check.sources import OPENAI_CHAT, OPENAI_COMPLETIONS, OPENAI_STREAM
from relevo.check.words import Level, Need, check

_CHAT = (Need.CHAT, Need.CHAT_LOGPROBS)
_COMPLETIONS = (Need.COMPLETIONS, Need.COMPLETION_LOGPROBS)
_TOLERANCE_NATS = 0.02  # between two computations of the same log probability
_ORDER_SLACK_NATS = 1e-4


async def _chat(ctx: CheckContext, num_top: int = 3) -> Answer:
    return (await ctx.chat(logprobs=True, top_logprobs=num_top)).ok()


def _check_count(answer: Answer, num_entries: int) -> None:
    """The end-of-sequence token may be counted without having an entry."""
    num_tokens = answer.usage("completion_tokens")
    slack = 1 if answer.finish_reason() == "stop" else 0
    if not num_tokens - slack <= num_entries <= num_tokens:
        raise answer.fail(f"{num_entries} entries for {num_tokens} completion tokens", "one entry per token")


@check(
    "logprobs.count",
    "A chat's logprobs.content has one entry per completion token, the first one included.",
    why="Scores are sums over all tokens; a missing first entry is a common loss between prefill and decode.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def count(ctx: CheckContext) -> None:
    answer = await _chat(ctx)
    _check_count(answer, len(answer.logprobs()))


@check(
    "logprobs.entries",
    "An entry has token, a logprob of at most 0, and as many top_logprobs as were asked for, rarely fewer, best first.",
    why="Clients take them for probabilities.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def entries(ctx: CheckContext) -> None:
    answer = await _chat(ctx)
    told = answer.logprobs()
    if sum(len(entry.top) == 3 for entry in told) < len(told) / 2:
        raise answer.fail("most entries have fewer than 3 top_logprobs", "3, as asked for")
    for number, entry in enumerate(told):
        values = [value for _, value in entry.top]
        if entry.logprob > 0 or any(value > 0 for value in values):
            raise answer.fail(f"entry {number} has a log probability above 0", "at most 0")
        if len(values) > 3:
            raise answer.fail(f"entry {number} has {len(values)} top_logprobs", "3, as asked for")
        if values != sorted(values, reverse=True):
            raise answer.fail(f"top_logprobs of entry {number} are {values}", "best first")


@check(
    "logprobs.bytes",
    "The bytes of the entries, put together, are the text; null is for tokens that stand for none.",
    why="It is the only exact way from tokens to text when characters span tokens.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def bytes_(ctx: CheckContext) -> None:
    answer = await _chat(ctx)
    parts = [entry.data for entry in answer.logprobs()]
    if all(part is None for part in parts):
        raise answer.fail("no entry has bytes", "lists of bytes")
    told = b"".join(part or b"" for part in parts).decode(errors="replace").replace("\ufffd", "")
    text = answer.text().replace("\ufffd", "")
    if not (told.strip().startswith(text.strip()) and len(told) - len(text) < 30):
        raise answer.fail(f"the bytes say {told!r}", repr(text))


@check(
    "logprobs.greedy_is_best",
    "At temperature 0 every token is the most likely one by its own entry.",
    why="Otherwise either the choice or the numbers are wrong.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def greedy_is_best(ctx: CheckContext) -> None:
    answer = await _chat(ctx)
    for number, entry in enumerate(answer.logprobs()):
        best = max((value for _, value in entry.top), default=entry.logprob)
        if entry.logprob < best - _ORDER_SLACK_NATS:
            raise answer.fail(f"entry {number} has {entry.logprob}, but another token {best}", "the best token")


@check(
    "logprobs.zero_top",
    "With top_logprobs 0 every entry has its token's log probability and no alternatives.",
    why="It is how clients ask for scores alone.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def zero_top(ctx: CheckContext) -> None:
    answer = await _chat(ctx, 0)
    told = answer.logprobs()
    _check_count(answer, len(told))
    if any(entry.top for entry in told):
        raise answer.fail("entries have top_logprobs", "none")


@check(
    "logprobs.not_unasked",
    "Without logprobs the answer has none.",
    why="They multiply the size of an answer.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def not_unasked(ctx: CheckContext) -> None:
    answer = (await ctx.chat()).ok()
    if answer.at(dict, "choices", 0).get("logprobs"):
        raise answer.fail("the choice has logprobs", "null")


@check(
    "logprobs.same_text",
    "Asking for log probabilities does not change the text.",
    why="A measurement that changes what it measures is worth nothing.",
    source=OPENAI_CHAT,
    needs=_CHAT,
)
async def same_text(ctx: CheckContext) -> None:
    ctx.same_text(await _chat(ctx), (await ctx.chat()).ok(), "with and without logprobs")


@check(
    "logprobs.stream_equals_whole",
    "The entries of a stream, put together, equal those of the whole answer.",
    why="Streams often lose the entries of the first or last token.",
    source=OPENAI_STREAM,
    needs=_CHAT,
)
async def stream_equals_whole(ctx: CheckContext) -> None:
    streamed, whole = (await ctx.stream_chat(logprobs=True, top_logprobs=3)).ok(), await _chat(ctx)
    told, wanted = streamed.logprobs(), whole.logprobs()
    if [entry.token for entry in told] != [entry.token for entry in wanted]:
        ctx.same_text(streamed, whole, "streamed and whole")
        if streamed.text() == whole.text():
            raise streamed.fail(f"{len(told)} entries", f"{len(wanted)} entries with the same tokens")
        return
    for one, other in zip(told, wanted, strict=True):
        if abs(one.logprob - other.logprob) > _TOLERANCE_NATS:
            raise streamed.fail(f"{one.token!r} has {one.logprob}", f"{other.logprob} as whole")


@check(
    "logprobs.bound",
    "top_logprobs above 20 is a 4xx error.",
    why="The reference bounds it; an unbounded one makes answers of any size.",
    source=OPENAI_CHAT,
    needs=_CHAT,
    level=Level.SHOULD,
)
async def bound(ctx: CheckContext) -> None:
    answer = await ctx.chat(logprobs=True, top_logprobs=10_000, max_tokens=1)
    if not 400 <= answer.status < 500:
        raise answer.fail(f"HTTP {answer.status}", "a 4xx status")


@check(
    "logprobs.completion",
    "A completion's logprobs are four lists of the same length: tokens, token_logprobs, top_logprobs, text_offset.",
    why="Evaluation suites walk them in parallel.",
    source=OPENAI_COMPLETIONS,
    needs=_COMPLETIONS,
)
async def completion(ctx: CheckContext) -> None:
    answer = (await ctx.complete(logprobs=2)).ok()
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    lengths = {name: len(answer.at(list, "choices", 0, "logprobs", name)) for name in names}
    if len(set(lengths.values())) != 1:
        raise answer.fail(f"lengths are {lengths}", "equal lengths")
    _check_count(answer, lengths["tokens"])


@check(
    "logprobs.completion_offsets",
    "text_offset says where in the text each token begins.",
    why="Scores are assigned to words by it.",
    source=OPENAI_COMPLETIONS,
    needs=_COMPLETIONS,
)
async def completion_offsets(ctx: CheckContext) -> None:
    answer = (await ctx.complete(logprobs=1)).ok()
    offsets = answer.at(list, "choices", 0, "logprobs", "text_offset")
    tokens = answer.at(list, "choices", 0, "logprobs", "tokens")
    start = offsets[0] if offsets else 0
    for number, (offset, token) in enumerate(zip(offsets, tokens, strict=True)):
        at = offset - start
        piece = answer.text()[at : at + len(str(token))]
        is_plain = str(token).isascii() and not str(token).startswith("bytes:") and "\ufffd" not in piece
        if at < len(answer.text()) and is_plain and piece != token:
            raise answer.fail(f"token {number} is {token!r}, at its offset is {piece!r}", "the token at its offset")


@check(
    "logprobs.sum_below_one",
    "The probabilities of a token's alternatives add up to at most 1.",
    why="More means that they are not log probabilities of one distribution.",
    source=OPENAI_COMPLETIONS,
    needs=_CHAT,
)
async def sum_below_one(ctx: CheckContext) -> None:
    answer = await _chat(ctx, 5)
    for number, entry in enumerate(answer.logprobs()):
        total = sum(exp(value) for _, value in entry.top)
        if total > 1.01:
            raise answer.fail(f"the alternatives of entry {number} add up to {total:.3f}", "at most 1")
