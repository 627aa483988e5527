"""What a reader has to know of arms, as a table."""

from __future__ import annotations

from rich.table import Table

from relevo.bench.arms.run import ArmsPlan


def arms_table(plan: ArmsPlan) -> Table:
    """All in which arms differ."""
    table = Table("arm", "relevo serve", title="Arms; the rest is the same for all", title_justify="left")
    for arm in plan.arms:
        table.add_row(arm.name, arm.words)
    if plan.serve_flags:
        table.add_row("every arm", " ".join(plan.serve_flags))
    return table
