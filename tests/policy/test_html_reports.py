"""Reports as HTML, without a benchmark: scales, drawings, tables, secrets, and a page that needs nothing else."""

from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.table import Table

from relevo.bench.html.figures import (
    Axis,
    Bar,
    Bars,
    Curve,
    Figure,
    Look,
    Plot,
    Range,
    Ranges,
    cumulative,
    cumulative_points,
    over_time,
)
from relevo.bench.html.page import Origin, Report, page
from relevo.bench.html.scale import linear_scale, log_scale, tick_text
from relevo.bench.html.secrets import known_secrets, redacted, redacted_command, shell_line, without
from relevo.bench.html.svg import WIDTH, drawn, legend
from relevo.bench.html.tables import tables_html
from relevo.telemetry.distribution import Samples

EVIL = "<script>alert('x')</script>&\"\x1b[31m"
ORIGIN = Origin(command="relevo bench", at="2026-01-02T03:04:05+00:00", facts=[("relevo", "0.1")], settings=[])


X, Y = Axis(label="s"), Axis(label="ms")


def plot(*curves: Curve, x: Axis = X, y: Axis = Y) -> Plot:
    return Plot(title="one", x=x, y=y, curves=curves)


def made(*figures: Figure, **changes: object) -> Report:
    said = {"title": "t", "sentence": "s", "tables": Table("a"), "figures": figures}
    return Report(**(said | changes))  # type: ignore[arg-type]


# ---- scales ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8))
def test_a_linear_scale_holds_its_values_between_round_ticks(values: list[float]) -> None:
    scale = linear_scale(values, 0.0, 100.0)
    assert all(-1e-6 <= scale.at(value) <= 100 + 1e-6 for value in values)
    assert 2 <= len(scale.ticks) <= 10
    gaps = [after - before for before, after in pairwise(scale.ticks)]
    assert max(gaps) == pytest.approx(min(gaps), rel=1e-6)


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8))
def test_a_log_scale_holds_its_values_and_names_some(values: list[float]) -> None:
    scale = log_scale(values, 0.0, 100.0)
    assert all(-1e-6 <= scale.at(value) <= 100 + 1e-6 for value in values)
    assert 1 <= len(scale.ticks) <= 8
    assert all(-1e-6 <= scale.at(tick) <= 100 + 1e-6 for tick in scale.ticks)


