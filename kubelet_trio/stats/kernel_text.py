"""Read the text forms in which the kernel shows numbers. No I/O.

A scrape of a full node reads thousands of such texts, and a memory.stat has sixty lines of which
ten are needed. Written as JSON, by replacing separators, a text is decoded by msgspec's C code
straight into a struct of what is needed: a fifth of the time that splitting it takes. What is not
in the kernel's usual form is read line by line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import DecodeError, Struct

from kubelet_trio.stats.proc_parse import MOST_DIGITS
from kubelet_trio.stats.usage import Psi, PsiLine

CountsT = TypeVar("CountsT", bound=Struct)

_NUMBER = rb"(\d+(?:\.\d+)?)"
_PRESSURE = re.compile(
    rb"^(some|full) avg10=%b avg60=%b avg300=%b total=(\d{1,%d})"
    % (_NUMBER, _NUMBER, _NUMBER, MOST_DIGITS),
    re.MULTILINE,
)
_QUOTE, _BACKSLASH, _MINUS = b'"\\-'
_decode_psi = msgspec.json.Decoder(Psi).decode


def whole(text: bytes) -> int | None:
    """Parse a number as the kernel writes it, None for other text."""
    # The kernel's way at first: this runs thousands of times in a scrape. Bounded: int() of a long
    # text is slow, and beyond 4300 digits a ValueError.
    number = text[:-1]
    if not number.isdigit() or text[-1:] != b"\n":
        number = text.strip()
    return int(number) if number.isdigit() and len(number) <= MOST_DIGITS else None


def read_counts(kind: type[CountsT], text: bytes) -> CountsT:
    """Return the numbers that a struct names, from lines of a name and a number.

    Lines of other names, and those without a number, are skipped.
    """
    if _is_plain(text):
        with suppress(DecodeError):
            counts: CountsT = _decoder(kind)(
                b'{"%b}' % text[:-1].replace(b" ", b'":').replace(b"\n", b',"')
            )
            return counts
    found = flat(text)
    return kind(**{name: found[name] for name in kind.__struct_fields__ if name in found})


def _is_plain(text: bytes) -> bool:
    """Return whether JSON takes nothing in it for more than a name or a number."""
    return (
        text[-1:] == b"\n" and _QUOTE not in text and _BACKSLASH not in text and _MINUS not in text
    )


@functools.cache
def _decoder(kind: type[CountsT]) -> Callable[[bytes], CountsT]:
    return msgspec.json.Decoder(kind).decode


def flat(text: bytes) -> dict[str, int]:
    """Parse lines of a name and a number; skip others."""
    found = {}
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if number.isdigit() and len(number) <= MOST_DIGITS:
            found[name.decode("utf-8", "replace")] = int(number)
    return found


def parse_pressure(text: bytes) -> Psi:
    """Parse a pressure file; a missing line counts as zero (`full` of CPU on older kernels)."""
    # `some` and `full`, each of four numbers.
    if text[:11] == b"some avg10=" and text.count(b"=") == 8 and _is_plain(text):
        inside = text[5:-1].replace(b"=", b'":').replace(b" ", b',"')
        with suppress(DecodeError):
            return _decode_psi(b'{"some":{"%b}}' % inside.replace(b'\nfull,"', b'},"full":{"', 1))
    lines = {
        kind: PsiLine(float(avg10), float(avg60), float(avg300), int(total))
        for kind, avg10, avg60, avg300, total in _PRESSURE.findall(text)
    }
    return Psi(lines.get(b"some", PsiLine()), lines.get(b"full", PsiLine()))
