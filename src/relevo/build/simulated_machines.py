"""Composes the machines of `relevo simulate`: step times, KV pools and links of each pool of workers.

What does not fit is refused here, in one sentence: weights, one longest request, or figures that are missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from relevo.core.errors import SettingsError, StartError
from relevo.core.kv import KVGroup, KVLayout
from relevo.policy.perf.devices import Device, device
from relevo.policy.perf.engine_constants import DEFAULT_CONSTANTS, EngineConstants
from relevo.policy.perf.known_engines import known_engine
from relevo.policy.perf.memory_plan import MemoryLimits, memory_plan
from relevo.policy.perf.model_shape import ModelShape
from relevo.policy.perf.parallelism import Parallelism
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import StepTimeModel
from relevo.policy.perf.step_work import DeviceWork
from relevo.sim.config import WorkerSpec
from relevo.sim.fleet import Fleet, Machine, Pool
from relevo.sim.tables.live_worker import read_engine_report, read_metrics
from relevo.sim.tables.model_files import read_model_shape
from relevo.sim.tables.small_files import read_small

_CONFIG_FILES = ("config.json", "hf_quant_config.json")
_GIB = 2**30
MAX_BLOCKS = 2**24  # of a worker; arbitrary: a pool is a list of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What runs: a model whose shape is known, or step costs that were measured."""

    model: str | None = None  # a config.json, a folder with one, or a hub id
    engine: str | None = None  # whose measured constants: vllm, sglang, trtllm; None: the defaults
    step_costs: Path | None = None  # a scrape of /metrics, or a report of `bench engine --json`
    kv_value_bytes: float = 2.0  # 1: an 8-bit KV cache
    kv_bytes_per_token: int | None = None  # None: as the model's shape says
    memory_utilization: float = 0.9  # of a device's memory that the engine takes