def test_ticks_are_round_and_short() -> None:
    assert linear_scale([0, 25.7], 0, 1).ticks == (0, 5, 10, 15, 20, 25, 30)
    assert log_scale([3, 4000], 0, 1).ticks == (3, 10, 30, 100, 300, 1000, 3000)
    assert log_scale([1e-3, 1e6], 0, 1).ticks == (1e-3, 0.1, 10, 1000, 1e5)
    assert log_scale([3, 30], 0, 1).ticks == (2, 5, 10, 20, 50)
    assert [tick_text(v) for v in (0, 0.05, 0.0002, 20, 2500, 15_000, 3e6)] == [
        "0", "0.05", "0.0002", "20", "2500", "15k", "3M",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    """Red when a point is left out, or drawn somewhere, instead."""
    for figure in (
        plot(Curve("a", [(1.0, value)])),
        plot(Curve("a", [(value, 1.0)])),
        Ranges(title="r", axis=Axis(label="x"), rows=[Range("a", 1.0, value, 2.0)]),
        Bars(title="b", axis=Axis(label="x"), rows=[Bar("a", {"p": value})]),
    ):
        with pytest.raises(ValueError, match="has no place"):
            drawn(figure)
    with pytest.raises(ValueError, match="log axis"):
        drawn(plot(Curve("a", [(1.0, 0.0)]), y=Axis(label="ms", is_log=True)))


# ---- drawings --------------------------------------------------------------------------------------------------------

FIGURES: dict[str, Figure] = {
    "nothing": plot(),
    "one point": plot(Curve("a", [(1.0, 1.0)])),
    "one value": plot(Curve("a", [(1.0, 5.0), (2.0, 5.0)]), Curve("b", [(1.0, 5.0)], Look.DOTS)),
    "steps": cumulative("c", {"a": Samples([0.1, 0.2, 0.4]), "b": Samples([0.0, 0.0])}),
    "no ranges": Ranges(title="r", axis=Axis(label="x"), rows=[]),
    "ranges": Ranges(title="r", axis=Axis(label="x", is_log=True), rows=[Range("a", 2, 1, 3)], reference=1.0),
    "bars": Bars(title="b", axis=Axis(label="%"), rows=[Bar("a", {"p": 1.0, "q": 0.0}), Bar("b", {"q": 3.0})]),
    "zeros": Bars(title="b", axis=Axis(label="%"), rows=[Bar("a", {"p": 0.0})]),
}


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_every_figure_is_well_formed_and_stays_on_its_sheet(figure: Figure) -> None:
    root = ElementTree.fromstring(drawn(figure))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert width == WIDTH and root.attrib["role"] == "img" and root.attrib["aria-label"]
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert -1 <= float(element.attrib.get(name, 0)) <= width
        for name in ("y", "y1", "y2", "cy"):
            assert -1 <= float(element.attrib.get(name, 0)) <= height


def test_no_data_is_said() -> None:
    assert "nothing was measured" in drawn(FIGURES["nothing"]) and "nothing was measured" in drawn(FIGURES["no ranges"])


def test_a_curve_lies_where_its_axis_says() -> None:
    root = ElementTree.fromstring(drawn(plot(Curve("a", [(0.0, 0.0), (10.0, 100.0)]))))
    (path,) = [element for element in root.iter() if element.tag == "path"]
    ticks = [element for element in root.iter("line") if element.attrib["class"] == "grid"]
    (left, bottom), (right, top) = (map(float, pair.split()) for pair in path.attrib["d"][1:].split("L"))
    verticals = [float(tick.attrib["x1"]) for tick in ticks if tick.attrib["x1"] == tick.attrib["x2"]]
    levels = [float(tick.attrib["y1"]) for tick in ticks if tick.attrib["y1"] == tick.attrib["y2"]]
    assert (left, right) == (min(verticals), max(verticals))
    assert (bottom, top) == (max(levels), min(levels))


def test_bars_lie_one_after_the_other() -> None:
    bars = Bars(title="b", axis=Axis(label="x"), rows=[Bar("a", {"p": 1.0, "q": 3.0})])
    root = ElementTree.fromstring(drawn(bars))
    first, second = [element.attrib for element in root.iter("rect")]
    assert float(first["x"]) + float(first["width"]) == pytest.approx(float(second["x"]), abs=0.2)
    assert float(second["width"]) == pytest.approx(3 * float(first["width"]), abs=0.5)
    assert [name for _, name in legend(bars)] == ["p", "q"]
    assert legend(Bars(title="b", axis=Axis(label="x"), rows=[Bar("a", {"p": 1.0})])) == []


def test_a_distribution_keeps_its_slow_end_and_its_zeros() -> None:
    points = cumulative_points(Samples([i / 1000 for i in range(1, 10_001)]))
    assert len(points) <= 410
    assert points[-1] == (pytest.approx(10_000), 1.0)
    assert any(share == pytest.approx(0.999) for _, share in points)
    assert cumulative_points(Samples([0.0, 0.0, 0.002])) == [(2.0, 1.0)]
    assert cumulative_points(Samples([0.001, 0.002], [3, 1])) == [(1.0, 0.75), (2.0, 1.0)]


def test_quantiles_over_time_are_of_their_part() -> None:
    curves = over_time([(float(i), 1.0 if i < 500 else 9.0) for i in range(1000)])
    assert [curve.name for curve in curves] == ["each", "p50", "p90"]
    median = curves[1].points
    assert {value for at, value in median if at < 490} == {1.0} and {value for at, value in median if at > 510} == {9.0}
    assert over_time([]) == []
    assert [len(curve.points) for curve in over_time([(3.0, 1.0)])] == [1, 1, 1]


# ---- tables and pages ------------------------------------------------------------------------------------------------


def test_tables_are_those_of_the_terminal() -> None:
    table = Table("a", title="[b]T[/b]")
    table.add_column("b", justify="right")
    table.add_row("x", "1")
    html = tables_html(Group(table, "a sentence"))
    assert "<caption>[b]T[/b]</caption>" in html
    assert '<th scope="row">x</th><td class="right">1</td>' in html and "<p>a sentence</p>" in html
    with pytest.raises(TypeError):
        tables_html(Group(object()))  # type: ignore[arg-type]


class Reader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))


