"""Where the loop's CPU time and the memory go, as `go tool pprof` reads it.

The stack is looked at after each 10 ms of CPU time of the process, and weighs what the loop's
thread has used since: a loop that waits weighs nothing.

Source: proto/profile.proto of github.com/google/pprof, of which this writes what it needs.
"""

from __future__ import annotations

import signal
import time
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

_PERIOD = 0.01  # seconds of CPU time between two looks
_DEEPEST = 256  # calls of a stack
_NANO = 10**9


class Call(NamedTuple):
    """One call of a stack."""

    function: str
    file: str
    line: int


Stack = tuple[Call, ...]  # the innermost call first
Weights = Mapping[Stack, tuple[int, int]]  # how often, and nanoseconds or bytes
Units = tuple[tuple[str, str], tuple[str, str]]  # type and unit of each of the two


@contextmanager
def sampling_cpu() -> Iterator[Weights]:
    """Look at this thread, the main one, while the block lasts; what was seen fills up.

    By a signal and not from a thread: that would see the loop only where it lets go of the
    interpreter, which is where it waits. Raises ValueError in another thread.
    """
    found: dict[Stack, tuple[int, int]] = {}
    before = time.thread_time_ns()

    def look(_signal: int, frame: FrameType | None) -> None:
        nonlocal before
        used, before = time.thread_time_ns() - before, time.thread_time_ns()
        if frame is not None and used > 0:
            stack = tuple(_calls(frame))
            count, spent = found.get(stack, (0, 0))
            found[stack] = (count + 1, spent + used)

    signal.signal(signal.SIGPROF, look)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _PERIOD, _PERIOD)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not the default, which ends the process: one may be on its way. Not SIG_IGN, which
        # programs that are started from here would inherit.
        signal.signal(signal.SIGPROF, _ignore)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    pass


def _calls(frame: FrameType) -> Iterator[Call]:
    at: FrameType | None = frame
    for _ in range(_DEEPEST):
        if at is None:
            return
        code = at.f_code
        yield Call(code.co_qualname, code.co_filename, at.f_lineno)
        at = at.f_back


def sample_memory() -> dict[Stack, tuple[int, int]]:
    """Return what is allocated, where `tracemalloc` traces it. Blocks."""
    found: dict[Stack, tuple[int, int]] = {}
    for statistic in tracemalloc.take_snapshot().statistics("traceback"):
        stack = tuple(
            Call(f"{frame.filename}:{frame.lineno}", frame.filename, frame.lineno)
            for frame in reversed(statistic.traceback)
        )
        found[stack] = (statistic.count, statistic.size)
    return found


def collapsed(weights: Weights) -> bytes:
    """Return a line a stack, outermost call first, as flame graphs are drawn from."""
    lines = (
        f"{';'.join(call.function for call in reversed(stack))} {weight}\n"
        for stack, (_, weight) in sorted(weights.items())
    )
    return "".join(lines).encode()


def encoded(weights: Weights, units: Units, seconds: float = 0.0) -> bytes:
    """Return a profile, compressed. `units` are type and unit of the two weights."""
    table = _Table()
    body = bytearray()
    for kind, unit in units:
        body += _message(1, _number(1, table.text(kind)) + _number(2, table.text(unit)))
    for stack, values in weights.items():
        places = _packed(1, (table.place(call) for call in stack))
        body += _message(2, places + _packed(2, values))
    body += table.encoded()
    body += _number(9, time.time_ns()) + _number(10, int(seconds * _NANO))
    packer = zlib.compressobj(wbits=31)  # gzip
    return packer.compress(bytes(body)) + packer.flush()


class _Table:
    """Texts, functions and places, each once and by its number."""

    def __init__(self) -> None:
        self._texts = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._places: dict[Call, int] = {}

    def text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def place(self, call: Call) -> int:
        function = (call.function, call.file)
        self._functions.setdefault(function, len(self._functions) + 1)
        return self._places.setdefault(call, len(self._places) + 1)

    def encoded(self) -> bytes:
        body = bytearray()
        for call, number in self._places.items():
            function = self._functions[call.function, call.file]
            line = _message(4, _number(1, function) + _number(2, call.line))
            body += _message(4, _number(1, number) + line)
        for (name, file), number in self._functions.items():
            named = _number(2, self.text(name)) + _number(3, self.text(name))
            body += _message(5, _number(1, number) + named + _number(4, self.text(file)))
        for text in self._texts:
            body += _message(6, text.encode(errors="backslashreplace"))
        return bytes(body)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(_varint(value) for value in values))
