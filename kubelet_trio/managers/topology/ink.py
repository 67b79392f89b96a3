"""Text with colours, in lines and boxes: what the drawing of a machine is put together from.

A line is pieces of text, each with the codes of its colour (SGR of ECMA-48; "" for none). Colours
come in only when a line is rendered, so that widths are those of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Piece = tuple[str, str]  # text, codes of its colour
Line = tuple[Piece, ...]
Block = list[Line]

PLAIN = ""
DIM = "2"
BOLD = "1"


@dataclass(frozen=True, slots=True)
class Frame:
    """The characters of a box."""

    upper_left: str
    upper_right: str
    lower_left: str
    lower_right: str
    across: str
    down: str


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a drawing."""

    thick: Frame  # sockets
    thin: Frame  # NUMA nodes
    free: str  # shared CPUs, free memory and devices
    reserved: str
    isolated: str
    offline: str
    unknown: str  # not known to the CPU manager
    broken: str  # unhealthy devices
    dot: str  # between words of a heading
    ellipsis: str


UNICODE = Glyphs(
    Frame("┏", "┓", "┗", "┛", "━", "┃"),
    Frame("╭", "╮", "╰", "╯", "─", "│"),
    free="·",
    reserved="▒",
    isolated="○",
    offline="✗",
    unknown="?",
    broken="!",
    dot="·",
    ellipsis="…",
)
ASCII = Glyphs(
    Frame("+", "+", "+", "+", "=", "|"),
    Frame("+", "+", "+", "+", "-", "|"),
    free=".",
    reserved="#",
    isolated="o",
    offline="x",
    unknown="?",
    broken="!",
    dot="-",
    ellipsis="~",
)


def plain(text: str, codes: str = PLAIN) -> Line:
    """Return a line of one piece."""
    return ((text, codes),)


def width_of(line: Line) -> int:
    """Return the number of characters of a line."""
    return sum(len(text) for text, _ in line)


def padded(line: Line, width: int) -> Line:
    """Return a line of at least `width` characters."""
    missing = width - width_of(line)
    return (*line, (" " * missing, PLAIN)) if missing > 0 else line


def cut(line: Line, width: int) -> Line:
    """Return at most `width` characters of a line."""
    pieces: list[Piece] = []
    for text, codes in line:
        pieces.append((text[:width], codes))
        width -= len(pieces[-1][0])
    return tuple(pieces)


def clipped(text: str, width: int, glyphs: Glyphs) -> str:
    """Return a text of at most `width` characters."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + glyphs.ellipsis if width > 0 else ""


def beside(blocks: Sequence[Block], widths: Sequence[int], gap: int) -> Block:
    """Return blocks next to each other, each padded to its width."""
    rows: Block = []
    for at in range(max(map(len, blocks), default=0)):
        line: Line = ()
        for number, (block, width) in enumerate(zip(blocks, widths, strict=True)):
            between = ((" " * gap, PLAIN),) if number else ()
            line = (*line, *between, *padded(block[at] if at < len(block) else (), width))
        rows.append(line)
    return rows


def grid(blocks: Sequence[Block], width: int, gap: int = 2) -> Block:
    """Return blocks in rows and columns: as many columns of the same width as fit."""
    if not blocks:
        return []
    widest = max(width_of(line) for block in blocks for line in block)
    columns = max(1, min(len(blocks), (width + gap) // (widest + gap)))
    # The same number of rows with fewer columns leaves no ragged last row.
    columns = -(-len(blocks) // -(-len(blocks) // columns))
    rows: Block = []
    for at in range(0, len(blocks), columns):
        some = blocks[at : at + columns]
        rows += beside(some, [widest] * len(some), gap)
    return rows


def box(title: str, content: Block, width: int, frame: Frame) -> Block:
    """Return content in a box of `width` characters, which has its title in the upper side."""
    title = title[: width - 6]
    rest = frame.across * (width - 5 - len(title))
    upper: Line = (
        (f"{frame.upper_left}{frame.across} ", DIM),
        (title, BOLD),
        (f" {rest}{frame.upper_right}", DIM),
    )
    lower = plain(f"{frame.lower_left}{frame.across * (width - 2)}{frame.lower_right}", DIM)
    before, after = (f"{frame.down} ", DIM), (f" {frame.down}", DIM)
    return [
        upper,
        *((before, *cut(padded(line, width - 4), width - 4), after) for line in content),
        lower,
    ]


def boxes(
    named: Sequence[tuple[str, Block]], widths: Sequence[int], columns: int, frame: Frame, gap: int
) -> Block:
    """Return boxes in rows of `columns`; those of a row are equally high."""
    rows: Block = []
    for at in range(0, len(named), columns):
        some = named[at : at + columns]
        high = max(len(block) for _, block in some)
        drawn = [
            box(title, [*block, *((),) * (high - len(block))], width, frame)
            for (title, block), width in zip(some, widths, strict=False)
        ]
        rows += beside(drawn, widths[: len(drawn)], gap)
    return rows


def shares(width: int, columns: int, gap: int) -> list[int]:
    """Return the widths of columns that fill `width`."""
    whole, rest = divmod(width - gap * (columns - 1), columns)
    return [whole + (at < rest) for at in range(columns)]


def render(lines: Iterable[Line], *, colour: bool) -> str:
    """Return the text of lines, each with a new line at its end."""
    return "".join(f"{_rendered(line, colour=colour)}\n" for line in lines)


def _rendered(line: Line, *, colour: bool) -> str:
    if not colour:
        return "".join(text for text, _ in line).rstrip()
    # Neighbours of one colour are one piece: fewer codes, and no seams in backgrounds.
    joined: list[Piece] = []
    for text, codes in line:
        if joined and joined[-1][1] == codes:
            joined[-1] = (joined[-1][0] + text, codes)
        else:
            joined.append((text, codes))
    return "".join(
        f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text for text, codes in joined
    ).rstrip(" ")
