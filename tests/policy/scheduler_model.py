"""A memory that remembers which content each block cell holds, and a model that checks it before every read."""

from __future__ import annotations

from zlib import crc32

from relevo.core.baton import SampledToken
from relevo.core.plan import ScheduledRow, StepPlan, StepResult
from relevo.core.replica import Replica
from relevo.core.request import EngineRequest, FinishReason, SamplingParams, ServiceTerms

EOS = 0
VOCAB = 4


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int = 4,
    n: int = 1,
    priority: int = 0,
    salt: bytes = b"",
    tenant: str = "",
    **sampling: object,
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, seed=7, n=n, **sampling),
        eos_token_ids=(EOS,),
        salt=salt,
        priority=priority,
        terms=ServiceTerms(tenant=tenant),
    )


def next_token(content: tuple[int, ...], request: EngineRequest, sample_index: int) -> int:
    draw = crc32(repr((content, request.salt, request.sampling.seed, sample_index)).encode())
    return EOS if draw % 7 == 0 else 1 + draw // 7 % (VOCAB - 1)


def reference(request: EngineRequest, sample_index: int, max_len: int) -> tuple[list[int], FinishReason]:
    """What the continuation is when nothing else runs."""
    sampling, outputs = request.sampling, []
    while True:
        outputs.append(next_token((*request.prompt_token_ids, *outputs), request, sample_index))
        if len(outputs) >= sampling.min_tokens:
            if outputs[-1] == EOS and not sampling.ignore_eos:
                return outputs, FinishReason.STOP
            if outputs[-1] in sampling.stop_token_ids:
                return outputs, FinishReason.STOP
        if len(outputs) >= sampling.max_tokens or len(request.prompt_token_ids) + len(outputs) >= max_len:
            return outputs, FinishReason.LENGTH


class CellMemory:
    """Cell (block, slot) holds (salt, all tokens up to and including its own), or None."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[int, list[object]] = {}

    def block(self, block_id: int) -> list[object]:
        return self.blocks.setdefault(block_id, [None] * self.block_size)

    def copy(self, source: int, target: int) -> None:
        self.blocks[target] = list(self.block(source))

    def read(self, block_ids: list[int], position: int) -> object:
        return self.block(block_ids[position // self.block_size])[position % self.block_size]

    def write(self, block_ids: list[int], position: int, content: object) -> None:
        self.block(block_ids[position // self.block_size])[position % self.block_size] = content


class CheckedModel:
    """Executes plans on a CellMemory. Rows of requests in `excused` may read anything: their receiver let go."""

    def __init__(self, memory: CellMemory, max_len: int) -> None:
        self.memory = memory
        self.replica = Replica()
        self.max_len = max_len
        self.excused: set[str] = set()
        self.num_computed_tokens = 0

    def execute(self, plan: StepPlan) -> StepResult:
        for source, target in plan.block_copies:
            self.memory.copy(source, target)
        sampled = tuple(self._row(row) for row in self.replica.rows(plan))
        return StepResult(plan.step_id, sampled, 0.0)

    def _row(self, row: ScheduledRow) -> tuple[SampledToken, ...]:
        request, salt = row.request, row.request.salt
        assert row.token_ids and row.start + len(row.token_ids) <= len(row.block_ids) * self.memory.block_size
        tokens = self._content(row)
        for position in range(row.start):
            cell = self.memory.read(row.block_ids, position)
            if request.request_id not in self.excused:
                assert cell == (salt, tokens[: position + 1]), f"{request.request_id} at {position}: {cell}"
        for offset in range(len(row.token_ids)):
            position = row.start + offset
            self.memory.write(row.block_ids, position, (salt, tokens[: position + 1]))
        self.num_computed_tokens += len(row.token_ids)
        for sample in row.samples:
            assert tokens == (*request.prompt_token_ids, *sample.output_token_ids)
        return tuple(SampledToken(next_token(tokens, request, sample.sample_index)) for sample in row.samples)

    def _content(self, row: ScheduledRow) -> tuple[int, ...]:
        """All tokens up to the end of the row: the prompt, then what some continuation must have drawn."""
        request, end = row.request, row.start + len(row.token_ids)
        candidates = [
            (*request.prompt_token_ids, *reference(request, index, self.max_len)[0])[:end]
            for index in range(request.sampling.n)
        ]
        last = self.memory.read(row.block_ids, row.start - 1) if row.start else (request.salt, ())
        fitting = [c for c in candidates if len(c) == end and list(c[row.start :]) == row.token_ids]
        assert fitting, f"{request.request_id} computes tokens that no continuation has: {row}"
        if row.samples:
            own = (*request.prompt_token_ids, *row.samples[0].output_token_ids)
            assert own in fitting
            return own
        exact = [c for c in fitting if last == (request.salt, c[: row.start])]
        return (exact or fitting)[0]
