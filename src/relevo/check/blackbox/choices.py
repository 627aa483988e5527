"""Several choices of one request (n)."""

from __future__ import annotations

from relevo.check.context import CheckContext
from relevo.check.sources import OPENAI_CHAT, OPENAI_STREAM
from relevo.check.texts import QUESTION
from relevo.check.words import Need, Skip, check

_NEEDS = (Need.CHAT, Need.CHOICES)


@check(
    "choices.count",
    "n = 3 gives three choices with the indices 0, 1, 2.",
    why="Clients read as many as they asked for.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def count(ctx: CheckContext) -> None:
    answer = (await ctx.chat(n=3, temperature=1, seed=7)).ok()
    indices = sorted(answer.at(int, "choices", number, "index") for number in range(answer.num_choices))
    if indices != [0, 1, 2]:
        raise answer.fail(f"indices are {indices}", "[0, 1, 2]")
    for number in range(3):
        answer.finish_reason(number)


@check(
    "choices.greedy_are_equal",
    "At temperature 0 all choices have the same text.",
    why="A greedy choice that differs was computed from another context.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def greedy_are_equal(ctx: CheckContext) -> None:
    answer = await ctx.chat(n=3, max_tokens=10)
    if answer.is_refusal:
        raise Skip(f"n = 3 at temperature 0 is refused with HTTP {answer.status}: {answer.error_message}")
    answer.ok()
    texts = {answer.text(index) for index in range(answer.num_choices)}
    if len(texts) != 1:
        raise answer.fail(f"{len(texts)} different texts", "one text")


@check(
    "choices.sampled_differ",
    "At temperature 1.5 four choices of one seed are not all the same.",
    why="Every choice needs draws of its own, or n is a waste.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def sampled_differ(ctx: CheckContext) -> None:
    answer = (await ctx.chat(n=4, temperature=1.5, seed=11)).ok()
    if len({answer.text(index) for index in range(answer.num_choices)}) == 1:
        raise answer.fail("four equal texts", "different texts")


@check(
    "choices.usage",
    "The prompt is counted once, and completion_tokens is the sum over the choices.",
    why="It is one prompt.",
    source=OPENAI_CHAT,
    needs=_NEEDS,
)
async def usage(ctx: CheckContext) -> None:
    one, three = (await ctx.chat(max_tokens=6)).ok(), (await ctx.chat(max_tokens=6, n=3, temperature=0.7, seed=5)).ok()
    if three.usage("prompt_tokens") != one.usage("prompt_tokens"):
        raise three.fail(f"{three.usage('prompt_tokens')} prompt tokens", f"{one.usage('prompt_tokens')}, as for n = 1")
    all_cut = all(three.finish_reason(index) == "length" for index in range(3))
    if not (18 if all_cut else 3) <= three.usage("completion_tokens") <= 18:
        raise three.fail(f"{three.usage('completion_tokens')} completion tokens", "3 x 6" if all_cut else "3 to 18")


@check(
    "choices.stream",
    "A stream with n = 2 carries both choices by index, each with its own role and finish_reason.",
    why="Clients keep one message per index.",
    source=OPENAI_STREAM,
    needs=_NEEDS,
)
async def stream(ctx: CheckContext) -> None:
    answer = (await ctx.stream_chat(n=2, temperature=1, seed=7)).ok()
    for index in (0, 1):
        if not answer.text(index):
            raise answer.fail(f"no text for index {index}", "text for both")
        answer.finish_reason(index)
        if not any(delta.get("role") for delta in answer.deltas(index)):
            raise answer.fail(f"no role for index {index}", "a role for both")


@check(
    "choices.out_of_range",
    "n = 0 and n = 100000 are 4xx errors.",
    why="An unbounded n lets one request take the whole server.",
    source=OPENAI_CHAT,
    needs=(Need.CHAT,),
)
async def out_of_range(ctx: CheckContext) -> None:
    for n in (0, 100_000):
        answer = await ctx.chat(QUESTION, n=n, max_tokens=1)
        if not 400 <= answer.status < 500:
            raise answer.fail(f"HTTP {answer.status} for n = {n}", "a 4xx status")
