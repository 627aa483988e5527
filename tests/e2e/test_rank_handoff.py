"""Workers with different numbers of ranks, each a process, hand KV to each other: tokens and bytes are those of one.

Stages have the bits of any process; ranks that share layers have those of a process that computes in slices. The
runners of real workers and their real transports, without gateway and scheduler. Red when a rank writes elsewhere than
the layout says, when an address says anything of ranks, or when a worker's blocks are sent before all ranks wrote.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path

import msgspec
import pytest
from tiny_folders import write_folder
from transformers import DeepseekV3Config, LlamaConfig, MixtralConfig

from kept_folders import kept_folder
from relevo.build.configs import WorkerConfig
from relevo.build.serve import plan_serving
from relevo.build.worker import Built, build_model
from relevo.core.baton import SampleState
from relevo.core.events import TransferEvent, TransferSealed
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import Reservation
from relevo.core.plan import ScheduledRow
from relevo.core.ports import KVTransport
from relevo.core.request import EngineRequest, SamplingParams
from relevo.kv.arena import Arena
from relevo.kv.transports.registry import TRANSPORTS, OwnEnd
from relevo.settings import Settings
from step_plans import plan_of

WAIT_S = 60.0
NUM_OUTPUTS = 8
PROMPT = [(5 + 11 * place) % 256 for place in range(75)]
SECRET = b"of one start of one server, only"
SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # fewer than ranks
    "max_position_embeddings": 256,
}
LATENT = {
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
MODELS = {
    "dense": lambda: LlamaConfig(**SMALL),
    "experts": lambda: MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=3),
    "latent": lambda: DeepseekV3Config(**{**SMALL, **LATENT}),
}
Shape = tuple[int | None, int]  # tensor parallel size, pipeline parallel size
ONE: Shape = (None, 1)


@cache
def folder_of(model: str) -> Path:
    return write_folder(kept_folder("handoff"), MODELS[model]())


def configs(folder: Path, transport: str) -> list[WorkerConfig]:
    settings = Settings(
        model=str(folder),
        topology="1p1d",
        kv_transport=(transport,),
        num_kv_blocks=16,
        max_model_len=128,
        backend="native",
        share_cores=True,
    )
    return list(plan_serving(settings).workers)


@contextmanager
def worker(config: WorkerConfig, shape: Shape, arena_fd: int = -1, **changes: bool) -> Iterator[Built]:
    tensor, pipeline = shape
    asked = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "arena_fd": arena_fd}
    built = build_model(msgspec.structs.replace(config, **asked, **changes), lambda status: None)
    try:
        yield built
    finally:
        if built.ranks is not None:
            built.ranks.close()


def step(built: Built, tokens: list[int], start: int, blocks: list[int], sample: SampleState) -> None:
    asked = EngineRequest(
        request_id=RequestId("r"),
        prompt_token_ids=tuple(PROMPT),
        sampling=SamplingParams(max_tokens=NUM_OUTPUTS, seed=3, temperature=1.0),
    )
    drawn = built.runner.execute(plan_of(ScheduledRow(asked, tokens, start, blocks, (sample,)))).sampled[0][0]
    sample.output_token_ids.append(drawn.token_id)


def prefill(built: Built, blocks: list[int]) -> SampleState:
    sample = SampleState(0)
    step(built, PROMPT, 0, blocks, sample)
    return sample


def decode(built: Built, blocks: list[int], sample: SampleState) -> list[int]:
    while len(sample.output_token_ids) < NUM_OUTPUTS:
        step(built, sample.output_token_ids[-1:], len(PROMPT) + len(sample.output_token_ids) - 1, blocks, sample)
    return sample.output_token_ids


def content(arena: Arena, blocks: list[int]) -> list[bytes]:
    return [bytes(arena.block(block)) for block in blocks]


@cache
def alone(model: str, is_cut: bool) -> tuple[list[int], list[bytes], list[bytes]]:
    """Tokens of one process, and its blocks after the prompt and at the end."""
    with worker(configs(folder_of(model), "tcp")[0], (1, 1) if is_cut else ONE) as built:
        blocks = list(range(6))
        sample = prefill(built, blocks)
        after_prompt = content(built.arena, blocks)
        return decode(built, blocks, sample), after_prompt, content(built.arena, blocks)


def open_end(name: str, config: WorkerConfig, arena: Arena, woken: threading.Event) -> KVTransport:
    ref = WorkerRef(WorkerId(config.worker_id), 1)
    return TRANSPORTS[name].open(OwnEnd(worker=ref, arena=arena, secret=SECRET, on_wake=woken.set))


def next_event(transport: KVTransport, woken: threading.Event) -> TransferEvent:
    while not (events := transport.poll()):
        assert woken.wait(WAIT_S), "nothing was sealed"
        woken.clear()
    return events[0]


@pytest.mark.parametrize(("of_p", "of_d"), [((None, 2), ONE), pytest.param(ONE, (None, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_a_prompt_of_some_stages_is_decoded_by_others(name: str, of_p: Shape, of_d: Shape) -> None:
    hands_over("dense", name, of_p, of_d)


@pytest.mark.parametrize(
    ("model", "name", "of_p", "of_d"),
    [("dense", "tcp", (2, 1), (1, 1)), ("latent", "shm", (1, 1), (4, 1)), ("experts", "tcp", (2, 2), (1, 2))],
)
def test_a_prompt_of_some_ranks_is_decoded_by_others(model: str, name: str, of_p: Shape, of_d: Shape) -> None:
    hands_over(model, name, of_p, of_d)


@pytest.mark.slow
@pytest.mark.parametrize("of_d", list(product((1, 2, 4), (1, 2))))
@pytest.mark.parametrize("of_p", list(product((1, 2, 4), (1, 2))))
@pytest.mark.parametrize("model", MODELS)
def test_every_pair_of_shapes(model: str, of_p: Shape, of_d: Shape) -> None:
    hands_over(model, "tcp", of_p, of_d)


@pytest.mark.parametrize("model", ["experts", pytest.param("latent", marks=pytest.mark.slow)])
def test_experts_that_lie_whole_on_ranks(model: str) -> None:
    """Of two ranks that hand a prompt to one."""
    p, d = configs(folder_of(model), "tcp")
    with worker(d, (1, 1), enable_expert_parallel=True) as one:
        blocks = list(range(6))
        expected = decode(one, blocks, prefill(one, blocks)), content(one.arena, blocks)
    with worker(p, (2, 1), enable_expert_parallel=True) as two:
        found = decode(two, blocks, prefill(two, blocks)), content(two.arena, blocks)
    assert found == expected


def hands_over(model: str, name: str, of_p: Shape, of_d: Shape) -> None:
    tokens, after_prompt, at_the_end = alone(model, of_p[0] is not None)
    p, d = configs(folder_of(model), name)
    shared = None
    if name == "shm":
        with worker(p, ONE) as probe:
            shared = Arena.create(probe.runner.layout, p.num_arena_blocks, shared=True)
    fd = shared.fd if shared is not None else -1
    with worker(p, of_p, fd) as prefilling, worker(d, of_d, fd) as decoding:
        theirs = [d.first_block_id + number for number in (4, 9, 1, 7, 2)]
        reservation = Reservation(
            request_id=RequestId("r"),
            worker_id=WorkerId(d.worker_id),
            epoch=1,
            block_ids=tuple(theirs),
            generations=(1,) * len(theirs),
            num_hit_tokens=0,
        )
        woken = threading.Event()
        sender = open_end(name, p, prefilling.arena, woken)
        receiver = open_end(name, d, decoding.arena, threading.Event())
        try:
            receiver.reserve(reservation)
            own = theirs if name == "shm" else list(range(len(theirs)))
            sample = prefill(prefilling, own)
            sender.write(reservation, receiver.address(), 0, own)
            sender.seal(reservation, receiver.address(), len(PROMPT))
            assert isinstance(next_event(sender, woken), TransferSealed)
            assert content(decoding.arena, theirs) == after_prompt[: len(theirs)]
            blocks = [*theirs, d.first_block_id + 11]
            assert decode(decoding, blocks, sample) == tokens
            assert content(decoding.arena, blocks) == at_the_end
        finally:
            sender.close()
            receiver.close()
    if shared is not None:
        shared.close()