def evil_page() -> str:
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    figures: list[Figure] = [
        plot(Curve(EVIL, [(1.0, 1.0)]), Curve("b", [(2.0, 2.0)]), x=Axis(label=EVIL), y=Axis(label=EVIL)),
        Plot(
            title=EVIL, x=Axis(label=""), y=Axis(label=""), curves=[Curve("", [(1, 1)])], moments=[(1, EVIL)], note=EVIL
        ),
        Ranges(title=EVIL, axis=Axis(label=EVIL), rows=[Range(EVIL, 1, 1, 1)], unit=EVIL),
        Bars(title=EVIL, axis=Axis(label=EVIL), rows=[Bar(EVIL, {EVIL: 1.0})]),
    ]
    report = Report(title=EVIL, sentence=EVIL, tables=table, figures=figures, notes=[EVIL])
    origin = Origin(command=EVIL, at=EVIL, facts=[(EVIL, EVIL)], settings=[(EVIL, EVIL)])
    return page(report, origin, json.dumps({"evil": EVIL}).encode(), partial=EVIL)


def test_a_page_holds_no_script_and_nothing_from_elsewhere() -> None:
    """Red when a name becomes an element, or something is loaded: an address, a font, a picture."""
    html = evil_page()
    tags = Reader(html).tags
    assert {tag for tag, _ in tags}.isdisjoint({"script", "img", "link", "iframe", "object", "embed", "base", "form"})
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on") or name == "src"]
    links = [value for _, attributes in tags for name, value in attributes.items() if "href" in name]
    assert len(links) == 1 and links[0].startswith("data:application/json;base64,")
    assert "url(" not in html and "@import" not in html
    (policy,) = [a["content"] for tag, a in tags if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert html.count("&lt;script&gt;") > 15 and "<script" not in html


def test_the_data_are_in_the_page() -> None:
    encoded = re.search(r'href="data:application/json;base64,([^"]*)"', evil_page())
    assert encoded is not None and json.loads(base64.b64decode(encoded[1])) == {"evil": EVIL}


def test_a_page_says_that_it_is_partial_only_if_it_is() -> None:
    assert "Partial: it ended early" in page(made(), ORIGIN, b"{}", partial="it ended early")
    assert "Partial" not in page(made(), ORIGIN, b"{}")


# ---- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["relevo", "bench", "serve", "http://h", "--api-key", "sk-123456"],
        ["relevo", "bench", "serve", "http://h", "--api-key=sk-123456"],
        ["relevo", "bench", "sessions", "--serve-args", "--topology 1p1d --api-key sk-123456 --cores 0"],
        ["relevo", "bench", "peers", "--peer-command", "vllm=env OPENAI_API_KEY=sk-123456 vllm serve m --port {port}"],
        ["relevo", "bench", "peers", "--peer-body", 'x={"api_key": "sk-123456", "n": 1}'],
        ["relevo", "bench", "peers", "--peer-command", "x=curl -H 'Authorization: Bearer sk-123456'"],
        ["relevo", "bench", "serve", "https://user:sk-123456@host/v1"],
        ["relevo", "bench", "serve", "https://sk-123456@host/v1?a=b"],
        ["relevo", "bench", "serve", "https://host/v1?api_key=sk-123456&x=1"],
        ["relevo", "bench", "soak", "--serve-args", "--database-url postgresql://me:sk-123456@db/relevo"],
        ["relevo", "bench", "soak", "--serve-args", "--admin-key 'sk-123456 and more'"],
    ],
    ids=lambda argv: argv[-1][:40],
)
def test_keys_are_not_in_a_command_line(argv: list[str]) -> None:
    line = shell_line(redacted_command(argv))
    assert "sk-123456" not in line and "***" in line and "and more" not in line


def test_what_is_no_key_stays() -> None:
    argv = ["relevo", "bench", "--max-tokens", "5", "--prompt-tokens", "128-1024", "--num-kv-blocks=3", "http://h:1/v1"]
    assert redacted_command(argv) == argv
    assert (
        redacted("keyboard=1 monkey=2 tokens=3 --ssl-keyfile k.pem")
        == "keyboard=1 monkey=2 tokens=3 --ssl-keyfile k.pem"
    )


def test_a_key_that_a_server_repeats_is_known() -> None:
    environment = {"HF_TOKEN": "hf_abcdef", "HOME": "/root", "RELEVO_API_KEY": "first-key, second-key", "A_KEY": "abc"}
    secrets = known_secrets(["relevo", "--api-key", "sk-123456", "--other-api-key=sk-654321"], environment)
    assert {"hf_abcdef", "first-key", "second-key", "sk-123456", "sk-654321"} <= set(secrets)
    assert "/root" not in secrets and "abc" not in secrets
    told = without("Incorrect API key provided: sk-123456, not second-key", secrets)
    assert told == "Incorrect API key provided: ***, not ***"
