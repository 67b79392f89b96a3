"""/debug/pprof, /debug/tasks and /debug/log: the agent's own process.

The profiles have Python's equivalents: Trio tasks and worker threads for goroutines, the threads
that run Python for the CPU profile, and the allocations that `tracemalloc` traces for the heap. Any
other name is 404 `Unknown profile`, as in Go. Nothing is traced or sampled before a request.

Source: net/http/pprof.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

import trio

from kubelet_trio.model import (
    LOG_LEVELS,
    Offload,
    Purpose,
    recent_log,
    thread_offload,
    without_secrets,
)
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.types import Headers, Request, Response, Send, parse_decimal

if TYPE_CHECKING:
    from kubelet_trio.server.debug.sampling import Units, Weights

_HIDDEN = "<hidden>"
_SECRET_FLAGS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "manifest-url": without_secrets,
        "manifest-url-header": lambda _: _HIDDEN,
        "storage-driver-password": lambda _: _HIDDEN,
    }
)
_NOSNIFF: Headers = (("X-Content-Type-Options", "nosniff"),)
_DEFAULT_SECONDS = 30
_MAX_SECONDS = 300
_INDEX = """/debug/pprof/

cmdline
goroutine (the tasks of the agent and its threads, with stacks; debug=1: as text)
heap (where memory was allocated: since the start with PYTHONTRACEMALLOC, else while it is traced;
    seconds=N, 10 by default)
