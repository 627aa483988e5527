"""`python dashboards/generate.py FOLDER`: writes the Grafana dashboards, from `panels`, with grafana-foundation-sdk.

Owns how panels are laid out, coloured and filtered. The library is needed here only: `relevo dashboards` copies what
this wrote into the package. `make dashboards` runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from more_panels import CACHING, TENANTS, WORKERS
from panels import BLUE, GREEN, GREY, ORANGE, OVERVIEW, PINK, PREFILL_DECODE, RED, SKY, Board, Panel

BOARDS = (OVERVIEW, PREFILL_DECODE, CACHING, TENANTS, WORKERS)
_SOURCE = model.DataSourceRef(type_val="prometheus", uid="$datasource")
_IN_ORDER = (BLUE, ORANGE, RED, GREEN, SKY, PINK, GREY)
_ROLES = (("prefill-", BLUE), ("decode-", ORANGE), ("unified-", GREEN), ("gateway$", GREY))
_VARIABLES = (  # name, label, where its values come from
    ("job", "Job", "label_values(relevo:requests_in_flight, job)"),
    ("model", "Model", 'label_values(relevo:requests_in_flight{job=~"$job"}, model_name)'),
    ("role", "Role", 'label_values(relevo:worker_up{job=~"$job",model_name=~"$model"}, role)'),
    (
        "worker",
        "Worker",
        'label_values(relevo:worker_up{job=~"$job",model_name=~"$model",role=~"$role"}, worker)',
    ),
)


def _fixed(colour: str) -> list[model.DynamicConfigValue]:
    return [model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})]


def _shades(colour: str) -> list[model.DynamicConfigValue]:
    """Of one colour: workers of a role, whose number is not known."""
    return [model.DynamicConfigValue(id_val="color", value={"mode": "shades", "fixedColor": colour})]


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    warning, bad = panel.thresholds or (0, 0)
    if warning <= bad:
        steps = [(None, BLUE), (warning, ORANGE), (bad, RED)] if panel.thresholds else [(None, BLUE)]
    else:
        steps = [(None, RED), (bad, ORANGE), (warning, BLUE)]
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=colour) for value, colour in steps])
    )


def _stat(panel: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .span(3)
        .height(4)
        .graph_mode(shapes.BigValueGraphMode.AREA)
        .color_mode(shapes.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    )


def _lines(panel: Panel, width: int) -> timeseries.Panel:
    drawn = (
        timeseries.Panel()
        .span(width)
        .height(8)
        .line_width(2)
        .fill_opacity(30 if panel.is_stacked else 0)
        .show_points(shapes.VisibilityMode.NEVER)
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.SHADES).fixed_color(BLUE))
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(shapes.LegendDisplayMode.LIST)
            .placement(shapes.LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING))
        .min(0)
    )
    if panel.most is not None:
        drawn.max(panel.most)
    if panel.is_stacked:
        drawn.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
    if panel.thresholds:
        drawn.thresholds_style(common.GraphThresholdsStyleConfig().mode(shapes.GraphTresholdsStyleMode.DASHED))
    if len(panel.queries) > 1:
        for index, colour in zip(range(len(panel.queries)), _IN_ORDER, strict=False):
            drawn.override_by_query(_letter(index), _fixed(colour))
    for name, colour in panel.colours:
        drawn.override_by_name(name, _fixed(colour))
    if "{{worker}}" in panel.queries[0].legend or "{{engine}}" in panel.queries[0].legend:
        for part, colour in _ROLES:
            drawn.override_by_regexp(f"/{part}/", _shades(colour))
    return drawn


def _letter(index: int) -> str:
    return "ABCDEFGH"[index]


def _panel(panel: Panel, number: int, width: int) -> timeseries.Panel | stat.Panel:
    drawn = _stat(panel) if panel.is_stat else _lines(panel, width)
    drawn.id(number).title(panel.title).description(panel.says).unit(panel.unit).datasource(_SOURCE)
    drawn.thresholds(_thresholds(panel)).no_value(panel.none_means or "no data")
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().ref_id(_letter(index)).expr(query.expr).datasource(_SOURCE).range()
        drawn.with_target(target.legend_format(query.legend or panel.title))
    return drawn


def _variable(name: str, label: str, values: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query(values)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(selected=True, text="All", value="$__all"))
    )


def board_json(board: Board) -> str:
    """The file of one dashboard."""
    drawn = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.says)
        .tags(["relevo"])
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("Relevo")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["relevo"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name, label, values in _VARIABLES:
        drawn.with_variable(_variable(name, label, values))
    number = 0
    for title, panels in board.rows:
        number += 1
        drawn.with_row(dashboard.Row(title).id(number))
        width = 8 if len(panels) % 3 == 0 else 12 if len(panels) <= 2 else 6
        for panel in panels:
            number += 1
            drawn.with_panel(_panel(panel, number, width))
    return json.dumps(drawn.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(board_json(board), encoding="utf-8")


if __name__ == "__main__":
    main()
