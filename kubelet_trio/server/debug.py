"""What tells of the process itself: /statusz and /flagz.

Source: k8s.io/component-base/zpages.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence

from kubelet_trio import __version__
from kubelet_trio.server.http import Response

_WARNING = (
    "\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n\n"
)
_NOSNIFF = (("X-Content-Type-Options", "nosniff"),)


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
