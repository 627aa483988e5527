"""Prompts in four rounds through what serves them, scheduler, prefix cache and runner in this process, and how far each
log probability of the vocabulary is from `transformers`' whole forward.

Owns the rounds and the comparison; which models are compared is `exact_cases`'. The arena begins as noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt
import torch
from tiny_decoders import VOCAB, hf_logits, make_ops, prompt
from transformers import PreTrainedModel

from relevo.build.model import kv_layout
from relevo.core.baton import SampleState
from relevo.core.ids import RequestId, WorkerId
from relevo.core.prompt_scores import PromptScores
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.models.families import spec_of
from relevo.engine.runner import LocalRunner
from relevo.engine.sampler import Sampler
from relevo.kv.arena import Arena
from relevo.policy.worker.scheduler import Scheduler, SchedulerConfig
from relevo.policy.worker.table_rules import table_rules

# Fourteen, on both sides of blocks (16 tokens), windows and chunks of layers (100) and chunks of prompts (256).
LENGTHS = (1, 2, 17, 64, 99, 100, 101, 192, 255, 256, 257, 511, 600, 750)
FEW_LENGTHS = (1, 17, 101, 257)
NUM_NEW_TOKENS = 8
NUM_KEPT_TOKENS = 3  # of an answer that is resumed
BLOCK_SIZE = 16
MAX_MODEL_LEN = 1024
NUM_BLOCKS = 2000
ROUNDS = ("alone", "again", "resumed", "together")
TOLERANCE = 1e-4

Row = npt.NDArray[np.float64]  # [V], log probabilities


@dataclass
class Answer:
    """Of one request: what was drawn, and the distributions that were told, by position of the token before."""

    prompt: list[int]
    tokens: list[int]
    rows: dict[int, Row] = field(default_factory=dict)

    @property
    def seen(self) -> tuple[int, ...]:
        return (*self.prompt, *self.tokens[:-1])


class Engine:
    """A worker without processes."""

    def __init__(self, files: ModelFiles, backend: str, dtype: str = "float32", kv_dtype: str = "float32") -> None:
        ops, config = make_ops(backend, dtype), files.config
        dequantised_as = "bfloat16" if dtype == "auto" else "float32"
        tensors = files.tensors(raw_formats=ops.native_formats, dequantised_as=dequantised_as)
        model = spec_of(config).load(config, tensors, ops, MAX_MODEL_LEN)
        layout = kv_layout(config, "tiny", kv_dtype, BLOCK_SIZE)
        arena = Arena.create(layout, NUM_BLOCKS + 1, shared=False)
        np.frombuffer(arena.buffer, dtype=np.uint8)[:] = 255  # no number in any float
        self.runner = LocalRunner(model, arena, Sampler(config.vocab_size, ops.row_math), [NUM_BLOCKS])
        self.scheduler = Scheduler(
            SchedulerConfig(
                worker_id=WorkerId("w"),
                epoch=1,
                first_block_id=0,
                num_blocks=NUM_BLOCKS,
                block_size=BLOCK_SIZE,
                max_batched_tokens=272,
                max_prefill_tokens=256,
                max_running=16,
                max_model_len=MAX_MODEL_LEN,
                more_groups=table_rules(layout),
            )
        )
        self._numbers = count()

    def serve(
        self,
        prompts: Sequence[list[int]],
        *,
        salt: bytes = b"",
        is_scored: bool = False,
        kept: Sequence[int] = (),
    ) -> list[Answer]:
        """All at once. `kept`: what another worker had emitted of each answer."""
        answers: dict[RequestId, Answer] = {}
        for each in prompts:
            request = _request(f"r{next(self._numbers)}", each, salt, is_scored)
            answers[request.request_id] = Answer(each, list(kept))
            samples = (SampleState(0, list(kept)),) if kept else ()
            assert self.scheduler.submit(request, samples, 0) is None
        while (plan := self.scheduler.plan(0)) is not None:
            for output in self.scheduler.commit(plan, self.runner.execute(plan), 0).all_outputs:
                _take(answers[output.request_id], output.tokens, output.prompt_scores)
        assert not self.scheduler.has_work() and self.scheduler.pool.num_held == 0
        return list(answers.values())


def _request(name: str, token_ids: list[int], salt: bytes, is_scored: bool) -> EngineRequest:
    sampling = SamplingParams(
        max_tokens=NUM_NEW_TOKENS,
        seed=0,
        temperature=0.0,
        ignore_eos=True,
        num_logprobs=VOCAB,
        num_prompt_logprobs=VOCAB if is_scored else None,
    )
    return EngineRequest(request_id=RequestId(name), prompt_token_ids=tuple(token_ids), sampling=sampling, salt=salt)


def _take(answer: Answer, tokens: Sequence[object], scores: PromptScores | None) -> None:
    for token in tokens:
        place = len(answer.prompt) + len(answer.tokens) - 1
        ids, values = zip(*token.top_logprobs, strict=True)  # type: ignore[attr-defined]
        answer.rows[place] = _row(np.array(ids), np.array(values))
        answer.tokens.append(token.token_id)  # type: ignore[attr-defined]
    if scores is not None:
        ids = np.frombuffer(scores.best_ids, "<i4").reshape(-1, VOCAB)
        values = np.frombuffer(scores.best_logprobs, "<f8").reshape(-1, VOCAB)
        for index, (each, of_each) in enumerate(zip(ids, values, strict=True)):
            answer.rows[scores.first - 1 + index] = _row(each, of_each)


def _row(ids: npt.NDArray[np.integer], values: npt.NDArray[np.float64]) -> Row:
    assert len(ids) == VOCAB and np.isfinite(values).all()
    row = np.empty(VOCAB)
    row[ids] = values
    return row


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Of one model on one backend, over all rounds."""

    largest: dict[str, float]  # difference of a log probability, by round
    median: float  # over all positions of all rounds, of the largest of each
    num_tokens: int  # greedy ones
    num_equal: int  # of which `transformers` draws the same
    num_hit_tokens: int
    has_same_bits: bool  # of each position in every round

    @property
    def largest_of_all(self) -> float:
        return max(self.largest.values())


