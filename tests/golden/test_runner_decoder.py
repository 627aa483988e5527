"""The runner with a real decoder: copies before rows, samples from the right rows, split equal to together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_decoders import BACKENDS, BLOCK_SIZE, VOCAB, hf_logits, hf_model, make_ops, prompt, small_layout
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from relevo.core.baton import SampledToken, SampleState
from relevo.core.kv import KVLayout
from relevo.core.plan import ScheduledRow
from relevo.core.ports import ModelRunner
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.grammar_masks import HeldDraws
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.families import spec_of
from relevo.engine.ops.torch.ops import TorchOps
from relevo.engine.row_math import RowSummaries
from relevo.engine.runner import LocalRunner, SampleSpec
from relevo.engine.sampler import Sampler
from step_plans import plan_of

NUM_BLOCKS = 24
SCRATCH = (22, 23)


@dataclass
class Memory:
    """The part of an arena that a runner looks at."""

    layout: KVLayout
    num_blocks: int
    buffer: memoryview


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    hf_model("llama").save_pretrained(path)
    return path


class Recorder:
    """Notes what the sampler was asked, and draws greedily."""

    def __init__(self) -> None:
        self.calls: list[tuple[np.ndarray, list[SampleSpec]]] = []

    def sample(
        self, logits: np.ndarray, specs: Sequence[SampleSpec], summaries: RowSummaries | None, held: HeldDraws
    ) -> list[SampledToken]:
        self.calls.append((logits.copy(), list(specs)))
        return Sampler(logits.shape[1]).sample(logits, specs, summaries, held)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def make_runner(folder: Path, backend: str, memory: Memory | None = None) -> tuple[LocalRunner, Recorder, Memory]:
    files = load_model_files(str(folder))
    decoder = spec_of(files.config).load(files.config, files.tensors(), make_ops(backend), max_model_len=64)
    layout = small_layout(files.config)
    memory = memory or Memory(layout, NUM_BLOCKS, memoryview(bytearray(NUM_BLOCKS * layout.bytes_per_block)))
    recorder = Recorder()
    return LocalRunner(decoder, memory, recorder, SCRATCH), recorder, memory


def request(token_ids: list[int], temperature: float = 0.0) -> EngineRequest:
    return EngineRequest(
        request_id="r",
        prompt_token_ids=tuple(token_ids),
        sampling=SamplingParams(max_tokens=8, seed=7, temperature=temperature),
    )


def generate(
    first: ModelRunner, then: ModelRunner, token_ids: list[int], blocks: list[int], count: int, temperature: float
) -> list[int]:
    """Prefill on `first` in one chunk, decode on `then`."""
    asked, sample = request(token_ids, temperature), SampleState(0)
    tokens, start, runner = list(token_ids), 0, first
    for _ in range(count):
        result = runner.execute(plan_of(ScheduledRow(asked, tokens[start:], start, blocks, (sample,))))
        start, runner = len(tokens), then
        sample.output_token_ids.append(result.sampled[0][0].token_id)
        tokens.append(result.sampled[0][0].token_id)
    return tokens[len(token_ids) :]


def test_is_a_model_runner(folder: Path, backend: str) -> None:
    runner, _, memory = make_runner(folder, backend)
    assert isinstance(runner, ModelRunner)
    assert runner.layout is memory.layout
    assert (runner.vocab_size, runner.max_model_len) == (VOCAB, 64)


def test_greedy_tokens_are_those_of_transformers(folder: Path, backend: str) -> None:
    runner, _, _ = make_runner(folder, backend)
    token_ids, model = prompt(10), hf_model("llama")
    expected = list(token_ids)
    for _ in range(6):
        expected.append(int(hf_logits(model, expected)[-1].argmax()))
    assert generate(runner, runner, token_ids, [4, 9, 1, 16], 6, 0.0) == expected[10:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_split_equals_together(folder: Path, backend: str, temperature: float) -> None:
    """Two runners over one memory: the second continues in blocks that the first computed."""
    prefill, _, memory = make_runner(folder, backend)
    decode, _, _ = make_runner(folder, backend, memory)
    together, _, _ = make_runner(folder, backend)
    token_ids = prompt(13, 3)
    split = generate(prefill, decode, token_ids, [4, 9, 1, 16, 2], 6, temperature)
    assert split == generate(together, together, token_ids, [0, 1, 2, 3, 4], 6, temperature)


def test_only_rows_with_samples_are_drawn_from(folder: Path, backend: str) -> None:
    """A chunk in mid-prompt between two rows that end; the second with three continuations."""
    runner, recorder, _ = make_runner(folder, backend)
    states = tuple(SampleState(index) for index in range(4))
    first, middle, last = prompt(5, 1), prompt(4, 2), prompt(6, 3)
    result = runner.execute(
        plan_of(
            ScheduledRow(request(first), first, 0, [0, 1], states[:1]),
            ScheduledRow(request(middle), middle, 0, [2], ()),
            ScheduledRow(request(last), last, 0, [3, 4], states[1:]),
        )
    )
    assert result.step_id == 5
    assert result.step_s > 0
    assert [len(sampled) for sampled in result.sampled] == [1, 0, 3]
    (logits, specs) = recorder.calls[0]
    assert [(place, state.sample_index) for place, _, state in specs] == [(0, 0), (1, 1), (1, 2), (1, 3)]
    expected = [hf_logits(hf_model("llama"), tokens)[-1] for tokens in (first, last)]
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


def test_copies_come_before_rows(folder: Path, backend: str) -> None:
    """A fork: the copied block is written on by the copy's owner in the very same step."""
    runner, recorder, memory = make_runner(folder, backend)
    token_ids = prompt(6, 4)
    runner.execute(plan_of(ScheduledRow(request(token_ids), token_ids, 0, [0, 1], ())))
    before = bytes(memory.buffer)
    forked = ScheduledRow(request(token_ids), [11], 6, [0, 8], (SampleState(0),))
    runner.execute(plan_of(forked, copies=((1, 8),)))
    expected = hf_logits(hf_model("llama"), [*token_ids, 11])[-1]
    np.testing.assert_allclose(recorder.calls[-1][0][0], expected, atol=1e-4, rtol=1e-4)
    size = memory.layout.bytes_per_block
    assert bytes(memory.buffer[: 2 * size]) == before[: 2 * size], "the source belongs to somebody else"


