"""What `relevo plan memory` answers: a model's bytes on devices, rank by rank, and the contexts that are left room for.

Composes and shapes the answer; what a rank holds is `policy.perf.rank_memory`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table

from relevo.build.expert_loads import Loads
from relevo.core.errors import SettingsError
from relevo.core.kv import DTYPE_BYTES
from relevo.policy.perf.expert_placement import ExpertWaits, expert_waits
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.rank_memory import (
    LayoutMemory,
    MemoryAsk,
    StageMemory,
    check_split,
    layout_memory,
    possible_layouts,
)
from relevo.policy.scaling.inventory import Holding

GIB = 2**30
KV_DTYPES = ("bfloat16", "float16", "float8_e4m3", "int8", "float32")
_CONTEXTS = (2_048, 8_192, 32_768, 131_072, 262_144, 1_048_576, 10_485_760)  # arbitrary: round ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Of the layout; None: the best is looked for."""

    tensor: int | None = None
    pipeline: int | None = None
    decode_context: int | None = None
    has_expert_groups: bool = False  # ranks hold whole experts
    num_redundant_experts: int = 0  # of each layer, beside one of each


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnswer:
    shape: ModelShape
    holding: Holding
    ask: MemoryAsk
    layouts: tuple[LayoutMemory, ...]  # the best first
    contexts: tuple[int, ...]  # tokens
    expert_loads: Loads | None = None

    @property
    def best(self) -> LayoutMemory:
        return self.layouts[0]

    def expert_waits(self, layout: LayoutMemory) -> ExpertWaits | None:
        """None: nothing is known of loads."""
        parallelism = layout.parallelism
        if self.expert_loads is None:
            return None
        return expert_waits(self.expert_loads, parallelism.expert, parallelism.redundant_experts)

    @property
    def fits(self) -> bool:
        return self.best.missing_bytes == 0.0 and self.best.num_tokens > 0


def kv_value_bytes(dtype: str) -> float:
    """Raises SettingsError."""
    if dtype not in KV_DTYPES:
        raise SettingsError(f"--kv-dtype {dtype} is not known; use one of {', '.join(KV_DTYPES)}")
    return float(DTYPE_BYTES[dtype])


def answer_memory(
    shape: ModelShape, holdings: Sequence[Holding], wanted: Wanted, ask: MemoryAsk, expert_loads: Loads | None = None
) -> MemoryAnswer:
    """Raises SettingsError for a layout that these devices or this model cannot have."""
    if expert_loads is not None and not wanted.has_expert_groups:
        raise SettingsError("--expert-load says how even ranks of whole experts are; add --ep, or leave it out")
    if len(holdings) > 1:
        raise SettingsError("--devices names several kinds; a worker's ranks are alike, so ask for each by itself")
    holding = holdings[0]
    asked = _layouts(shape, holding.num_devices, wanted)
    layouts = sorted((layout_memory(shape, each, ask) for each in asked), key=_rank)
    longest = ask.limits.max_sequence_tokens
    contexts = tuple(sorted({each for each in _CONTEXTS if each < longest} | {longest}))
    return MemoryAnswer(
        shape=shape,
        holding=holding,
        ask=ask,
        layouts=tuple(layouts),
        contexts=contexts,
        expert_loads=expert_loads,
    )


def _rank(layout: LayoutMemory) -> tuple[float, int, int]:
    """Least first: what fits, with most tokens, in few stages (a token passes them one after the other)."""
    return layout.missing_bytes, -layout.num_tokens, layout.parallelism.pipeline


