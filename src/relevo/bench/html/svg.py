"""Draws figures as SVG: text and shapes with classes, whose colours the page's style knows (light, dark, print).

Everything that comes from outside is escaped. A curve is told from others by its dashes, too, so that no colour has to
be seen. Raises ValueError for values that are no finite numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import chain

from relevo.bench.html.figures import Axis, Bars, Curve, Figure, Look, Plot, Point, Ranges
from relevo.bench.html.scale import Scale, linear_scale, log_scale, tick_text

WIDTH = 440  # of the drawing; a page scales it down, where text stays readable to 360. Arbitrary
NUM_COLOURS = 8  # of the page's style; then they begin anew
_HEIGHT = 250
_TOP, _BOTTOM, _RIGHT = 24, 42, 16
_CHARACTER = 6.6  # of the page's font at its size in drawings; a little more than it is
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2 1 2")
_ROW = 38
_MOST_MARKERS = 12  # of a line: its points are values of their own, not samples of a course


def drawn(figure: Figure) -> str:
    """One `<svg>`, which says in words what it is."""
    if isinstance(figure, Plot):
        return _plot(figure)
    return _ranges(figure) if isinstance(figure, Ranges) else _bars(figure)


def legend(figure: Figure) -> list[tuple[str, str]]:
    """What has to be told apart, as a sample and a name; empty where there is one thing only."""
    found: list[tuple[str, str]] = []
    if isinstance(figure, Plot):
        found = [(_curve_sample(index, curve.look), curve.name) for index, curve in enumerate(figure.curves)]
    elif isinstance(figure, Bars):
        box = '<rect class="{} bar" x="8" y="0" width="10" height="10"/>'
        found = [(_sample(box.format(_colour(index))), name) for index, name in enumerate(_parts(figure))]
    return found if len(found) > 1 else []


def _curve_sample(index: int, look: Look) -> str:
    if look is Look.DOTS:
        return _sample(f'<circle class="{_colour(index)} dot" cx="13" cy="5" r="3"/>')
    return _sample(f'<line class="{_colour(index)} curve" {_dash(index)}x1="1" y1="5" x2="25" y2="5"/>')


def _sample(shape: str) -> str:
    return f'<svg class="swatch" width="26" height="10" viewBox="0 0 26 10" aria-hidden="true">{shape}</svg>'


# ---- curves ----------------------------------------------------------------------------------------------------------


def _plot(plot: Plot) -> str:
    points = list(chain.from_iterable(curve.points for curve in plot.curves))
    if not points:
        return _empty(plot.title)
    y = _scale(plot.y, [point[1] for point in points], _HEIGHT - _BOTTOM, _TOP)
    left = 10 + _CHARACTER * max(len(tick_text(tick)) for tick in y.ticks)
    places = [*(point[0] for point in points), *(at for at, _ in plot.moments)]
    x = _scale(plot.x, places, left, WIDTH - _RIGHT)
    parts = [
        *(_grid_line(y, tick, left) for tick in y.ticks),
        *(_x_tick(x, tick) for tick in x.ticks),
        f'<text class="label" x="{WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(plot.x.label)}</text>',
        f'<text class="label" x="2" y="12">{escape(plot.y.label)}</text>',
        *(_moment(x.at(at), name) for at, name in plot.moments),
        *(_curve(curve, index, x, y) for index, curve in enumerate(plot.curves)),
    ]
    return _svg(f"{plot.title}: {plot.y.label} by {plot.x.label}", _HEIGHT, parts)


def _scale(axis: Axis, values: Sequence[float], from_px: float, to_px: float) -> Scale:
    if axis.is_log:
        return log_scale(values, from_px, to_px)
    return linear_scale(values, from_px, to_px, from_zero=axis.from_zero)


def _grid_line(y: Scale, tick: float, left: float) -> str:
    at = y.at(tick)
    line = f'<line class="grid" x1="{left:.1f}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return f'{line}<text class="tick" x="{left - 5:.1f}" y="{at + 4:.1f}" text-anchor="end">{tick_text(tick)}</text>'


def _x_tick(x: Scale, tick: float) -> str:
    at, base = x.at(tick), _HEIGHT - _BOTTOM
    line = f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{base + 4}"/>'
    return f'{line}<text class="tick" x="{at:.1f}" y="{base + 17}" text-anchor="middle">{tick_text(tick)}</text>'


def _moment(at: float, name: str) -> str:
    line = f'<line class="moment" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
    return f"<g><title>{escape(name)}</title>{line}</g>"


def _curve(curve: Curve, index: int, x: Scale, y: Scale) -> str:
    places = [(x.at(one), y.at(other)) for one, other in curve.points]
    colour = _colour(index)
    dots = "".join(f'<circle class="{colour} dot" cx="{cx:.1f}" cy="{cy:.1f}" r="2"/>' for cx, cy in places)
    if curve.look is Look.DOTS:
        return f'<g class="cloud">{dots}</g>'
    path = _steps(places, y.from_px) if curve.look is Look.STEPS else _line(places)
    drawn_line = f'<path class="{colour} curve" {_dash(index)}d="{path}"/>'
    return drawn_line + (dots if curve.look is Look.LINE and len(places) <= _MOST_MARKERS else "")


def _line(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in places)


def _steps(places: Sequence[Point], base: float) -> str:
    """From the axis: the first place is where the first sample lies."""
    path = f"M{places[0][0]:.1f} {base:.1f}" if places else ""
    return path + "".join(f"H{px:.1f}V{py:.1f}" for px, py in places)


# ---- rows ------------------------------------------------------------------------------------------------------------


def _ranges(ranges: Ranges) -> str:
    if not ranges.rows:
        return _empty(ranges.title)
    values = [value for row in ranges.rows for value in (row.value, row.least, row.most)]
    known = values if ranges.reference is None else [*values, ranges.reference]
    x = _scale(ranges.axis, known, 10, WIDTH - _RIGHT - 10)
    height = _rows_height(len(ranges.rows))
    parts = _row_axis(x, height, ranges.axis.label)
    if ranges.reference is not None:
        at = x.at(ranges.reference)
        parts.append(f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height - _BOTTOM}"/>')
    for number, row in enumerate(ranges.rows):
        y = _ROW * number + 28
        least, value, most = (x.at(each) for each in (row.least, row.value, row.most))
        parts += [
            _row_name(number, row.name, f"{_short(row.value)}{ranges.unit}"),
            f'<line class="c0 whisker" x1="{least:.1f}" x2="{most:.1f}" y1="{y}" y2="{y}"/>',
            *(f'<line class="c0 end" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 4}" y2="{y + 4}"/>' for at in (least, most)),
            f'<circle class="c0 dot" cx="{value:.1f}" cy="{y}" r="4.5"/>',
        ]
    return _svg(f"{ranges.title}: {ranges.axis.label}", height, parts)


def _bars(bars: Bars) -> str:
    if not bars.rows:
        return _empty(bars.title)
    totals = [sum(row.parts.values()) for row in bars.rows]
    x = linear_scale([0.0, *totals], 10, WIDTH - _RIGHT - 10, from_zero=True)
    height = _rows_height(len(bars.rows))
    parts = _row_axis(x, height, bars.axis.label)
    indexes = {name: index for index, name in enumerate(_parts(bars))}
    for number, (row, total) in enumerate(zip(bars.rows, totals, strict=True)):
        parts.append(_row_name(number, row.name, f"{_short(total)}{bars.unit}"))
        before = 0.0
        for name, value in row.parts.items():
            from_px, to_px = x.at(before), x.at(before + value)
            told = escape(f"{name}: {_short(value)}{bars.unit}")
            shape = f'x="{from_px:.1f}" y="{_ROW * number + 20}" width="{max(0.0, to_px - from_px):.1f}" height="14"'
            parts.append(f'<rect class="{_colour(indexes[name])} bar" {shape}><title>{told}</title></rect>')
            before += value
    return _svg(f"{bars.title}: {bars.axis.label}", height, parts)


def _parts(bars: Bars) -> list[str]:
    return list(dict.fromkeys(name for row in bars.rows for name in row.parts))


def _rows_height(num_rows: int) -> int:
    return _ROW * num_rows + 4 + _BOTTOM


def _row_axis(x: Scale, height: float, label: str) -> list[str]:
    base = height - _BOTTOM
    ticks = []
    for tick in x.ticks:
        at = x.at(tick)
        ticks.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{base + 4}"/>')
        ticks.append(f'<text class="tick" x="{at:.1f}" y="{base + 17}" text-anchor="middle">{tick_text(tick)}</text>')
    return [
        *ticks,
        f'<text class="label" x="{WIDTH - _RIGHT}" y="{height - 6}" text-anchor="end">{escape(label)}</text>',
    ]


def _row_name(number: int, name: str, value: str) -> str:
    y = _ROW * number + 15
    shown = _cut(name, int((WIDTH - 30) / _CHARACTER) - len(value) - 2)
    return (
        f'<text class="name" x="10" y="{y}">{escape(shown)}<title>{escape(name)}</title></text>'
        f'<text class="value" x="{WIDTH - _RIGHT - 10}" y="{y}" text-anchor="end">{escape(value)}</text>'
    )


# ---- shared ----------------------------------------------------------------------------------------------------------


def _svg(words: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg class="figure" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(words)}">'
    return head + "".join(parts) + "</svg>"


def _empty(title: str) -> str:
    text = f'<text class="label" x="{WIDTH / 2}" y="50" text-anchor="middle">nothing was measured</text>'
    return _svg(f"{title}: nothing was measured", 100, [text])


def _colour(index: int) -> str:
    return f"c{index % NUM_COLOURS}"


def _dash(index: int) -> str:
    dash = _DASHES[index % len(_DASHES)]
    return f'stroke-dasharray="{dash}" ' if dash else ""


def _short(value: float) -> str:
    """Three or four digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(1, most - 1)]}…"