def test_a_chain_of_copies_is_carried_out_in_order(folder: Path, backend: str) -> None:
    runner, recorder, memory = make_runner(folder, backend)
    size = memory.layout.bytes_per_block
    memory.buffer[0:size] = b"\x01" * size
    result = runner.execute(plan_of(copies=((0, 5), (5, 6))))
    assert result.sampled == ()
    assert not recorder.calls
    assert bytes(memory.buffer[6 * size : 7 * size]) == b"\x01" * size


def test_warm_up_and_calibration_touch_scratch_blocks_only(folder: Path, backend: str) -> None:
    """Red if a row of theirs ever lands in a block that a request may hold."""
    runner, recorder, memory = make_runner(folder, backend)
    size = memory.layout.bytes_per_block
    memory.buffer[: SCRATCH[0] * size] = b"\x07" * (SCRATCH[0] * size)
    runner.warm_up()
    measured = runner.measure([(1, 30), (16, 16), (8, 2)])
    assert bytes(memory.buffer[: SCRATCH[0] * size]) == b"\x07" * (SCRATCH[0] * size)
    assert [size[:2] for size in measured] == [(1, 30), (16, 16), (8, 8)]
    assert all(step_s > 0 for _, _, step_s in measured)
    assert not recorder.calls


def test_block_tables_may_be_longer_than_the_context(folder: Path, backend: str) -> None:
    """Room that was taken for later must not be read."""
    runner, recorder, memory = make_runner(folder, backend)
    np.frombuffer(memory.buffer, dtype=np.float32)[:] = np.nan
    token_ids = prompt(BLOCK_SIZE, 5)
    runner.execute(plan_of(ScheduledRow(request(token_ids), token_ids, 0, [0, 1, 2], (SampleState(0),))))
    assert np.isfinite(recorder.calls[0][0]).all()


@pytest.mark.model
@pytest.mark.slow
def test_packaged_model_equals_transformers() -> None:
    """SmolLM2-135M from its 4-bit GGUF, one prompt, against `transformers`' own reading of the same file."""
    files = load_model_files()
    decoder = spec_of(files.config).load(files.config, files.tensors(), TorchOps(), max_model_len=256)
    layout = small_layout(files.config)
    recorder = Recorder()
    memory = Memory(layout, 8, memoryview(bytearray(8 * layout.bytes_per_block)))
    token_ids = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47]
    runner = LocalRunner(decoder, memory, recorder, [7])
    runner.execute(plan_of(ScheduledRow(request(token_ids), token_ids, 0, [3, 0, 5], (SampleState(0),))))
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(str(files.path))["config"]))
    tensors = load_gguf_checkpoint(str(files.path), return_tensors=True, model_to_load=model)["tensors"]
    model = LlamaForCausalLM(model.config).eval()
    absent, unknown = model.load_state_dict(tensors, strict=False)
    assert (absent, unknown) == (["lm_head.weight"], [])  # tied
    np.testing.assert_allclose(recorder.calls[0][0][0], hf_logits(model, token_ids)[-1], atol=1e-3, rtol=1e-3)
