"""Many requests at once: each as if it were alone."""

from __future__ import annotations

import asyncio

from relevo.check.context import NUM_TOKENS, CheckContext
from relevo.check.sources import HTTP, ISOLATION
from relevo.check.texts import TOPICS
from relevo.check.words import Mismatch, Need, check

_NUM_BURST = 32


@check(
    "concurrency.equal",
    "Eight prompts asked at once have the answers they have one after the other.",
    why="Batching, paging and handing over are the server's affair; they must not show.",
    source=ISOLATION,
)
async def equal(ctx: CheckContext) -> None:
    bodies = [ctx.prompt_body(f"Here is a text about {topic}:") for topic in TOPICS[:8]]
    bodies = [(path, body | ctx.logprob_fields(path)) for path, body in bodies]
    alone = [(await ctx.post(*body)).ok() for body in bodies]
    together = await asyncio.gather(*(ctx.post(*body) for body in bodies))
    for number, (answer, reference) in enumerate(zip(together, alone, strict=True)):
        ctx.same_text(answer.ok(), reference, f"prompt {number} among eight and alone")


@check(
    "concurrency.streams_equal",
    "Eight streams at once have the texts of the whole answers.",
    why="As above, for the path where chunks of many requests leave together.",
    source=ISOLATION,
)
async def streams_equal(ctx: CheckContext) -> None:
    bodies = [ctx.prompt_body(f"Here is a text about {topic}:", max_tokens=12) for topic in TOPICS[:8]]
    bodies = [(path, body | ctx.logprob_fields(path)) for path, body in bodies]
    alone = [(await ctx.post(*body)).ok() for body in bodies]
    together = await asyncio.gather(*(ctx.stream(*body) for body in bodies))
    for number, (answer, reference) in enumerate(zip(together, alone, strict=True)):
        ctx.same_text(answer.ok(), reference, f"stream {number} among eight and whole")


@check(
    "concurrency.no_foreign_words",
    "A word that only one of twelve concurrent prompts contains appears in no other answer.",
    why="It would be another user's text.",
    source=ISOLATION,
)
async def no_foreign_words(ctx: CheckContext) -> None:
    canaries = [f"zq{ctx.rng.getrandbits(40):010x}" for _ in range(12)]
    prompts = [f"{canary} {canary} {canary} {canary} {canary}" for canary in canaries]
    answers = await asyncio.gather(*(ctx.ask(prompt) for prompt in prompts))
    for own, answer in zip(canaries, answers, strict=True):
        foreign = [canary for canary in canaries if canary != own and canary in answer.ok().text()]
        if foreign:
            raise answer.fail(f"the answer has {foreign[0]!r} of another prompt", "none")


@check(
    "concurrency.all_answered",
    "Of thirty-two requests at once each is answered, or refused with 429 or 503 and Retry-After.",
    why="A request without an answer is the one thing a client cannot handle.",
    source=HTTP,
)
async def all_answered(ctx: CheckContext) -> None:
    topics = [TOPICS[number % len(TOPICS)] for number in range(_NUM_BURST)]
    answers = await asyncio.gather(
        *(ctx.ask(f"{number}: {topic}", max_tokens=4) for number, topic in enumerate(topics))
    )
    for answer in answers:
        if answer.status == 200:
            answer.text()
        elif answer.status not in (429, 503) or "retry-after" not in answer.headers:
            raise answer.fail(f"HTTP {answer.status}", "HTTP 200, or 429 or 503 with Retry-After")
    if not any(answer.status == 200 for answer in answers):
        raise Mismatch("all were refused", expected="some are answered", exchange=ctx.last)


@check(
    "concurrency.mixed_kinds",
    "Streams, whole answers, several choices and log probabilities at once do not disturb each other.",
    why="Batches of unlike requests are where per-request state gets mixed up.",
    source=ISOLATION,
)
async def mixed_kinds(ctx: CheckContext) -> None:
    path, plain = ctx.prompt_body("Here is a text about the sea:", max_tokens=8)
    reference = (await ctx.post(path, plain)).ok()
    with_logprobs = plain | ctx.logprob_fields(path)
    sampled = plain | {"temperature": 1.3, "seed": 9, "max_tokens": NUM_TOKENS}
    several = sampled | ({"n": 2} if ctx.facts.has(Need.CHOICES) else {})
    answers = await asyncio.gather(
        ctx.post(path, plain), ctx.stream(path, plain), ctx.post(path, with_logprobs), ctx.post(path, several),
        ctx.post(path, sampled), ctx.stream(path, several), ctx.post(path, sampled),
    )  # fmt: skip
    for number in (0, 1, 2):
        if answers[number].ok().text() != reference.text():
            ctx.same_text(
                answers[number], (await ctx.post(path, with_logprobs)).ok(), "among unlike requests and alone"
            )
    for number in (3, 4, 5, 6):
        answers[number].ok().text()
