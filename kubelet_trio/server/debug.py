"""What tells of the process itself: /debug/pprof, /statusz and /flagz.

The profiles are those that this program has: its tasks stand for goroutines. Where Go has
another, the answer is 404 `Unknown profile`, as Go's for a name that it does not know.

Source: k8s.io/component-base/zpages, net/http/pprof.
"""

from __future__ import annotations

import datetime
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType

import trio

from kubelet_trio import __version__
from kubelet_trio.model import without_secrets
from kubelet_trio.server.http import HttpError, Request, Response

_WARNING = (
    "\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n\n"
)
_HIDDEN = "<hidden>"
_SECRET_FLAGS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "manifest-url": without_secrets,
        "manifest-url-header": lambda _: _HIDDEN,
        "storage-driver-password": lambda _: _HIDDEN,
    }
)
_NOSNIFF = (("X-Content-Type-Options", "nosniff"),)


async def answer_profile(request: Request) -> Response:
    """Answer with a profile of this process. Raises `HttpError` 404."""
    name = request.params["name"]
    if name == "":
        return Response(
            body=b"/debug/pprof/\n\ncmdline\ngoroutine (the tasks of the agent, with stacks)\n",
            headers=_NOSNIFF,
        )
    if name == "cmdline":
        return Response(
            body="\x00".join(_shown(sys.argv)).encode(errors="backslashreplace"), headers=_NOSNIFF
        )
    if name == "goroutine":
        return Response(body="\n".join(_tasks()).encode(), headers=_NOSNIFF)
    raise HttpError(HTTPStatus.NOT_FOUND, "Unknown profile")


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