@dataclass(slots=True)
class Machines:
    """What the model's files and each kind of machine come to, each worked out once."""

    options: ModelOptions
    block_size: int
    shape: ModelShape | None = field(init=False)
    _measured: StepTimeModel | None = field(init=False)
    _times: dict[Machine, StepTimeModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = self.options
        if options.model is None and options.step_costs is None:
            raise SettingsError("nothing says how long a step takes: give --model and --device, or --step-costs FILE")
        self.shape = None if options.model is None else read_shape(options.model)
        if self.shape is not None and not self._grows and options.kv_bytes_per_token is None:
            raise SettingsError(
                f"{self.shape.name} keeps a window or a state in every layer, which pools of blocks do not tell; give"
                " --kv-bytes-per-token and --num-kv-blocks"
            )
        self._measured = None if options.step_costs is None else _read_step_costs(options.step_costs)

    @property
    def _grows(self) -> bool:
        """Some layer keeps every token."""
        return self.shape is not None and self.shape.growing_kv_bytes_per_token(self.options.kv_value_bytes) > 0.0

    @property
    def layout(self) -> KVLayout:
        """Blocks as large as the model's. What lies where in them is not simulated."""
        num_bytes = self.options.kv_bytes_per_token
        if num_bytes is None and self.shape is None:
            raise SettingsError("the size of the KV cache is not known: give --kv-bytes-per-token, or --model")
        if num_bytes is None and self.shape is not None:
            num_bytes = round(self.shape.growing_kv_bytes_per_token(self.options.kv_value_bytes))
        name = "measured" if self.shape is None else self.shape.name
        return KVLayout(name, "float8_e4m3", self.block_size, (KVGroup.latent([0], num_bytes or 0),))

    def workers(self, fleet: Fleet, longest_tokens: int) -> tuple[WorkerSpec, ...]:
        """Raises SettingsError for a pool that cannot hold the model, or a request of `longest_tokens`."""
        specs: list[WorkerSpec] = []
        for pool in fleet.pools:
            machine, num_blocks = pool.machine, self._num_blocks(fleet, pool)
            if num_blocks > MAX_BLOCKS:
                raise SettingsError(
                    f"--topology {fleet.label}: the KV pool of a {pool.role} worker has {num_blocks:,} blocks, and at"
                    f" most {MAX_BLOCKS:,} are simulated; give a larger --block-size, or fewer with --num-kv-blocks"
                )
            if num_blocks * self.block_size < longest_tokens:
                raise SettingsError(
                    f"--topology {fleet.label}: the KV pool of a {pool.role} worker holds"
                    f" {num_blocks * self.block_size:,} tokens and the longest request has {longest_tokens:,}; give it"
                    f" more devices (tp), or leave such requests out with --max-request-tokens"
                )
            specs += [
                WorkerSpec(
                    worker_id=f"{pool.role}-{index}",
                    role=pool.role,
                    times=self._step_times(fleet, machine),
                    num_blocks=num_blocks,
                    box=f"{pool.role}-{index}",
                    max_batched_tokens=machine.batched_tokens,
                    max_prefill_tokens=min(machine.prefill_tokens, machine.batched_tokens),
                    max_running=machine.running,
                    num_devices=machine.num_devices,
                )
                for index in range(pool.num_workers)
            ]
        return tuple(specs)

    def link_bytes_per_s(self, fleet: Fleet) -> float:
        """Of a worker's port to the others, where it is not given: the network of its devices; of the slowest pool."""
        if not any(pool.machine.device for pool in fleet.pools):
            raise SettingsError(f"--topology {fleet.label}: no device says how fast KV travels; give --link-gb-s")
        machines = [pool.machine for pool in fleet.pools]
        return min(_device_of(fleet, each).network_bytes_per_s * each.num_devices for each in machines)

    def front_end_s(self, fleet: Fleet) -> float:
        """What the engine takes of a request outside its steps; of the slowest pool."""
        if self._measured is not None:
            return 0.0
        return max(self._constants(_device_of(fleet, pool.machine)).ttft_floor_s for pool in fleet.pools)

    def _constants(self, kind: Device) -> EngineConstants:
        engine = self.options.engine
        return DEFAULT_CONSTANTS if engine is None else known_engine(engine, kind.name)

    def _step_times(self, fleet: Fleet, machine: Machine) -> StepTimeModel:
        if self._measured is not None:
            return self._measured
        if machine not in self._times:
            assert self.shape is not None
            kind = _device_of(fleet, machine)
            work = DeviceWork(self.shape, kind, _spread(machine), self.options.kv_value_bytes)
            constants = self._constants(kind)
            self._times[machine] = RooflineModel(work, constants)
        return self._times[machine]

    def _num_blocks(self, fleet: Fleet, pool: Pool) -> int:
        machine = pool.machine
        if machine.kv_blocks is not None:
            return machine.kv_blocks
        if self.shape is None or not self._grows:
            raise SettingsError(
                f"--topology {fleet.label}: the KV pool of a {pool.role} worker is not known; give --num-kv-blocks"
            )
        limits = MemoryLimits(
            max_step_tokens=machine.batched_tokens,
            max_rows=machine.running,
            block_size=self.block_size,
            kv_value_bytes=self.options.kv_value_bytes,
            utilization=self.options.memory_utilization,
        )
        kind = _device_of(fleet, machine)
        plan = memory_plan(self.shape, kind, _spread(machine), limits)
        if plan.num_blocks < 1:
            raise SettingsError(
                f"--topology {fleet.label}: {self.shape.name} takes {plan.weight_bytes / _GIB:,.1f} GiB of weights on"
                f" each of {machine.num_devices} {kind.name} of a {pool.role} worker, which have"
                f" {kind.memory_bytes * limits.utilization / _GIB:,.1f} GiB for everything; give it more devices (tp)"
            )
        return plan.num_blocks


def _device_of(fleet: Fleet, machine: Machine) -> Device:
    if not machine.device:
        raise SettingsError(f"--topology {fleet.label} names no device; give --device, such as h100")
    return device(machine.device)


def _spread(machine: Machine) -> Parallelism:
    return Parallelism(tensor=machine.tp, attention_data=machine.dp, expert=machine.ep, pipeline=machine.pp)


def read_shape(model: str, *, is_native: bool = False) -> ModelShape:
    """`is_native`: weights are as the native backend holds them."""
    path = Path(model)
    if path.is_file():
        return read_model_shape(path, is_native=is_native)
    if path.is_dir():
        return read_model_shape(path / _CONFIG_FILES[0], is_native=is_native)
    if model.count("/") != 1 or path.suffix:
        raise SettingsError(f"--model {model} is no file or folder, and no hub id; give a config.json, or ORG/NAME")
    from relevo.engine.loaders.hub import hub_folder  # only where it is asked

    folder = hub_folder(model, None, None, _CONFIG_FILES)
    return read_model_shape(folder / _CONFIG_FILES[0], is_native=is_native)


def _read_step_costs(path: Path) -> StepTimeModel:
    """Of all workers of a scrape the first one's: they are taken to be alike."""
    try:
        text = read_small(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read --step-costs {path}: {error}") from error
    try:
        if text.lstrip().startswith("{"):
            parsed = json.loads(text)
            return read_engine_report(parsed.get("report", parsed))
        return next(iter(read_metrics(text).values()))
    except StopIteration:
        raise SettingsError(f"--step-costs {path}: no worker has computed a step yet; scrape it under load") from None
    except (StartError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SettingsError(f"--step-costs {path}: {error}; give /metrics, or `bench engine --json`") from error
