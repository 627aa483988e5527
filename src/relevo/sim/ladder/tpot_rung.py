"""Rung 1: time per output token of measured servers, each class predicted from fits that never saw it.

Data: AIConfigurator's silicon table and public model configs. Nothing is simulated here: steady steps of a closed loop
(`policy.perf.closed_loop`) with the analytic step-time model. What the rows say about queues belongs to later rungs.
"""

from __future__ import annotations

from pathlib import Path

from relevo.sim.ladder.errors import ErrorTable, RungReport
from relevo.sim.ladder.leave_out import NUM_DRAWS, NUM_SEEN, LabelledSteps, seen_errors, unfitted_errors, unseen_errors
from relevo.sim.ladder.silicon_steps import SiliconServers
from relevo.sim.tables.silicon import SiliconTable, read_silicon

TABLE = Path("profiles/aiconfigurator/silicon_sample.csv")
CONFIGS = Path("model_configs")
_UNSEEN_GOAL, _SEEN_GOAL = "median below 20 %", "median below 10 %"


def tpot_rung(folder: Path) -> RungReport:
    """`folder` holds `profiles/` and `model_configs/`."""
    table = read_rows(folder)
    servers = SiliconServers(folder / CONFIGS)
    rows = [servers.steps(row) for row in table.rows]
    seen, num_alone = seen_errors(rows)
    return RungReport(
        rung=1,
        title="time per output token of measured servers",
        facts={
            "rows": len(rows),
            "left out": dict(table.left_out),
            f"rows in cells of {NUM_SEEN} or fewer": num_alone,
        },
        tables=[
            ErrorTable.of("default constants, nothing fitted", "none", unfitted_errors(rows, _model)),
            ErrorTable.of("a model that was never seen", _UNSEEN_GOAL, unseen_errors(rows, _model)),
            ErrorTable.of("an engine that was never seen", _UNSEEN_GOAL, unseen_errors(rows, _engine)),
            ErrorTable.of("a device that was never seen", _UNSEEN_GOAL, unseen_errors(rows, _device)),
            ErrorTable.of("an engine on a device, never seen together", _UNSEEN_GOAL, unseen_errors(rows, _both)),
            ErrorTable.of(f"{NUM_SEEN} rows of a model, format, engine, version and device seen", _SEEN_GOAL, seen),
        ],
        notes=[f"seen rows are drawn {NUM_DRAWS} times; the other rows of the cell are predicted each time"],
    )


def read_rows(folder: Path) -> SiliconTable:
    with (folder / TABLE).open(encoding="utf-8", newline="") as lines:
        return read_silicon(lines)


def _model(row: LabelledSteps) -> str:
    return row.model


def _engine(row: LabelledSteps) -> str:
    return row.engine


def _device(row: LabelledSteps) -> str:
    return row.device


def _both(row: LabelledSteps) -> str:
    return f"{row.engine} on {row.device}"