def _layouts(shape: ModelShape, num_devices: int, wanted: Wanted) -> list[Parallelism]:
    tensor, pipeline = wanted.tensor, wanted.pipeline
    if tensor is not None and pipeline is None and num_devices % tensor == 0:
        pipeline = num_devices // tensor
    if pipeline is not None and tensor is None and num_devices % pipeline == 0:
        tensor = num_devices // pipeline
    if wanted.tensor or wanted.pipeline:
        if tensor is None or pipeline is None or tensor * pipeline != num_devices:
            given = f"--tp {wanted.tensor or 1} and --pp {wanted.pipeline or 1}"
            raise SettingsError(f"{given} do not use {num_devices} devices; their product must be {num_devices}")
        context = wanted.decode_context or 1
        check_split(shape, Parallelism(tensor=tensor, pipeline=pipeline, decode_context=context))
    found = [
        each
        for each in possible_layouts(shape, num_devices)
        if tensor in (None, each.tensor) and pipeline in (None, each.pipeline)
    ]
    if wanted.decode_context is not None:
        cut = {(each.tensor, each.pipeline) for each in found}
        context = wanted.decode_context
        found = [Parallelism(tensor=t, pipeline=p, decode_context=context) for t, p in sorted(cut) if t % context == 0]
        found = [each for each in found if _can_be(shape, each)]
    if not found:
        raise SettingsError(
            f"no layout of {shape.name} uses {num_devices} devices as one worker"
            f"{f' with --dcp {wanted.decode_context}' if wanted.decode_context else ''}; give another number of devices"
        )
    if not wanted.has_expert_groups:
        if wanted.num_redundant_experts:
            raise SettingsError("--num-redundant-experts are copies of whole experts; add --ep, or leave it out")
        return found
    if shape.experts is None:
        raise SettingsError(f"--ep divides experts and {shape.name} has none; leave it out")
    num_redundant = wanted.num_redundant_experts
    split = [replace(each, expert=each.tensor, redundant_experts=num_redundant) for each in found]
    possible = [each for each in split if _can_be(shape, each)] if num_redundant else split
    for each in possible or split:
        check_split(shape, each)
    return possible


def _can_be(shape: ModelShape, parallelism: Parallelism) -> bool:
    try:
        check_split(shape, parallelism)
    except SettingsError:
        return False
    return True


def layout_name(parallelism: Parallelism) -> str:
    """As flags: tp4 pp2 dcp4."""
    parts = [f"tp{parallelism.tensor}", f"pp{parallelism.pipeline}"]
    parts += [f"ep{parallelism.expert}"] if parallelism.expert > 1 else []
    parts += [f"+{parallelism.redundant_experts}"] if parallelism.redundant_experts else []
    parts += [f"dcp{parallelism.decode_context}"] if parallelism.decode_context > 1 else []
    return " ".join(parts)


def memory_tables(answer: MemoryAnswer) -> Iterator[Table]:
    """The layouts, the best one's ranks, its KV, and the contexts that it has room for."""
    yield _layouts_table(answer)
    yield _ranks_table(answer)
    yield _groups_table(answer)
    if answer.fits:
        yield _contexts_table(answer)


def _layouts_table(answer: MemoryAnswer) -> Table:
    title = f"{answer.shape.name} on {answer.holding.num_devices} {answer.holding.device.name}"
    table = _table(title, "layout", "weights, all ranks", "KV, all ranks", "one sequence, tokens", "missing on a rank")
    for layout in answer.layouts:
        table.add_row(
            layout_name(layout.parallelism),
            _gib(layout.weight_bytes),
            _gib(layout.kv_bytes),
            f"{layout.num_tokens:,}",
            _gib(layout.missing_bytes) if layout.missing_bytes else "-",
        )
    return table


def _ranks_table(answer: MemoryAnswer) -> Table:
    headings = ("ranks", "layers", "weights", "activations", "runtime", "reserved", "KV", "of the device")
    table = _table(f"Each rank of {layout_name(answer.best.parallelism)}", *headings)
    for number, stage in enumerate(answer.best.stages):
        table.add_row(
            _ranks(answer, number),
            f"{stage.layers.start}-{stage.layers.stop - 1}",
            *(_gib(size) for size in _parts(stage)),
            _gib(answer.ask.device_bytes),
        )
    return table


def _parts(stage: StageMemory) -> tuple[float, ...]:
    return stage.weight_bytes, stage.activation_bytes, stage.runtime_bytes, stage.bounded_bytes, stage.free_bytes


def _groups_table(answer: MemoryAnswer) -> Table:
    headings = ("ranks", "KV group", "cut over", "a token, bytes on a rank", "a sequence, bytes on a rank")
    table = _table("KV by group and rank", *headings)
    for number, stage in enumerate(answer.best.stages):
        for cache in stage.caches:
            table.add_row(
                _ranks(answer, number),
                str(cache.group),
                str(cache.num_shards),
                f"{cache.token_bytes:,.0f}",
                f"{cache.sequence_bytes:,.0f}",
            )
    return table


