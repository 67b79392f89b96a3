"""CPU, memory and task profiles in the format of `go tool pprof`.

The stacks of all threads are sampled after each 10 ms of CPU time of the process. A sample's weight
is the CPU time of its thread since the last one, so that what waits weighs nothing. Threads of
libraries that run no Python are not seen.

Source: proto/profile.proto of github.com/google/pprof; the numbers below are its field numbers.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import trio

from kubelet_trio.model import encode_bytes, encode_number, encode_varint

_PERIOD = 0.01  # seconds of CPU time between two samples
_MAX_DEPTH = 256  # calls of a stack
_NANO = 10**9


class StackCall(NamedTuple):
    """One call of a stack."""

    function: str
    file: str
    line: int


Stack = tuple[StackCall, ...]  # the innermost call first
# The count, and nanoseconds or bytes; of tasks their count alone.
Weights = Mapping[Stack, tuple[int, ...]]
Units = tuple[tuple[str, str], ...]  # type and unit of each weight


@contextmanager
def sampling_cpu() -> Iterator[Weights]:
    """Sample the process' threads during the block; the yielded mapping fills up.

    Raises ValueError in another thread, where Python allows no signal handlers.
    """
    # A signal, not a sampling thread: a thread sees the loop only where it releases the GIL,
    # which is mostly where it waits.
    found: dict[Stack, tuple[int, int]] = {}
    main = threading.get_ident()
    before = {thread: _cpu_time(thread) for thread in sys._current_frames()}  # of live threads

    def sample(_signal: int, frame: FrameType | None) -> None:
        # This runs in the main thread, whose current frame is this function's.
        for thread, at in sys._current_frames().items():
            top = frame if thread == main else at
            now = _cpu_time(thread)
            # A new thread, or one whose number an ended one had: it counts from now on.
            used = now - before.get(thread, now)
            before[thread] = now
            if top is not None and used > 0:
                stack = tuple(_calls(top))
                count, spent = found.get(stack, (0, 0))
                found[stack] = (count + 1, spent + used)

    signal.signal(signal.SIGPROF, sample)
    # Restart interrupted system calls (SA_RESTART), also in extensions that ignore EINTR.
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _PERIOD, _PERIOD)
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # A last signal may be pending, and its default action ends the process. SIG_IGN would
        # be inherited through execve(2) by the programs that the agent starts.
        signal.signal(signal.SIGPROF, _ignore)


def _cpu_time(thread: int) -> int:
    """Return the CPU time of a thread in ns; 0 if it ends at this moment."""
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(thread))
    except OSError:
        return 0


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    pass


def _calls(frame: FrameType) -> Iterator[StackCall]:
    at: FrameType | None = frame
    for _ in range(_MAX_DEPTH):
        if at is None:
            return
        yield _call(at, at.f_lineno)
        at = at.f_back


def _call(frame: FrameType, line: int | None) -> StackCall:
    """Return a frame's call; an instruction of no line counts for the function's first."""
    code = frame.f_code
    return StackCall(code.co_qualname, code.co_filename, line or code.co_firstlineno)


def task_stacks() -> Counter[Stack]:
    """Return how many Trio tasks, and other threads, wait or run at each stack."""
    found: Counter[Stack] = Counter()
    for task in tasks():
        calls = [_call(frame, line) for frame, line in task.iter_await_frames()]
        found[tuple(reversed(calls)) or (StackCall(task.name, "", 0),)] += 1
    for name, frame in other_threads():
        found[(*_calls(frame), StackCall(f"thread {name}", "", 0))] += 1
    return found


def tasks() -> Iterator[trio.lowlevel.Task]:
    """Yield the tasks of the running loop, parents first."""
    root = trio.lowlevel.current_root_task()
    waiting = [root] if root is not None else []
    while waiting:
        task = waiting.pop()
        yield task
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def other_threads() -> Iterator[tuple[str, FrameType]]:
    """Yield the names and frames of the threads besides this one."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread.ident != threading.get_ident():
            yield thread.name, frame


def sample_memory() -> dict[Stack, tuple[int, int]]:
    """Return the allocations that `tracemalloc` has traced. Blocks."""
    found: dict[Stack, tuple[int, int]] = {}
    for statistic in tracemalloc.take_snapshot().statistics("traceback"):
        stack = tuple(
            StackCall(f"{frame.filename}:{frame.lineno}", frame.filename, frame.lineno)
            for frame in reversed(statistic.traceback)
        )
        found[stack] = (statistic.count, statistic.size)
    return found


def collapsed(weights: Weights) -> bytes:
    """Return one line for each stack, outermost call first, as flamegraph.pl reads them."""
    lines = (
        f"{';'.join(call.function for call in reversed(stack))} {amounts[-1]}\n"
        for stack, amounts in sorted(weights.items())
    )
    return "".join(lines).encode()


def encoded(weights: Weights, units: Units, seconds: float = 0.0) -> bytes:
    """Return a compressed profile. `units` are type and unit of each weight."""
    table = _Table()
    body = bytearray()
    for kind, unit in units:
        body += encode_bytes(
            1, encode_number(1, table.text(kind)) + encode_number(2, table.text(unit))
        )
    for stack, values in weights.items():
        locations = _packed(1, (table.location(call) for call in stack))
        body += encode_bytes(2, locations + _packed(2, values))
    body += table.encoded()
    body += encode_number(9, time.time_ns()) + encode_number(10, int(seconds * _NANO))
    compressor = zlib.compressobj(wbits=31)  # gzip
    return compressor.compress(bytes(body)) + compressor.flush()


class _Table:
    """The strings, functions and locations of a profile, each with its id."""

    def __init__(self) -> None:
        self._texts = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[StackCall, int] = {}

    def text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def location(self, call: StackCall) -> int:
        function = (call.function, call.file)
        self._functions.setdefault(function, len(self._functions) + 1)
        return self._locations.setdefault(call, len(self._locations) + 1)

    def encoded(self) -> bytes:
        body = bytearray()
        for call, number in self._locations.items():
            function = self._functions[call.function, call.file]
            line = encode_bytes(4, encode_number(1, function) + encode_number(2, call.line))
            body += encode_bytes(4, encode_number(1, number) + line)
        for (name, file), number in self._functions.items():
            named = encode_number(2, self.text(name)) + encode_number(3, self.text(name))
            body += encode_bytes(
                5, encode_number(1, number) + named + encode_number(4, self.text(file))
            )
        for text in self._texts:
            body += encode_bytes(6, text.encode(errors="backslashreplace"))
        return bytes(body)


def _packed(field: int, values: Iterable[int]) -> bytes:
    return encode_bytes(field, b"".join(encode_varint(value) for value in values))
