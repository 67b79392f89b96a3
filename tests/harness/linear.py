"""Does a parser's work grow with its input, or with the square of it? Counted, not timed.

Steps are what the interpreter does: lines of Python, and calls of C functions with the size of what
they are handed. Three sizes of one shape are tried; twice the input may cost twice the steps.

A C function that is quadratic in itself (a regular expression that goes back, `+=` on text) does
not show in steps, so the CPU time of two more sizes is compared: one eight times the other may take
24 times as long, where the square takes 64.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, NamedTuple

import trio

_SLACK = 1.5  # on twice the steps: tables that double, buffers that grow
_NOISE = 0.25  # seconds of CPU that a busy machine may add to either


class Parser(NamedTuple):
    """A parser of foreign text and a shape that may be its worst, `n` times."""

    name: str
    parse: Callable[[Any], object]
    make: Callable[[int], Any]


def steps(parse: Callable[[Any], object], value: object) -> int:
    """Return how many steps it takes; what it raises is an answer as well."""
    taken = 0

    def trace(_frame: FrameType, _event: str, _arg: object) -> Callable[..., Any]:
        nonlocal taken
        taken += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _run(parse, value)
    finally:
        sys.settrace(before)
    return taken


class _Turns(trio.abc.Instrument):
    """Counts the steps that each task takes before others get their turn."""

    def __init__(self) -> None:
        self.taken = self.longest = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, self.taken)
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken = 0

    def trace(self, _frame: FrameType, _event: str, _arg: object) -> Callable[..., Any]:
        self.taken += 1
        return self.trace


def longest_turn(main: Callable[[], Awaitable[object]]) -> int:
    """Run `main` in a loop of its own; return the most steps that a task took in one go."""
    turns = _Turns()
    before = sys.gettrace()
    sys.settrace(turns.trace)
    try:
        trio.run(main, instruments=[turns])
    finally:
        sys.settrace(before)
    return turns.longest


def check_linear(parser: Parser, n: int = 2_000) -> None:
    """Fail where four times the input takes more than four times the work, with some slack."""
    small, middle, large = (steps(parser.parse, parser.make(n * k)) for k in (1, 2, 4))
    bound = 200  # steps that every call costs
    assert middle <= 2 * small * _SLACK + bound, (parser.name, small, middle, large)
    assert large <= 2 * middle * _SLACK + bound, (parser.name, small, middle, large)
    short, long = (_cpu_time(parser.parse, parser.make(n * k)) for k in (4, 32))
    assert long <= 8 * short * 3 + _NOISE, f"{parser.name}: {short:.2f} s, then {long:.2f} s of CPU"


def _cpu_time(parse: Callable[[Any], object], value: object) -> float:
    # A full collection takes a second in a process that has run thousands of tests.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        began = time.process_time()
        _run(parse, value)
        return time.process_time() - began
    finally:
        if was_enabled:
            gc.enable()


def _run(parse: Callable[[Any], object], value: object) -> None:
    try:
        parse(value)
    except (ValueError, OSError):
        return  # refused: that is work done as well