profile (the CPU time of the agent's threads; seconds=N, 30 by default; debug=1: as text)
"""
# As of the same process: signals, and the tracing of allocations, are the process' own.
_in_use: set[str] = set()
_HEAP_SECONDS = 10
_HEAP_DEPTH = 16  # calls of an allocation's stack


class Profiles:
    """The handler of the paths below `/debug/pprof/`."""

    def __init__(self, offload: Offload = thread_offload.of(Purpose.STATS)) -> None:
        self._offload = offload

    async def __call__(self, request: Request) -> Response:
        """Answer with a profile of this process. Raises `HttpError`."""
        name = request.params["name"]
        if name == "":
            return Response(body=_INDEX.encode(), headers=_NOSNIFF)
        if name == "cmdline":
            words = "\x00".join(_without_secrets(sys.argv))
            return Response(body=words.encode(errors="backslashreplace"), headers=_NOSNIFF)
        if name == "goroutine":
            return self._tasks(request)
        if name == "symbol":  # pprof need not look up names: our profiles contain them
            return Response(body=b"num_symbols: 0\n", headers=_NOSNIFF)
        if name == "profile":
            return self._cpu(request)
        if name == "heap":
            return await self._heap(request)
        if name == "trace":
            message = "an execution trace is Go's; see goroutine and profile"
            raise HttpError(HTTPStatus.NOT_IMPLEMENTED, message)
        raise HttpError(HTTPStatus.NOT_FOUND, "Unknown profile")

    def _cpu(self, request: Request) -> Response:
        seconds = _seconds(request)
        if "profile" in _in_use:
            raise _busy("cpu")
        # An embedding program may run the agent in a thread; Python runs signal handlers only in
        # the main one.
        if threading.current_thread() is not threading.main_thread():
            message = "the agent does not run in the main thread of its process"
            raise HttpError(HTTPStatus.NOT_IMPLEMENTED, message)
        is_text = _is_text(request)

        async def write(send: Send) -> None:
            from kubelet_trio.server.debug.sampling import sampling_cpu  # rarely used

            if "profile" in _in_use:
                return  # another request began after the check above; SIGPROF serves only one
            with _using("profile"), sampling_cpu() as found:
                await trio.sleep(seconds)
            units = ("samples", "count"), ("cpu", "nanoseconds")
            await send(_encode(found, units, seconds, is_text=is_text))

        return Response(
            stream=write, headers=_headers("profile"), content_type=_type(is_text=is_text)
        )

    def _tasks(self, request: Request) -> Response:
        from kubelet_trio.server.debug.sampling import task_stacks

        if _is_text(request):
            return Response(body="\n".join(task_lines()).encode(), headers=_NOSNIFF)
        found = {stack: (count,) for stack, count in task_stacks().items()}
        body = _encode(found, (("goroutine", "count"),), is_text=False)
        return Response(body=body, headers=_headers("goroutine"), content_type=_type(is_text=False))

    async def _heap(self, request: Request) -> Response:
        import tracemalloc  # imports pickle

        from kubelet_trio.server.debug.sampling import sample_memory

        seconds = _seconds(request, _HEAP_SECONDS)
        if "heap" in _in_use:
            raise _busy("heap")
        if tracemalloc.is_tracing():
            found = await self._offload(sample_memory)
        else:
            with _using("heap"):
                tracemalloc.start(_HEAP_DEPTH)
                try:
                    await trio.sleep(seconds)
                    found = await self._offload(sample_memory)
                finally:
                    tracemalloc.stop()
        is_text = _is_text(request)
        units = ("inuse_objects", "count"), ("inuse_space", "bytes")
        body = _encode(found, units, is_text=is_text)
        return Response(body=body, headers=_headers("heap"), content_type=_type(is_text=is_text))


@contextmanager
def _using(name: str) -> Iterator[None]:
    _in_use.add(name)
    try:
        yield
    finally:
        _in_use.discard(name)


def _busy(name: str) -> HttpError:
    return HttpError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        f"Could not enable {name.upper() if name == 'cpu' else name} profiling: "
        f"{name} profiling already in use",
    )


def tasks_page(_: Request) -> Response:
    """Return the page of /debug/tasks."""
    return Response(body="\n".join(task_lines()).encode(), headers=_NOSNIFF)


def _headers(name: str) -> Headers:
    return (*_NOSNIFF, ("Content-Disposition", f'attachment; filename="{name}"'))


def _encode(found: Weights, units: Units, seconds: float = 0.0, *, is_text: bool) -> bytes:
    from kubelet_trio.server.debug.sampling import collapsed, encoded

    return collapsed(found) if is_text else encoded(found, units, seconds)


def _type(*, is_text: bool) -> str:
    return "text/plain; charset=utf-8" if is_text else "application/octet-stream"


def _is_text(request: Request) -> bool:
    return (parse_decimal(request.query.get("debug", "")) or 0) > 0


def _seconds(request: Request, default: int = _DEFAULT_SECONDS) -> int:
    """Return the profile's duration; the default if malformed, as in Go. Raises `HttpError` 400."""
    seconds = parse_decimal(request.query.get("seconds", "")) or 0
    if seconds > _MAX_SECONDS:
        message = f"profile duration exceeds {_MAX_SECONDS} s"
        raise HttpError(HTTPStatus.BAD_REQUEST, message)
    return seconds if seconds > 0 else default


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    """Yield a command line with the values of secret flags hidden."""
    hide: Callable[[str], str] | None = None  # how to hide the next word
    for word in words:
        if hide is not None:
            yield hide(word)
            hide = None
            continue
        flag, sign, value = word.partition("=")
        if flag.startswith("-"):
            hide = _SECRET_FLAGS.get(flag.lstrip("-").replace("_", "-"))
        if hide is not None and sign:
            yield f"{flag}={hide(value)}"
            hide = None
        else:
            yield word


def task_lines() -> Iterator[str]:
    """Yield each task and each other thread with its stack, innermost call last."""
    from kubelet_trio.server.debug.sampling import other_threads, tasks

    for task in tasks():
        yield f"task {task.name}:"
        yield "".join(traceback.StackSummary.extract(task.iter_await_frames()).format())
    for name, frame in other_threads():
        yield f"thread {name}:"
        yield "".join(traceback.format_stack(frame))


def log_page(request: Request) -> Response:
    """Return the latest entries of the agent's log, one a line. Raises `HttpError` 400.

    `level` is the least one that is shown, `lines` their number.
    """
    level, lines = request.query.get("level", ""), request.query.get("lines", "")
    if level and level not in LOG_LEVELS:
        message = f"level: {level!r} is none of {', '.join(LOG_LEVELS)}"
        raise HttpError(HTTPStatus.BAD_REQUEST, message)
    last = parse_decimal(lines) if lines else None
    if lines and (last is None or last < 0):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"lines: {lines!r} is not a number")
    text = "".join(f"{line}\n" for line in recent_log.lines(level, last))
    return Response(body=text.encode(), headers=_NOSNIFF)
