"""Small line charts as SVG text, without a library: panels of one figure each, side by side.

Every number is printed the same way, so the same data gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

_WIDTH, _HEIGHT = 400, 250  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 18, 34, 56  # its margins
_COLUMNS = 2
_HEAD = 30  # for the legend
_LABELS = 10  # at most, below a panel
_FARTHEST = 4  # times the first line's: what is above is drawn at the top, with its number

_escape = partial(escape, quote=False)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel: a value for each place of its axis, None where it has none.

    `hollow` are the places whose mark is drawn empty.
    """

    name: str
    colour: str
    values: tuple[float | None, ...]
    hollow: frozenset[int] = frozenset()
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: what its places are called, its lines, and a level to be met, if there is one."""

    title: str
    places: tuple[str, ...]
    lines: tuple[Line, ...]
    goal: float | None = None


def draw(panels: Sequence[Panel], legend: str) -> str:
    """Return an SVG document of panels in two columns, the legend's sentence above them."""
    width = _WIDTH * _COLUMNS
    height = _HEAD + _HEIGHT * math.ceil(len(panels) / _COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" fill="#444444">{_escape(legend)}</text>',
    ]
    for number, panel in enumerate(panels):
        x, y = _WIDTH * (number % _COLUMNS), _HEAD + _HEIGHT * (number // _COLUMNS)
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> Iterator[str]:
    values = [v for line in panel.lines for v in line.values if v is not None]
    most = _FARTHEST * max(v for v in panel.lines[0].values if v is not None)
    top = ceiling(max([*(v for v in values if v <= most), panel.goal or 0.0]))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(place: int) -> float:
        return _LEFT + (place + 0.5) * (right - _LEFT) / len(panel.places)

    def y(value: float) -> float:
        return bottom - value / top * (bottom - _TOP)

    yield f'<text x="{_LEFT}" y="20" font-weight="bold">{_escape(panel.title)}</text>'
    for step in range(5):
        level = top * step / 4
        yield _line(_LEFT, y(level), right, y(level), "#dddddd")
        yield _text(_LEFT - 6, y(level) + 4, f"{level:.4g}", "end")
    if panel.goal is not None:
        yield _line(_LEFT, y(panel.goal), right, y(panel.goal), "#3a7d44", "6 3")
        yield _text(right, y(panel.goal) - 4, f"goal {panel.goal:g}", "end")
    every = math.ceil(len(panel.places) / _LABELS)
    for place, name in enumerate(panel.places):
        if (len(panel.places) - 1 - place) % every == 0:
            at = f'transform="translate({x(place):.1f} {bottom + 10}) rotate(30)"'
            yield f'<text {at} font-size="9">{_escape(name)}</text>'
    for line in panel.lines:
        there = [(n, x(n), y(min(v, top))) for n, v in enumerate(line.values) if v is not None]
        points = " ".join(f"{a:.1f},{b:.1f}" for _, a, b in there)
        dashes = ' stroke-dasharray="4 3"' if line.dashed else ""
        yield f'<polyline points="{points}" fill="none" stroke="{line.colour}"{dashes}/>'
        for place, a, b in there:
            fill = "#ffffff" if place in line.hollow else line.colour
            value = line.values[place] or 0.0
            told = f"{line.name}, {panel.places[place]}: {value:.4g}"
            if value > top:
                yield _text(a - 6, b + 12, f"{value:.4g}", "end")
            yield (
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{fill}" '
                f'stroke="{line.colour}"><title>{_escape(told)}</title></circle>'
            )


def ceiling(value: float) -> float:
    """Return the top of an axis for values up to this: 1, 2, 4 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(n * power for n in (1, 2, 4, 8, 10) if n * power >= value * (1 - 1e-9))


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"{dashed}/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escape(text)}</text>'
