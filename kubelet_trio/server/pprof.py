"""/debug/pprof: what the process does now, for `go tool pprof` and for people.

The profiles are those that this program has: its tasks stand for goroutines, its loop for the CPU
profile, and what `tracemalloc` traces for the heap. A name that is none here is 404 `Unknown
profile`, as Go's for one that it does not know.

Source: net/http/pprof.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

import trio

from kubelet_trio.model import Offload, Purpose, thread_offload, without_secrets
from kubelet_trio.server.http import Headers, HttpError, Request, Response, Send
from kubelet_trio.server.numbers import parse_decimal

if TYPE_CHECKING:
    from kubelet_trio.server.sampling import Units, Weights

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
_MOST_SECONDS = 300
_INDEX = """/debug/pprof/

cmdline
goroutine (the tasks of the agent, with stacks)
heap (where memory was allocated, if the agent was started with PYTHONTRACEMALLOC)
profile (the CPU time of the agent's loop; seconds=N, 30 by default; debug=1: as text)
"""


class Profiles:
    """The handler of what is below `/debug/pprof/`."""

    def __init__(self, offload: Offload = thread_offload.of(Purpose.STATS)) -> None:
        self._offload = offload
        self._is_sampling = False

    async def __call__(self, request: Request) -> Response:
        """Answer with a profile of this process. Raises `HttpError`."""
        name = request.params["name"]
        if name == "":
            return Response(body=_INDEX.encode(), headers=_NOSNIFF)
        if name == "cmdline":
            words = "\x00".join(_shown(sys.argv))
            return Response(body=words.encode(errors="backslashreplace"), headers=_NOSNIFF)
        if name == "goroutine":
            return Response(body="\n".join(_tasks()).encode(), headers=_NOSNIFF)
        if name == "symbol":  # of none: a profile has its names in it
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
        if threading.current_thread() is not threading.main_thread():
            message = "the agent does not run in the main thread of its process"
            raise HttpError(HTTPStatus.NOT_IMPLEMENTED, message)
        is_text = _is_text(request)

        async def write(send: Send) -> None:
            from kubelet_trio.server.sampling import sampling_cpu  # few ever ask

            if self._is_sampling:
                return  # another one has begun since
            self._is_sampling = True
            try:
                with sampling_cpu() as found:
                    await trio.sleep(seconds)
            finally:
                self._is_sampling = False
            units = ("samples", "count"), ("cpu", "nanoseconds")
            await send(_written(found, units, seconds, is_text=is_text))

        return Response(
            stream=write, headers=_headers("profile"), content_type=_type(is_text=is_text)
        )

    async def _heap(self, request: Request) -> Response:
        import tracemalloc  # and pickle with it

        from kubelet_trio.server.sampling import sample_memory

        if not tracemalloc.is_tracing():
            raise HttpError(
                HTTPStatus.NOT_IMPLEMENTED,
                "no allocations are traced: start the agent with PYTHONTRACEMALLOC=10 in its "
                "environment, which costs memory and time",
            )
        found = await self._offload(sample_memory)
        is_text = _is_text(request)
        units = ("inuse_objects", "count"), ("inuse_space", "bytes")
        body = _written(found, units, is_text=is_text)
        return Response(body=body, headers=_headers("heap"), content_type=_type(is_text=is_text))


def _headers(name: str) -> Headers:
    return (*_NOSNIFF, ("Content-Disposition", f'attachment; filename="{name}"'))


def _written(found: Weights, units: Units, seconds: float = 0.0, *, is_text: bool) -> bytes:
    from kubelet_trio.server.sampling import collapsed, encoded

    return collapsed(found) if is_text else encoded(found, units, seconds)


def _type(*, is_text: bool) -> str:
    return "text/plain; charset=utf-8" if is_text else "application/octet-stream"


def _is_text(request: Request) -> bool:
    return (parse_decimal(request.query.get("debug", "")) or 0) > 0


def _seconds(request: Request) -> int:
    """Return how long to look; what is no number is the default, as Go's. Raises `HttpError`."""
    seconds = parse_decimal(request.query.get("seconds", "")) or 0
    if seconds > _MOST_SECONDS:
        message = f"profile duration exceeds {_MOST_SECONDS} s"
        raise HttpError(HTTPStatus.BAD_REQUEST, message)
    return seconds if seconds > 0 else _DEFAULT_SECONDS


def _shown(words: Sequence[str]) -> Iterator[str]:
    """Yield a command line without secrets: those in the manifest URL, and its headers."""
    hide: Callable[[str], str] | None = None  # the word to come
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
