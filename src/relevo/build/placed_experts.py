"""What `--expert-load` and `--num-redundant-experts` ask for: where the whole experts of a tensor group lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo.build.configs import WorkerConfig
from relevo.build.expert_loads import Loads, read_expert_loads
from relevo.core.errors import SettingsError
from relevo.core.model import ExpertRanks, ModelConfig
from relevo.policy.perf.expert_placement import check_copies, expert_waits, in_order, place_experts

if TYPE_CHECKING:  # a worker reads none
    from relevo.settings import Settings


def asked_expert_loads(settings: Settings, model: ModelConfig) -> Loads | None:
    """None: no file is named. Raises SettingsError."""
    return None if settings.expert_load is None else read_expert_loads(settings.expert_load, model.experts)


def placed_experts(settings: Settings, loads: Loads | None, group_size: int | None) -> ExpertRanks:
    """By layer; empty: in order, each once. `group_size`: None: the model is not cut. Raises SettingsError."""
    num_redundant = settings.num_redundant_experts
    if settings.expert_load is None:
        if num_redundant:
            raise SettingsError(
                f"--num-redundant-experts {num_redundant} are copies of the experts that most tokens pass; name the "
                "file that says which these are with --expert-load, or leave it out"
            )
        return ()
    flag = f"--expert-load {settings.expert_load}"
    if not settings.enable_expert_parallel:
        raise SettingsError(
            f"{flag} says which ranks have which experts whole; add --enable-expert-parallel and "
            "--tensor-parallel-size, or leave it out"
        )
    if group_size is None or group_size == 1:
        raise SettingsError(
            f"{flag} places experts on the ranks of a tensor group, and there is one rank; ask for 2, 4 or 8 with "
            "--tensor-parallel-size, or leave it out"
        )
    assert loads is not None, "a model with experts"
    check_copies(len(loads[0]), group_size, num_redundant)
    orders = [in_order(len(layer), group_size) for layer in loads]
    return tuple(place_experts(layer, order, num_redundant).ranks for layer, order in zip(loads, orders, strict=True))


def placement_note(settings: Settings, loads: Loads | None, worker: WorkerConfig) -> str | None:
    """What it brings under the loads that it was made for; None: nothing is placed by loads."""
    if loads is None or not worker.expert_ranks:
        return None
    waits = expert_waits(loads, worker.group_size, settings.num_redundant_experts)
    return (
        f"experts lie where {settings.expert_load} says that tokens go: by it the fullest rank computes "
        f"{waits.placed:.2f} times the mean, in order {waits.in_order:.2f} times"
    )


def placement_line(worker: WorkerConfig) -> str | None:
    """Of a worker's log: how many experts each rank has, of all layers. None: nothing is placed by loads."""
    if not worker.expert_ranks:
        return None
    layers = worker.expert_ranks
    held = [sum(rank in ranks for layer in layers for ranks in layer) for rank in range(worker.group_size)]
    most = max(sum(len(ranks) - 1 for ranks in layer) for layer in layers)
    return (
        f"experts of {len(layers)} layers placed by load: {', '.join(map(str, held))} of them on the ranks of a stage, "
        f"at most {most} copies in a layer"
    )
