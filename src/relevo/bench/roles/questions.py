"""Requests whose answers are known: asked of a quiet unified server first, then again and again under load.

Streams decode for long; prompts are long and answered shortly. Half of each is greedy, half drawn with its own seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from relevo.bench.client import OpenAIClient
from relevo.bench.load import run_open_loop
from relevo.bench.prompt_source import PromptSource
from relevo.bench.records import ClientRecord, Endpoint, Outcome, PlannedRequest
from relevo.core.errors import StartError
from relevo.telemetry.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    num_streams: int = 32
    num_stream_questions: int = 12
    num_prompt_questions: int = 8
    stream_prompt_tokens: tuple[int, int] = (16, 48)
    stream_output_tokens: tuple[int, int] = (120, 240)
    prompt_tokens: tuple[int, int] = (200, 500)
    prompt_output_tokens: int = 8
    prompts_per_s: float = 0.3
    seed: int = 0


@dataclass(slots=True)
class Question:
    planned: PlannedRequest
    temperature: float
    seed: int
    answer: str | None = None  # of the quiet server


@dataclass(slots=True)
class Asked:
    """One request under load. `wrong`: why it is lost or changed; empty: neither."""

    kind: str  # stream, prompt
    record: ClientRecord
    wrong: str = ""


@dataclass(slots=True)
class Questions:
    options: QuestionOptions
    streams: list[Question] = field(default_factory=list)
    prompts: list[Question] = field(default_factory=list)

    async def make(self, client: OpenAIClient) -> None:
        """Their prompts, as the server counts tokens."""
        options, rng = self.options, random.Random(f"questions:{self.options.seed}")
        source = await PromptSource.open(client, await client.pick_model(None), Endpoint.COMPLETIONS, seed=options.seed)
        kinds = (
            (self.streams, options.num_stream_questions, options.stream_prompt_tokens, options.stream_output_tokens),
            (self.prompts, options.num_prompt_questions, options.prompt_tokens, (options.prompt_output_tokens,) * 2),
        )
        for questions, count, lengths, outputs in kinds:
            for number in range(count):
                prompt, num_tokens = await source.make(rng.randint(*lengths))
                planned = PlannedRequest(prompt=prompt, num_input_tokens=num_tokens, max_tokens=rng.randint(*outputs))
                questions.append(Question(planned, 0.8 * (number % 2), number))

    async def note_answers(self, client: OpenAIClient, progress: Progress) -> None:
        """One after the other. Raises StartError if one is not answered."""
        model = await client.pick_model(None)
        progress.begin("answers of a quiet unified server", len(self.streams) + len(self.prompts), "answers")
        for question in (*self.streams, *self.prompts):
            asked = await ask(client, model, "quiet", question)
            if asked.wrong:
                raise StartError(f"the quiet server did not answer: {asked.wrong}")
            question.answer = "".join(asked.record.text or ())
            progress.advance()


async def ask(
    client: OpenAIClient, model: str, kind: str, question: Question, asked: list[Asked] | None = None
) -> Asked:
    """Once, compared with the noted answer if there is one. It is in `asked` from the moment that it is sent."""
    made: list[Asked] = []

    async def send(planned: PlannedRequest, record: ClientRecord) -> None:
        record.text = []
        made.append(Asked(kind, record))
        if asked is not None:
            asked.append(made[0])
        extra = {"ignore_eos": True, "temperature": question.temperature, "seed": question.seed}
        await client.stream(planned, record, model=model, endpoint=Endpoint.COMPLETIONS, extra=extra)

    await run_open_loop([question.planned], send, [])
    one = made[0]
    text = "".join(one.record.text or ())
    if one.record.outcome is not Outcome.COMPLETED:
        one.wrong = f"lost: {one.record.error} {one.record.error_detail}"
    elif question.answer is not None and text != question.answer:
        one.wrong = f"changed: {text[:80]!r} instead of {question.answer[:80]!r}"
    one.record.text = None
    if question.answer is None:
        one.record.text = [text]
    return one
