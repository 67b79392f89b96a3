"""Bar charts as small SVGs, without a library: readable as text, and the same each time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_LINE, _LEFT, _WIDTH, _RIGHT = 20, 260, 480, 70


class Bar(NamedTuple):
    """A bar of one or more parts: value and colour."""

    label: str
    parts: Sequence[tuple[float, str]]

    @property
    def total(self) -> float:
        return sum(value for value, _ in self.parts)


def bars(title: str, drawn: Sequence[Bar]) -> str:
    """Return a chart of horizontal bars, each with its total."""
    longest = max((bar.total for bar in drawn), default=0.0) or 1.0
    width, height = _LEFT + _WIDTH + _RIGHT, 36 + _LINE * len(drawn)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for number, bar in enumerate(drawn):
        top, at = 28 + _LINE * number, float(_LEFT)
        lines.append(
            f'<text x="{_LEFT - 6}" y="{top + 13}" text-anchor="end">{escape(bar.label)}</text>'
        )
        for value, colour in bar.parts:
            size = value / longest * _WIDTH
            lines.append(
                f'<rect x="{at:.1f}" y="{top + 2}" width="{size:.1f}" height="14" fill="{colour}"/>'
            )
            at += size
        shown = f"{bar.total:.1f}" if longest < 1000 else f"{bar.total:.0f}"
        lines.append(f'<text x="{at + 4:.1f}" y="{top + 13}">{shown}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
