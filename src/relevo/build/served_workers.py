"""The workers that served, as a traffic log notes them, and worlds of them: as they were, and shared out otherwise.

Step costs are those that the workers measured on themselves. Knows no requests but how many came under which note.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.core.errors import SettingsError
from relevo.core.events import UNKNOWN_COSTS, StepCosts
from relevo.core.ids import WorkerId
from relevo.core.kv import KVGroup, KVLayout
from relevo.core.role import Role, parse_role
from relevo.policy.host.topology import Topology, assign_cores
from relevo.policy.perf.step_time import FittedStepTimes
from relevo.policy.scaling.worker_facts import WorkerFacts
from relevo.sim.config import NetworkSpec, RegionSpec, ServingSpec, WorkerSpec, WorldConfig
from relevo.sim.fleet import Fleet, Machine
from relevo.workload.traces.served import ServingNote


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWorker:
    facts: WorkerFacts
    role: Role
    own_costs: StepCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWorkers:
    """Of one model, at one time."""

    at_s: float
    server: str
    max_model_len: int
    kv_bytes_per_token: int
    enable_prefix_caching: bool
    workers: tuple[ServedWorker, ...]

    @property
    def label(self) -> str:
        """`1p1d`, or the roles."""
        roles = Counter(str(worker.role) for worker in self.workers)
        if roles.keys() <= {"prefill", "decode"} and len(roles) == 2:
            return f"{roles['prefill']}p{roles['decode']}d"
        if roles.keys() == {"hybrid"}:
            return str(Topology(num_hybrid=roles["hybrid"]))
        at_work = {role: count for role, count in roles.items() if role != "standby"}
        return "unified" if at_work == {"unified": 1} else "+".join(f"{count} {role}" for role, count in roles.items())

    @property
    def block_size(self) -> int:
        return self.workers[0].facts.block_size

    @property
    def has_costs(self) -> bool:
        return all(worker.own_costs != UNKNOWN_COSTS or worker.role.is_standby for worker in self.workers)

    @property
    def usual(self) -> Machine:
        """What a worker of another sharing has, unless it is said otherwise; the KV pool is shared out anew."""
        facts = self.workers[0].facts
        return Machine(
            batched_tokens=facts.max_batched_tokens, prefill_tokens=facts.max_prefill_tokens, running=facts.max_running
        )


def served_workers(note: ServingNote) -> ServedWorkers:
    """Raises SettingsError for a note that another version has written."""
    facts = note.facts
    try:
        found = ServedWorkers(
            at_s=note.at_s,
            server=str(facts["server"]),
            max_model_len=int(facts["max_model_len"]),
            kv_bytes_per_token=int(facts["kv_bytes_per_token"] or 1),
            enable_prefix_caching=bool(facts["enable_prefix_caching"]),
            workers=tuple(_worker(row) for row in facts["workers"]),
        )
        if not found.workers or found.block_size < 1:
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingsError(
            "the traffic log's note of what served cannot be read; give --step-costs, or --model and --device"
        ) from error
    return found


def _worker(row: Mapping[str, Any]) -> ServedWorker:
    facts = WorkerFacts(
        worker_id=WorkerId(str(row["worker"])),
        box=str(row["box"]),
        cores=tuple(int(core) for core in row["cores"]),
        costs={int(number): _costs(costs) for number, costs in row["costs"].items()},
        num_blocks=int(row["num_blocks"]),
        block_size=int(row["block_size"]),
        max_batched_tokens=int(row["batched_tokens"]),
        max_prefill_tokens=int(row["prefill_tokens"]),
        max_running=int(row["running"]),
        itl_target_s=float(row["itl_target_s"]),
    )
    return ServedWorker(facts=facts, role=parse_role(str(row["role"])), own_costs=_costs(row["own_costs"]))


def _costs(row: Sequence[float]) -> StepCosts:
    base_s, per_token_s, per_kv_token_s = (float(value) for value in row)
    return StepCosts(base_s=base_s, per_token_s=per_token_s, per_kv_token_s=per_kv_token_s)


def who_served(notes: Sequence[ServingNote], times_s: Sequence[float]) -> tuple[ServedWorkers, tuple[str, ...]]:
    """The workers in the roles under which most requests came, with the costs that they knew last; and what has to be
    said about that. Raises SettingsError where nothing was noted."""
    found = [served_workers(note) for note in notes]
    known = [each for each in found if each.has_costs and each.at_s <= times_s[-1] + 3600.0]
    if not known:
        raise SettingsError(
            "nothing says how long a step takes: the traffic log has no note of the workers that served, so give"
            " --step-costs FILE, or --model and --device"
        )
    starts = [each.at_s for each in known]
    under: Counter[tuple[tuple[str, str], ...]] = Counter()
    for at_s in times_s:
        under[_roles(known[max(0, bisect_right(starts, at_s) - 1)])] += 1
    roles, number = under.most_common(1)[0]
    told = []
    if len(under) > 1:
        told.append(
            f"workers had {len(under)} sets of roles; as served means those of {number:,} of {len(times_s):,} requests"
        )
    servers = {each.server for each in found if times_s[0] <= each.at_s <= times_s[-1]}
    if len(servers) > 1:
        told.append(f"gateways were started {len(servers)} times meanwhile; that emptied caches, and is not simulated")
    return [each for each in known if _roles(each) == roles][-1], tuple(told)


def _roles(served: ServedWorkers) -> tuple[tuple[str, str], ...]:
    return tuple((worker.facts.worker_id, str(worker.role)) for worker in served.workers)


def as_served(served: ServedWorkers, longest_tokens: int) -> WorldConfig:
    specs = tuple(
        WorkerSpec(
            worker_id=worker.facts.worker_id,
            role=str(worker.role),
            times=FittedStepTimes(worker.own_costs),
            num_blocks=worker.facts.num_blocks,
            box=worker.facts.box,
            max_batched_tokens=worker.facts.max_batched_tokens,
            max_prefill_tokens=worker.facts.max_prefill_tokens,
            max_running=worker.facts.max_running,
            itl_target_s=worker.facts.itl_target_s,
            num_devices=max(1, len(worker.facts.cores)),
        )
        for worker in served.workers
    )
    return _world(served, specs, longest_tokens)


def shared_otherwise(
    served: ServedWorkers, fleet: Fleet, longest_tokens: int, itl_target_s: float | None
) -> WorldConfig:
    """Another sharing of the same cores and the same KV memory. Raises SettingsError for what that cannot be."""
    machine = _one_machine(served, fleet)
    numbers = {pool.role: pool.num_workers for pool in fleet.pools}
    topology = Topology(**{f"num_{role}": number for role, number in numbers.items()})
    cores = assign_cores(machine, topology) if machine else [[]] * topology.num_workers
    total_blocks = sum(worker.facts.num_blocks for worker in served.workers)
    machines = {pool.role: pool.machine for pool in fleet.pools}
    template = served.workers[0].facts
    target = template.itl_target_s if itl_target_s is None else itl_target_s
    specs = []
    for (worker_id, role), own in zip(topology.worker_roles(), cores, strict=True):
        each = machines[role]
        num_blocks = each.kv_blocks or total_blocks // topology.num_workers
        if num_blocks * served.block_size < longest_tokens:
            raise SettingsError(
                f"--topology {fleet.label}: the KV pool of a {role} worker holds {num_blocks * served.block_size:,}"
                f" tokens and the longest request has {longest_tokens:,}; give --num-kv-blocks, or leave such requests"
                " out with --max-request-tokens"
            )
        costs = {number: cost for worker in served.workers for number, cost in worker.facts.costs.items()}
        facts = WorkerFacts(
            worker_id=WorkerId(worker_id),
            box=template.box,
            cores=tuple(own),
            costs=costs or {len(template.cores): served.workers[0].own_costs},
            num_blocks=num_blocks,
            block_size=served.block_size,
            max_batched_tokens=each.batched_tokens,
            max_prefill_tokens=min(each.prefill_tokens, each.batched_tokens),
            max_running=each.running,
        )
        specs.append(
            WorkerSpec(
                worker_id=worker_id,
                role=role,
                times=FittedStepTimes(facts.costs_on(len(own))),
                num_blocks=num_blocks,
                box=template.box,
                max_batched_tokens=facts.max_batched_tokens,
                max_prefill_tokens=facts.max_prefill_tokens,
                max_running=facts.max_running,
                itl_target_s=target,
                num_devices=max(1, len(own)),
            )
        )
    return _world(served, tuple(specs), longest_tokens)


def _one_machine(served: ServedWorkers, fleet: Fleet) -> list[int]:
    """Its cores, those of all workers. Empty: the workers share cores, or nothing is known of them."""
    others = {name for pool in fleet.pools for name in ("device", "price") if getattr(pool.machine, name)}
    if others or any(pool.machine.num_devices > 1 for pool in fleet.pools):
        raise SettingsError(
            f"--topology {fleet.label} names devices; on the machine that served only kv_blocks, batched_tokens,"
            " prefill_tokens and running can differ, for others give --model and --device"
        )
    if len({worker.facts.box for worker in served.workers}) > 1:
        raise SettingsError(
            f"--topology {fleet.label}: workers of several machines served, which cannot be shared out anew here; give"
            " --model and --device"
        )
    cores = sorted(core for worker in served.workers for core in worker.facts.cores)
    return cores if len(set(cores)) == len(cores) and all(worker.facts.cores for worker in served.workers) else []


def _world(served: ServedWorkers, specs: tuple[WorkerSpec, ...], longest_tokens: int) -> WorldConfig:
    layout = KVLayout("served", "float8_e4m3", served.block_size, (KVGroup.latent([0], served.kv_bytes_per_token),))
    return WorldConfig(
        regions=(RegionSpec(workers=specs),),
        serving=ServingSpec(
            layout=layout,
            max_model_len=max(served.max_model_len, longest_tokens),
            enable_prefix_caching=served.enable_prefix_caching,
        ),
        network=NetworkSpec(shares_memory=True),
    )
