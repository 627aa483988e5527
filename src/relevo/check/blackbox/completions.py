"""The shape of completions that are not streamed: prompts of every form, echo, the default length."""

from __future__ import annotations

from relevo.check.blackbox.shape import check_envelope
from relevo.check.context import COMPLETIONS, CheckContext
from relevo.check.sources import OPENAI_COMPLETIONS
from relevo.check.texts import OPENING, SECOND_OPENING
from relevo.check.words import Level, Mismatch, Need, check

_NEEDS_COMPLETIONS = (Need.COMPLETIONS,)


@check(
    "shape.completion",
    "A completion has id, object 'text_completion', created, model, and one choice with text.",
    why="SDKs build typed objects from these members.",
    source=OPENAI_COMPLETIONS,
    needs=_NEEDS_COMPLETIONS,
)
async def completion(ctx: CheckContext) -> None:
    answer = await ctx.complete()
    check_envelope(answer, "text_completion")
    if not answer.text():
        raise answer.fail("text is empty", "text")


@check(
    "shape.completion_default_length",
    "Without max_tokens a completion has at most 16 tokens.",
    why="It is the documented default; without it an unattended request runs to the end of the context.",
    source=OPENAI_COMPLETIONS,
    needs=_NEEDS_COMPLETIONS,
    level=Level.SHOULD,
)
async def completion_default_length(ctx: CheckContext) -> None:
    # read as a stream and left early, so that a server without the default does not write for minutes
    body = ctx.completion_body(max_tokens=..., stop=["\n\n\n\n\n"])
    answer = await ctx.stream_at_most(COMPLETIONS, body, num_events=60)
    if answer is None:
        raise Mismatch("a stream of 60 events and more", expected="at most 16 tokens", exchange=ctx.last)
    if len(answer.ok().pieces_of_text()) > 18:
        raise answer.fail(f"{len(answer.pieces_of_text())} chunks of text", "at most 16 tokens")


@check(
    "shape.completion_prompts",
    "A list of prompts gives one choice per prompt, in order, each as if asked alone.",
    why="Batch jobs assign results by index.",
    source=OPENAI_COMPLETIONS,
    needs=_NEEDS_COMPLETIONS,
)
async def completion_prompts(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields(COMPLETIONS)
    alone = [(await ctx.complete(prompt, **fields)).ok() for prompt in (OPENING, SECOND_OPENING)]
    both = (await ctx.complete([OPENING, SECOND_OPENING], **fields)).ok()
    if both.num_choices != 2:
        raise both.fail(f"{both.num_choices} choices", "two")
    for index, reference in enumerate(alone):
        if both.at(int, "choices", index, "index") != index:
            raise both.fail(f"choice {index} has another index", f"index {index}")
        ctx.same_text(both, reference, f"prompt {index} in a list and alone", index, 0)


@check(
    "shape.completion_token_ids",
    "A prompt of token ids means the same as the text they stand for.",
    why="Evaluation suites and routers send token ids.",
    source=OPENAI_COMPLETIONS,
    needs=(Need.COMPLETIONS, Need.TOKENIZE),
)
async def completion_token_ids(ctx: CheckContext) -> None:
    fields = ctx.logprob_fields(COMPLETIONS)
    as_text = (await ctx.complete(**fields)).ok()
    as_ids = (await ctx.complete(await ctx.tokenize(OPENING), **fields)).ok()
    if as_ids.usage("prompt_tokens") != as_text.usage("prompt_tokens"):
        raise as_ids.fail(
            f"{as_ids.usage('prompt_tokens')} prompt tokens", f"{as_text.usage('prompt_tokens')} as for the text"
        )
    ctx.same_text(as_ids, as_text, "ids and text")


@check(
    "shape.completion_echo",
    "With echo the text begins with the prompt.",
    why="Scoring scripts cut the prompt off by its length.",
    source=OPENAI_COMPLETIONS,
    needs=(Need.COMPLETIONS, Need.ECHO),
)
async def completion_echo(ctx: CheckContext) -> None:
    plain, echoed = (await ctx.complete()).ok(), (await ctx.complete(echo=True)).ok()
    if not echoed.text().startswith(OPENING):
        raise echoed.fail(f"text is {echoed.text()!r}", "text that begins with the prompt")
    if echoed.text() != OPENING + plain.text():
        raise echoed.fail(f"after the prompt: {echoed.text()[len(OPENING) :]!r}", repr(plain.text()))
