"""What could be built: kinds of workers, stages of them, and whole candidates; what cannot be is refused with a reason.

A kind is one worker's devices, parallelism and budgets; a stage is so many workers of a kind with a role; a candidate
is one unified stage, or one that computes prompts and one that decodes, on the same or on different devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from relevo.core.errors import SettingsError
from relevo.core.role import DECODE, PREFILL, UNIFIED, Role
from relevo.policy.perf.devices import Device
from relevo.policy.perf.memory_plan import MemoryLimits, MemoryPlan, memory_plan
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.reshard import USUAL_PAGE_TOKENS
from relevo.policy.scaling.inventory import Holding

GIB = 2**30
ROWS_PER_RANK = 256  # requests that decode at a time on an attention rank; what engines take unless told otherwise
SPLIT_CHUNK = 8192  # tokens of a step where nothing decodes beside them
UNIFIED_CHUNKS = (512, 2048, 8192)  # what a unified worker computes of prompts in a step with decodes
_PIPELINES = (1, 2, 4)
_TENSORS = (1, 2, 4, 8)
_WIDTHS = (8, 16)  # ranks of attention data parallelism with experts spread over them
_MOST_DEVICES = 16  # of one worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What neither model nor device says, the same for all candidates."""

    start_s: float = 300.0  # from ordering a worker until it serves. Arbitrary: measure it
    tokens_per_step: float = 1.0  # that speculation brings to a row in a step, its own token included
    num_drafted: int = 0  # tokens that a step verifies for a row besides
    cpu_cache_bytes: float = 0.0  # of a worker, for the KV of prompts
    cpu_link_bytes_per_s: float = 50e9  # from there. PCIe 5 x16, as measured copies reach it
    page_tokens: int = USUAL_PAGE_TOKENS  # of the engine's KV cache: how small the pieces of a handoff are
    link_bytes_per_s: float | None = None  # KV out of a worker; None: its devices' network
    kv_value_bytes: float = 2.0
    utilization: float = 0.9  # of a device's memory

    def __post_init__(self) -> None:
        if not 1.0 <= self.tokens_per_step <= 1.0 + self.num_drafted:
            raise SettingsError(
                f"{self.tokens_per_step:g} tokens a step cannot come of {self.num_drafted} drafted ones and one more;"
                " give both --tokens-per-step and --draft-tokens"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    device: Device
    parallelism: Parallelism
    chunk_tokens: int  # of prompts in a step
    max_rows: int  # requests that decode at a time
    block_size: int = 16
    price_per_h: float | None = None  # of one device
    memory: MemoryPlan = field(compare=False, repr=False)

    @property
    def num_devices(self) -> int:
        return self.parallelism.num_devices

    @property
    def spread(self) -> str:
        """tp4, tp2 pp2, dp8 ep8."""
        p = self.parallelism
        sizes = (("tp", p.tensor), ("dp", p.attention_data), ("ep", p.expert), ("pp", p.pipeline))
        return " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "tp1"


@dataclass(frozen=True, slots=True)
class Stage:
    role: Role
    kind: WorkerKind
    num_workers: int

    @property
    def num_devices(self) -> int:
        return self.num_workers * self.kind.num_devices

    @property
    def cost_per_h(self) -> float | None:
        return None if self.kind.price_per_h is None else self.num_devices * self.kind.price_per_h

    @property
    def num_pool_tokens(self) -> int:
        return self.num_workers * self.kind.memory.num_pool_tokens


@dataclass(frozen=True, slots=True)
class Candidate:
    stages: tuple[Stage, ...]

    @property
    def is_split(self) -> bool:
        return len(self.stages) > 1

    @property
    def num_devices(self) -> int:
        return sum(stage.num_devices for stage in self.stages)

    @property
    def cost_per_h(self) -> float | None:
        """Of all machines, idle ones included."""
        costs = [stage.cost_per_h for stage in self.stages]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    @property
    def weight(self) -> float:
        """What candidates are compared by: their cost, or how many devices where there are no prices."""
        return float(self.num_devices) if self.cost_per_h is None else self.cost_per_h

    @property
    def label(self) -> str:
        if not self.is_split:
            return f"{self.stages[0].num_workers}U"
        return f"{self.stages[0].num_workers}P:{self.stages[1].num_workers}D"

    @property
    def layout(self) -> str:
        """The label with what each stage is."""
        letters = {PREFILL: "P", DECODE: "D", UNIFIED: "U"}
        parts = (f"{s.num_workers}{letters[s.role]} {s.kind.spread} {s.kind.device.name}" for s in self.stages)
        return " + ".join(parts)

    def with_workers(self, role: Role, change: int) -> Candidate | None:
        """With more or fewer of one role; None where none would be left."""
        stages = tuple(Stage(s.role, s.kind, s.num_workers + change) if s.role == role else s for s in self.stages)
        return None if min(stage.num_workers for stage in stages) < 1 else Candidate(stages)

    def fits(self, holdings: Sequence[Holding]) -> bool:
        """Whether there are as many devices."""
        for holding in holdings:
            if sum(s.num_devices for s in self.stages if s.kind.device is holding.device) > holding.num_devices:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Refused:
    """A kind that is not built, and why. `missing_bytes`: of memory on each device."""

    name: str
    reason: str
    missing_bytes: float = 0.0


def parallelisms(shape: ModelShape, device: Device, num_devices: int) -> Iterator[Parallelism]:
    """Every way worth a look to spread one worker over at most so many devices."""
    most = min(num_devices, _MOST_DEVICES)
    for tensor in _TENSORS:
        for stages in _PIPELINES:
            if tensor * stages <= most and tensor <= device.num_link_devices and stages <= shape.num_layers:
                yield Parallelism(tensor=tensor, pipeline=stages)
    if shape.experts:
        for width in _WIDTHS:
            if width <= most and shape.experts.num_experts % width == 0:
                yield Parallelism(attention_data=width, expert=width)


def worker_kind(
    shape: ModelShape,
    holding: Holding,
    spread: Parallelism,
    assumed: Assumptions,
    *,
    chunk_tokens: int,
    longest_tokens: int,
    block_size: int,
) -> WorkerKind | Refused:
    """Refused where weights, a step, or one longest request do not fit."""
    device = holding.device
    limits = MemoryLimits(
        max_step_tokens=chunk_tokens,
        max_rows=ROWS_PER_RANK,
        block_size=block_size,
        kv_value_bytes=assumed.kv_value_bytes,
        utilization=assumed.utilization,
    )
    plan = memory_plan(shape, device, spread, limits)
    kind = WorkerKind(
        device=device,
        parallelism=spread,
        chunk_tokens=chunk_tokens,
        max_rows=ROWS_PER_RANK * spread.attention_data,
        block_size=block_size,
        price_per_h=holding.price_per_h,
        memory=plan,
    )
    name = f"{device.name} {kind.spread}"
    has_bytes = device.memory_bytes * assumed.utilization
    needed = plan.weight_bytes + plan.activation_bytes + plan.runtime_bytes + plan.bounded_bytes
    if plan.num_blocks < 1:
        reason = (
            f"weights and a step take {needed / GIB:,.1f} GiB of each device and {has_bytes / GIB:,.1f} GiB are there:"
            f" {(needed - has_bytes) / GIB:,.1f} GiB missing"
        )
        return Refused(name, reason, needed - has_bytes)
    holds = plan.num_pool_tokens // spread.attention_data  # a sequence lives on one rank of those with requests of own
    if holds < longest_tokens:
        token_bytes = plan.kv_bytes / (plan.num_pool_tokens / spread.attention_data)
        missing = (longest_tokens - holds) * token_bytes
        return Refused(
            name,
            f"its KV pool holds {holds:,} tokens and the longest request has {longest_tokens:,}:"
            f" {missing / GIB:,.2f} GiB missing on each device",
            missing,
        )
    return kind
