"""Piecewise linear functions through measured points, of one and of two arguments.

Outside the points the nearest piece goes on as a straight line; `holds` says which is the case. With one point the
function is constant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from statistics import median


class Curve:
    """y over x. Several values at one x count as their median."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        by_x: dict[float, list[float]] = {}
        for x, y in points:
            by_x.setdefault(x, []).append(y)
        if not by_x:
            raise ValueError("a curve needs at least one point")
        self._x = sorted(by_x)
        self._y = [median(by_x[x]) for x in self._x]

    def holds(self, x: float) -> bool:
        return self._x[0] <= x <= self._x[-1]

    def knots(self, low: float, high: float) -> list[float]:
        """Measured x strictly between."""
        return self._x[bisect_right(self._x, low) : bisect_left(self._x, high)]

    def at(self, x: float) -> float:
        if len(self._x) == 1:
            return self._y[0]
        right = min(max(1, bisect_right(self._x, x)), len(self._x) - 1)
        x0, x1, y0, y1 = self._x[right - 1], self._x[right], self._y[right - 1], self._y[right]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class Surface:
    """z over (x, y): a curve over y for each measured x, which need not have the same points."""

    def __init__(self, points: Iterable[tuple[float, float, float]]) -> None:
        by_x: dict[float, list[tuple[float, float]]] = {}
        for x, y, z in points:
            by_x.setdefault(x, []).append((y, z))
        if not by_x:
            raise ValueError("a surface needs at least one point")
        self._curves: Mapping[float, Curve] = {x: Curve(by_x[x]) for x in sorted(by_x)}
        self._x = list(self._curves)

    def holds(self, x: float, y: float) -> bool:
        return self._x[0] <= x <= self._x[-1] and all(self._curves[near].holds(y) for near in self._neighbours(x))

    def knots(self, x: float, low: float, high: float) -> list[float]:
        """Values of y between which the surface is straight at this x."""
        return [knot for near in self._neighbours(x) for knot in self._curves[near].knots(low, high)]

    def at(self, x: float, y: float) -> float:
        near = self._neighbours(x)
        if len(near) == 1:
            return self._curves[near[0]].at(y)
        (x0, x1), (z0, z1) = near, [self._curves[each].at(y) for each in near]
        return z0 + (z1 - z0) * (x - x0) / (x1 - x0)

    def _neighbours(self, x: float) -> list[float]:
        right = min(max(1, bisect_right(self._x, x)), len(self._x) - 1)
        return self._x[max(0, right - 1) : right + 1]
