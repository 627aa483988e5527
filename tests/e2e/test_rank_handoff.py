"""Workers with different numbers of ranks, each a process, and with blocks of different sizes hand KV to each other:
tokens and bytes are those of one.

Stages have the bits of any process; ranks that share layers have those of a process that computes in slices. The
runners of real workers and their real transports, without gateway and scheduler. Red when a rank writes elsewhere than
the layout says, when an address says anything of ranks, when a worker's blocks are sent before all ranks wrote, or when
a block that is cut for the receiver has another part of a layer, a head or a window than one that was computed there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, product
from pathlib import Path

import msgspec
import pytest
from test_grouped_serving import model_of
from tiny_folders import write_folder
from transformers import DeepseekV3Config, LlamaConfig, MixtralConfig, Qwen3_5TextConfig

from kept_folders import kept_folder
from relevo.build.configs import WorkerConfig
from relevo.build.serve import plan_serving
from relevo.build.worker import Built, build_model
from relevo.core.baton import SampleState
from relevo.core.cut import LocalBlock
from relevo.core.events import TransferEvent, TransferSealed
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.kv import KVLayout, Reservation
from relevo.core.plan import ScheduledRow
from relevo.core.ports import KVTransport
from relevo.core.request import EngineRequest, SamplingParams
from relevo.kv.arena import Arena
from relevo.kv.transports.registry import TRANSPORTS, OwnEnd
from relevo.policy.worker.block_cut import cut_block
from relevo.policy.worker.table_rules import NO_BLOCK, TableRule, table_rules
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
STATES = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
MODELS = {
    "dense": lambda: LlamaConfig(**SMALL),
    "experts": lambda: MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=3),
    "latent": lambda: DeepseekV3Config(**{**SMALL, **LATENT}),
    "state": lambda: Qwen3_5TextConfig(**SMALL, **STATES),
    "window": lambda: model_of("gemma3").config,
}
Shape = tuple[int | None, int]  # tensor parallel size, pipeline parallel size
ONE: Shape = (None, 1)
Tables = list[list[int]]  # of each KV group
Sizes = tuple[int, int]  # tokens of a block of P and of D
GRID = [(m, s) for m in MODELS for s in product((16, 32), repeat=2) if m != "state" or s[0] == s[1]]  # states are whole


@cache
def folder_of(model: str) -> Path:
    return write_folder(kept_folder("handoff"), MODELS[model]())


def configs(folder: Path, transport: str, sizes: Sizes = (16, 16)) -> list[WorkerConfig]:
    settings = Settings(
        model=str(folder),
        topology="1p1d",
        kv_transport=(transport,),
        num_kv_blocks=32,
        block_size=sizes[0],
        decode_block_size=sizes[1],
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


def step(built: Built, tokens: list[int], start: int, tables: Tables, sample: SampleState) -> None:
    asked = EngineRequest(
        request_id=RequestId("r"),
        prompt_token_ids=tuple(PROMPT),
        sampling=SamplingParams(max_tokens=NUM_OUTPUTS, seed=3, temperature=1.0),
    )
    row = ScheduledRow(asked, tokens, start, tables[0], (sample,), tuple(tables[1:]))
    drawn = built.runner.execute(plan_of(row)).sampled[0][0]
    sample.output_token_ids.append(drawn.token_id)


def prefill(built: Built, tables: Tables) -> SampleState:
    sample = SampleState(0)
    step(built, PROMPT, 0, tables, sample)
    return sample


def decode(built: Built, tables: Tables, sample: SampleState) -> list[int]:
    while len(sample.output_token_ids) < NUM_OUTPUTS:
        step(built, sample.output_token_ids[-1:], len(PROMPT) + len(sample.output_token_ids) - 1, tables, sample)
    return sample.output_token_ids


def content(arena: Arena, tables: Tables) -> list[bytes]:
    """Of what has not slid out of a window. A block of states has nothing behind the last that it has room for."""
    block_bytes, groups = arena.layout.bytes_per_block, arena.layout.groups
    sizes = [block_bytes - block_bytes % (group.state_bytes or block_bytes) for group in groups]
    cut = zip(tables, sizes, strict=True)
    return [bytes(arena.block(block)[:size]) for table, size in cut for block in table if block != NO_BLOCK]


def rules_of(layout: KVLayout) -> list[TableRule]:
    return [TableRule(layout.groups[0], layout.block_size), *table_rules(layout)]


def whole_tables(layout: KVLayout) -> Tables:
    """Nothing slides out."""
    counts = [rule.end(len(PROMPT) + NUM_OUTPUTS) for rule in rules_of(layout)]
    return [list(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]


def seen(layout: KVLayout, tables: Tables, num_tokens: int) -> Tables:
    """The same as far as they reach then; of windows what is seen after the prompt."""
    rules = rules_of(layout)
    ends = [rule.end(num_tokens) for rule in rules]
    firsts = [rule.first(len(PROMPT)) for rule in rules]
    cut = zip(tables, firsts, ends, strict=True)
    return [[NO_BLOCK] * first + table[first:end] for table, first, end in cut]


@cache
def alone(model: str, is_cut: bool, block_size: int = 16) -> tuple[list[int], list[bytes], list[bytes]]:
    """Tokens of one process, and its blocks after the prompt and at the end."""
    with worker(configs(folder_of(model), "tcp", (block_size, block_size))[0], (1, 1) if is_cut else ONE) as built:
        layout, tables = built.runner.layout, whole_tables(built.runner.layout)
        sample = prefill(built, tables)
        after_prompt = content(built.arena, seen(layout, tables, len(PROMPT)))
        tokens = decode(built, tables, sample)
        return tokens, after_prompt, content(built.arena, seen(layout, tables, len(PROMPT) + NUM_OUTPUTS))


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
    [
        ("dense", "tcp", (2, 1), (1, 1)),
        ("latent", "shm", (1, 1), (4, 1)),
        ("experts", "tcp", (2, 2), (1, 2)),
        ("state", "tcp", (2, 1), (1, 2)),
        ("state", "shm", (1, 2), (2, 1)),
    ],
)
def test_a_prompt_of_some_ranks_is_decoded_by_others(model: str, name: str, of_p: Shape, of_d: Shape) -> None:
    hands_over(model, name, of_p, of_d)


@pytest.mark.parametrize(
    ("model", "sizes", "of_p", "of_d"),
    [
        ("dense", (16, 32), (2, 1), (1, 1)),
        ("latent", (32, 16), ONE, ONE),
        ("window", (16, 32), (1, 1), (1, 2)),
        ("window", (32, 16), ONE, ONE),
        ("dense", (16, 24), ONE, ONE),
    ],
)
def test_blocks_are_cut_to_the_size_of_the_receiver(model: str, sizes: Sizes, of_p: Shape, of_d: Shape) -> None:
    hands_over(model, "tcp", of_p, of_d, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("of_d", list(product((1, 2, 4), (1, 2))))
@pytest.mark.parametrize("of_p", list(product((1, 2, 4), (1, 2))))
@pytest.mark.parametrize(("model", "sizes"), GRID)
def test_every_pair_of_shapes(model: str, sizes: Sizes, of_p: Shape, of_d: Shape) -> None:
    hands_over(model, "tcp", of_p, of_d, sizes)


@pytest.mark.parametrize("model", ["experts", pytest.param("latent", marks=pytest.mark.slow)])
def test_experts_that_lie_whole_on_ranks(model: str) -> None:
    """Of two ranks that hand a prompt to one."""
    p, d = configs(folder_of(model), "tcp")
    with worker(d, (1, 1), enable_expert_parallel=True) as one:
        blocks = whole_tables(one.runner.layout)
        expected = decode(one, blocks, prefill(one, blocks)), content(one.arena, blocks)
        counted = one.expert_loads() if one.expert_loads else None
    with worker(p, (2, 1), enable_expert_parallel=True) as two:
        found = decode(two, blocks, prefill(two, blocks)), content(two.arena, blocks)
        assert two.expert_loads is not None and counted is not None
        loads = two.expert_loads()
        assert loads.tokens == counted.tokens, "all tokens, whoever has their experts"
        assert list(map(sum, loads.ranks)) == list(map(sum, loads.tokens)) and not counted.ranks
    assert found == expected
    assert counted is not None
    *inner, last = map(sum, counted.tokens)
    assert set(inner) == {3 * (len(PROMPT) + NUM_OUTPUTS - 1)}
    assert last == 3 * NUM_OUTPUTS, "of a prompt only its last token passes the last layer's experts"


def hands_over(model: str, name: str, of_p: Shape, of_d: Shape, sizes: Sizes = (16, 16)) -> None:
    is_cut = of_p[0] is not None
    (tokens, _, _), (_, after_prompt, at_the_end) = alone(model, is_cut), alone(model, is_cut, sizes[1])
    p, d = configs(folder_of(model), name, sizes)
    shared = None
    if name == "shm":
        with worker(p, ONE) as probe:
            shared = Arena.create(probe.runner.layout, p.num_arena_blocks, shared=True)
    fd = shared.fd if shared is not None else -1
    with worker(p, of_p, fd) as prefilling, worker(d, of_d, fd) as decoding:
        layout = decoding.runner.layout
        scattered = [[d.first_block_id + (5 * block + 2) % d.num_blocks for block in t] for t in whole_tables(layout)]
        theirs, at_last = (seen(layout, scattered, num) for num in (len(PROMPT), len(PROMPT) + NUM_OUTPUTS))
        room = [block for table in theirs for block in table if block != NO_BLOCK]
        reservation = Reservation(
            request_id=RequestId("r"),
            worker_id=WorkerId(d.worker_id),
            epoch=1,
            block_size=d.block_size,
            block_ids=tuple(room),
            generations=(1,) * len(room),
            num_hit_tokens=0,
        )
        woken = threading.Event()
        sender = open_end(name, p, prefilling.arena, woken)
        receiver = open_end(name, d, decoding.arena, threading.Event())
        try:
            receiver.reserve(reservation)
            own = scattered if name == "shm" else whole_tables(prefilling.runner.layout)
            sample = prefill(prefilling, own)
            sender.write(reservation, receiver.address(), 0, sent(own, p.block_size, layout))
            sender.seal(reservation, receiver.address(), len(PROMPT))
            sealed = next_event(sender, woken)
            assert isinstance(sealed, TransferSealed)
            assert sealed.num_bytes == len(room) * layout.bytes_per_block
            assert content(decoding.arena, theirs) == after_prompt
            assert decode(decoding, at_last, sample) == tokens
            assert content(decoding.arena, at_last) == at_the_end
        finally:
            sender.close()
            receiver.close()
    if shared is not None:
        shared.close()


def sent(own: Tables, own_size: int, layout: KVLayout) -> list[LocalBlock]:
    """What goes out of the sender's tables for a receiver of that layout."""
    size, blocks = layout.block_size, list[LocalBlock]()
    for number, (rule, table) in enumerate(zip(rules_of(layout), own, strict=True)):
        for place in rule.tail(len(PROMPT)):
            is_cut = size != own_size
            blocks.append(cut_block(table, own_size, size, place, len(PROMPT), number) if is_cut else table[place])
    return blocks
