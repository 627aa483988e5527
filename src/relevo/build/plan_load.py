"""Composes the load of `relevo plan`: a trace, the ledger's lengths, or made-up sessions, and what it asks for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from relevo.build.plan_options import PlanOptions, warm_requests
from relevo.build.served_history import HistoryAsk, read_history
from relevo.core.errors import SettingsError
from relevo.gateway.metering.database import Connection
from relevo.policy.scaling.demand import Demand
from relevo.sim.planned_load import Piece, demand_of, opened, piece_of
from relevo.sim.workload_facts import WorkloadFacts, workload_facts
from relevo.workload.generated import generate
from relevo.workload.requests import Workload, WorkloadRequest
from relevo.workload.timing import Timing, time_workload
from relevo.workload.traces.files import read_trace_file

_MOST_BLOCKS = 64  # of a made-up prompt, about: coarser blocks than those of engines are quicker. Arbitrary
_BLOCK_SIZES = (16, 32, 64, 128, 256, 512)
PLAIN_BLOCK_SIZE = 16
_NUM_MADE_UP = 2000  # at least; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLoad:
    facts: WorkloadFacts
    demand: Demand
    piece: Piece
    block_size: int


def plan_load(options: PlanOptions, connection: Connection | None, now_ms: int) -> PlanLoad:
    """`connection`: to the ledger, if it is asked. Raises SettingsError, StartError."""
    source, workload, rate = _workload(options, connection, now_ms)
    requests = opened(_short(workload.requests, options.max_request_tokens), options.targets)
    if len(requests) < 2:
        raise SettingsError(f"{source}: {len(requests)} requests are too few to plan for")
    if options.made_up is not None:  # from where as many sessions run as always will, to where the first are missing
        requests = requests[len(requests) // 4 : 3 * len(requests) // 4]
    timed = Workload(requests=requests, notes=workload.notes)
    facts = workload_facts(source, timed)
    return PlanLoad(
        facts=facts,
        demand=demand_of(requests, options.rate_per_s or rate),
        piece=piece_of(requests, options.num_simulated, warm_requests(options)),
        block_size=facts.hash_block_size or PLAIN_BLOCK_SIZE,
    )


def _workload(options: PlanOptions, connection: Connection | None, now_ms: int) -> tuple[str, Workload, float | None]:
    """What it is called, its requests with times, and its rate if that is not the one of the times."""
    if options.trace is not None:
        timing = Timing(rate_per_s=options.rate_per_s, seed=options.seed)
        return options.trace.name, _timed(read_trace_file(options.trace, options.reading), timing, options.trace), None
    if options.made_up is not None:
        made_up = options.made_up
        rng = random.Random(f"workload:{options.seed}")
        number = max(_NUM_MADE_UP, 3 * (options.num_simulated + warm_requests(options)), 40 * made_up.turns)
        rows = list(islice(generate(made_up.sessions, rng, _block_size(made_up.mean_prompt_tokens)), number))
        rate = options.rate_per_s or made_up.requests_per_s
        timed = time_workload(
            Workload(requests=rows, notes=(made_up.sentence,)),
            Timing(rate_per_s=rate / made_up.turns, seed=options.seed),
        )
        return "made up", timed, rate
    assert connection is not None and options.ledger_days is not None
    return _from_ledger(options, connection, now_ms)


def _block_size(mean_prompt_tokens: float) -> int:
    return next((size for size in _BLOCK_SIZES if size * _MOST_BLOCKS >= mean_prompt_tokens), _BLOCK_SIZES[-1])


def _timed(workload: Workload, timing: Timing, path: object) -> Workload:
    try:
        return time_workload(workload, timing)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def _short(requests: Sequence[WorkloadRequest], most: int | None) -> list[WorkloadRequest]:
    return [r for r in requests if most is None or r.num_prompt_tokens + r.num_output_tokens <= most]


def _from_ledger(options: PlanOptions, connection: Connection, now_ms: int) -> tuple[str, Workload, None]:
    """The busiest hour of the last days: lengths and times, and chains where they were kept; never text."""
    ask = HistoryAsk(
        days=options.ledger_days or 0, folder=options.traffic_folder, model=options.ledger_model, now_ms=now_ms
    )
    busiest = read_history(ask, connection).busiest_hour()
    return busiest.source, busiest.workload(), None
