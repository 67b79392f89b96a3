"""/debug/pprof, /statusz and /flagz: the agent's own process.

The profiles have Python's equivalents: Trio tasks for goroutines, the main thread for the CPU
profile, and the allocations that `tracemalloc` traces for the heap. Any other name is 404
`Unknown profile`, as in Go.

Source: net/http/pprof; k8s.io/component-base/zpages.
"""

from __future__ import annotations

import datetime
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

import trio

from kubelet_trio import __version__
from kubelet_trio.model import Offload, Purpose, thread_offload, without_secrets
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
_WARNING = (
    "\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n\n"
)
_DEFAULT_SECONDS = 30
_MAX_SECONDS = 300
_INDEX = """/debug/pprof/

cmdline
goroutine (the tasks of the agent, with stacks)
heap (where memory was allocated, if the agent was started with PYTHONTRACEMALLOC)
profile (the CPU time of the agent's loop; seconds=N, 30 by default; debug=1: as text)
"""


class Profiles:
    """The handler of the paths below `/debug/pprof/`."""

    def __init__(self, offload: Offload = thread_offload.of(Purpose.STATS)) -> None:
        self._offload = offload
        self._is_sampling = False

    async def __call__(self, request: Request) -> Response:
        """Answer with a profile of this process. Raises `HttpError`."""
        name = request.params["name"]
        if name == "":
            return Response(body=_INDEX.encode(), headers=_NOSNIFF)
        if name == "cmdline":
            words = "\x00".join(_without_secrets(sys.argv))
            return Response(body=words.encode(errors="backslashreplace"), headers=_NOSNIFF)
        if name == "goroutine":
            return Response(body="\n".join(_tasks()).encode(), headers=_NOSNIFF)
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
        if self._is_sampling:
            raise HttpError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "Could not enable CPU profiling: cpu profiling already in use",
            )
        # An embedding program may run the agent in a thread; Python runs signal handlers only in
        # the main one.
        if threading.current_thread() is not threading.main_thread():
            message = "the agent does not run in the main thread of its process"
            raise HttpError(HTTPStatus.NOT_IMPLEMENTED, message)
        is_text = _is_text(request)

        async def write(send: Send) -> None:
            from kubelet_trio.server.debug.sampling import sampling_cpu  # rarely used

            if self._is_sampling:
                return  # another request began after the check above; SIGPROF serves only one
            self._is_sampling = True
            try:
                with sampling_cpu() as found:
                    await trio.sleep(seconds)
            finally:
                self._is_sampling = False
            units = ("samples", "count"), ("cpu", "nanoseconds")
            await send(_encode(found, units, seconds, is_text=is_text))

        return Response(
            stream=write, headers=_headers("profile"), content_type=_type(is_text=is_text)
        )

    async def _heap(self, request: Request) -> Response:
        import tracemalloc  # imports pickle

        from kubelet_trio.server.debug.sampling import sample_memory

        if not tracemalloc.is_tracing():
            raise HttpError(
                HTTPStatus.NOT_IMPLEMENTED,
                "no allocations are traced: start the agent with PYTHONTRACEMALLOC=10 in its "
                "environment, which costs memory and time",
            )
        found = await self._offload(sample_memory)
        is_text = _is_text(request)
        units = ("inuse_objects", "count"), ("inuse_space", "bytes")
        body = _encode(found, units, is_text=is_text)
        return Response(body=body, headers=_headers("heap"), content_type=_type(is_text=is_text))


def _headers(name: str) -> Headers:
    return (*_NOSNIFF, ("Content-Disposition", f'attachment; filename="{name}"'))


def _encode(found: Weights, units: Units, seconds: float = 0.0, *, is_text: bool) -> bytes:
    from kubelet_trio.server.debug.sampling import collapsed, encoded

    return collapsed(found) if is_text else encoded(found, units, seconds)


def _type(*, is_text: bool) -> str:
    return "text/plain; charset=utf-8" if is_text else "application/octet-stream"


def _is_text(request: Request) -> bool:
    return (parse_decimal(request.query.get("debug", "")) or 0) > 0


def _seconds(request: Request) -> int:
    """Return the profile's duration; the default if malformed, as in Go. Raises `HttpError` 400."""
    seconds = parse_decimal(request.query.get("seconds", "")) or 0
    if seconds > _MAX_SECONDS:
        message = f"profile duration exceeds {_MAX_SECONDS} s"
        raise HttpError(HTTPStatus.BAD_REQUEST, message)
    return seconds if seconds > 0 else _DEFAULT_SECONDS


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


def _tasks() -> Iterator[str]:
    """Yield each task with its stack, innermost call last."""
    root = trio.lowlevel.current_root_task()
    waiting = [root] if root is not None else []
    while waiting:
        task = waiting.pop()
        yield f"task {task.name}:"
        yield "".join(traceback.StackSummary.extract(task.iter_await_frames()).format())
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def statusz(started_at: float, now: float, kubernetes: str, paths: Sequence[str]) -> Response:
    """Return the page of /statusz. Times are Unix seconds."""
    started = datetime.datetime.fromtimestamp(started_at, datetime.UTC)
    up = int(now - started_at)
    lines = {
        "Started": started.strftime("%a %b %d %H:%M:%S UTC %Y"),
        "Up": f"{up // 3600} hr {up // 60 % 60:02} min {up % 60:02} sec",
        "Python version": sys.version.split()[0],
        "Binary version": __version__,
        "Emulation version": kubernetes.removeprefix("v").rpartition(".")[0],
        "Paths": " ".join(paths),
    }
    return _page("statusz", (f"{name}: {value}" for name, value in lines.items()))


def flagz(flags: Mapping[str, str]) -> Response:
    """Return the page of /flagz."""
    return _page("flagz", (f"{name}={value}" for name, value in sorted(flags.items())))


def _page(name: str, lines: Iterator[str]) -> Response:
    text = f"\nkubelet {name}{_WARNING}" + "\n".join(lines) + "\n"
    return Response(body=text.encode(), headers=_NOSNIFF)