class Reference:
    """`transformers`' whole forward, each sequence once."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._known = model, dict[tuple[int, ...], npt.NDArray[np.float64]]()

    def logprobs(self, seen: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """[T, V]"""
        if seen not in self._known:
            logits = torch.from_numpy(hf_logits(self._model, list(seen))).double()
            self._known[seen] = torch.log_softmax(logits, -1).numpy()
        return self._known[seen]


def four_rounds(engine: Engine, lengths: Sequence[int] = LENGTHS) -> dict[str, list[Answer]]:
    """Of prompts of these lengths. What is alone and cold tells the distributions of its prompt too."""
    prompts = [prompt(length, length) for length in lengths]
    alone = [engine.serve([each], is_scored=True)[0] for each in prompts]
    again = [engine.serve([each])[0] for each in prompts]
    resumed = [engine.serve([each.prompt], salt=b"resumed", kept=each.tokens[:NUM_KEPT_TOKENS])[0] for each in alone]
    together = engine.serve(prompts, salt=b"together")
    return dict(zip(ROUNDS, (alone, again, resumed, together), strict=True))


def compare(engine: Engine, reference: Reference, lengths: Sequence[int] = LENGTHS) -> Compared:
    rounds = four_rounds(engine, lengths)
    differences: dict[str, list[float]] = {name: [] for name in ROUNDS}
    num_tokens, num_equal, has_same_bits = 0, 0, True
    for name, answers in rounds.items():
        for answer, alone in zip(answers, rounds["alone"], strict=True):
            expected = reference.logprobs(answer.seen)
            _check_told(name, answer)
            for place, row in answer.rows.items():
                differences[name].append(float(np.abs(row - expected[place]).max()))
                has_same_bits = has_same_bits and np.array_equal(row, alone.rows.get(place, row))
            best = expected[len(answer.prompt) - 1 :].argmax(axis=1).tolist()
            num_tokens += len(best)
            num_equal += sum(ours == theirs for ours, theirs in zip(answer.tokens, best, strict=True))
    return Compared(
        largest={name: max(each) for name, each in differences.items()},
        median=float(np.median(np.concatenate(list(differences.values())))),
        num_tokens=num_tokens,
        num_equal=num_equal,
        num_hit_tokens=engine.scheduler.num_prefix_hits,
        has_same_bits=has_same_bits,
    )


def _check_told(name: str, answer: Answer) -> None:
    """Red when a distribution that was asked for did not come."""
    first = {"alone": 0, "resumed": len(answer.prompt) - 1 + NUM_KEPT_TOKENS}.get(name, len(answer.prompt) - 1)
    assert sorted(answer.rows) == list(range(first, len(answer.prompt) - 1 + NUM_NEW_TOKENS))