def _contexts_table(answer: MemoryAnswer) -> Table:
    table = _table("Room by context", "context", "sequences at once", "tokens")
    for context in answer.contexts:
        count = answer.best.num_sequences(context)
        table.add_row(f"{context:,}", f"{count:,}", f"{count * context:,}")
    return table


def _ranks(answer: MemoryAnswer, stage: int) -> str:
    count = answer.best.parallelism.num_ranks
    return f"{stage * count}-{(stage + 1) * count - 1}" if count > 1 else str(stage)


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def memory_sentences(answer: MemoryAnswer) -> Iterator[str]:
    """What a reader has to know beside the tables."""
    if not answer.fits:
        missing = answer.best.missing_bytes
        short = f"the fullest rank lacks {_gib(missing)}" if missing else "nothing is left for KV"
        yield f"it does not fit: at best ({layout_name(answer.best.parallelism)}) {short}; give more devices"
    if (waits := answer.expert_waits(answer.best)) is not None:
        copies = answer.best.parallelism.redundant_experts
        yield (
            f"under these loads experts in order keep ranks waiting for one that computes {waits.in_order:.2f} times"
            f" the mean; placed by load{f', with {copies} copies,' if copies else ''} {waits.placed:.2f} times"
        )
        yield "`relevo serve` places them so with --expert-load and --num-redundant-experts; without, in order"
    yield "text model only: vision towers and layers that draft tokens are not counted"
    if answer.ask.is_native:
        yield (
            "counted is what the native backend holds of a model on this machine, one worker, pages of a full cache"
            " included; a gateway and the supervisor take some 250 MB beside it"
        )
    elif answer.ask.overhead_bytes is None:
        yield (
            "runtime is contexts, libraries and CUDA graphs as measured on H100; an engine that measures free memory"
            " after its start knows better: state that as --overhead-gib"
        )
    if any(cache.group.is_bounded for stage in answer.best.stages for cache in stage.caches):
        yield (
            "windows, chunks and states stop growing: they are reserved for one sequence of the longest context, and"
            " counted for each of those in the last table"
        )


def memory_json(answer: MemoryAnswer) -> dict[str, Any]:
    """Keys end in their unit. Documented in docs/guides/plan.md."""
    return {
        "model": answer.shape.name,
        "devices": {"name": answer.holding.device.name, "num_devices": answer.holding.num_devices},
        "fits": answer.fits,
        "asked": asdict(answer.ask),
        "layouts": [_layout_json(layout, answer) for layout in answer.layouts],
    }


def _layout_json(layout: LayoutMemory, answer: MemoryAnswer) -> dict[str, Any]:
    return {
        "layout": asdict(layout.parallelism),
        "weight_bytes": layout.weight_bytes,
        "kv_bytes": layout.kv_bytes,
        "num_tokens": layout.num_tokens,
        "missing_bytes": layout.missing_bytes,
        "expert_waits": asdict(waits) if (waits := answer.expert_waits(layout)) is not None else None,
        "stages": [_stage_json(stage) for stage in layout.stages],
        "contexts": [
            {"context_tokens": context, "num_sequences": layout.num_sequences(context)} for context in answer.contexts
        ],
    }


def _stage_json(stage: StageMemory) -> dict[str, Any]:
    return {
        "first_layer": stage.layers.start,
        "num_layers": len(stage.layers),
        "weight_bytes": stage.weight_bytes,
        "activation_bytes": stage.activation_bytes,
        "runtime_bytes": stage.runtime_bytes,
        "bounded_bytes": stage.bounded_bytes,
        "free_bytes": stage.free_bytes,
        "groups": [
            {
                "kind": cache.group.kind.value,
                "layers": list(cache.group.layers),
                "num_shards": cache.num_shards,
                "token_bytes": cache.token_bytes,
                "sequence_bytes": cache.sequence_bytes,
            }
            for cache in stage.caches
        ],
    }
