"""/logs/: the host's /var/log as files and directory listings.

As the Go kubelet's file server, with one difference: what a link leads out of the directory
to is 404. There, whoever may write a link below /var/log of the host (a pod with a hostPath)
reads every file of the node through it.
"""

from __future__ import annotations

import email.utils
import html
import mimetypes
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from kubelet_trio.model import Offload, thread_offload
from kubelet_trio.server.http import HttpError, Request, Response, Send

SYSTEM_LOGS = Path("/var/log")
_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class _Found:
    """An open file, or the names in a directory."""

    descriptor: int = -1
    size: int = 0
    modified: float = 0.0
    names: tuple[str, ...] | None = None


async def answer_system_logs(
    request: Request,
    roots: Sequence[Path] = (SYSTEM_LOGS,),
    offload: Offload = thread_offload,
) -> Response:
    """Answer with a file or a listing below the first root. Raises `HttpError`.

    Links may lead into any of `roots`.
    """
    path = request.params.get("path", "")
    if ".." in path.split("/"):
        raise HttpError(HTTPStatus.BAD_REQUEST, "invalid URL path")
    try:
        found = await offload(_open, roots, path)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise HttpError(HTTPStatus.NOT_FOUND, "404 page not found") from exc
    except PermissionError as exc:
        raise HttpError(HTTPStatus.FORBIDDEN, "403 Forbidden") from exc
    except (OSError, ValueError) as exc:
        raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "500 Internal Server Error") from exc
    if found.names is not None:
        return Response(body=_listing(found.names), content_type="text/html; charset=utf-8")
    return _file_response(path, found, offload)


async def send_system_log(roots: Sequence[Path], offload: Offload, name: str, send: Send) -> bool:
    """Send a file below the first root; False where there is none."""
    try:
        found = await offload(_open, roots, name)
    except (OSError, ValueError):
        return False
    if found.names is not None:
        return False
    await _send_file(found, offload, send)
    return True


def _file_response(path: str, found: _Found, offload: Offload) -> Response:
    async def send_file(send: Send) -> None:
        await _send_file(found, offload, send)

    modified = email.utils.formatdate(found.modified, usegmt=True)
    kind = mimetypes.guess_type(path)[0] or "text/plain; charset=utf-8"
    return Response(content_type=kind, headers=(("Last-Modified", modified),), stream=send_file)


async def _send_file(found: _Found, offload: Offload, send: Send) -> None:
    left = found.size  # no more: a log that grows meanwhile would never end
    try:
        while left and (data := await offload(os.read, found.descriptor, min(left, _PIECE))):
            left -= len(data)
            await send(data)
    finally:
        os.close(found.descriptor)


def _open(roots: Sequence[Path], path: str) -> _Found:
    """Open what is there. Blocks. Raises OSError."""
    wanted = roots[0] / path
    # Not to wait for a pipe's writer, and not to make a terminal ours.
    descriptor = os.open(wanted, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    keep = False
    try:
        real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
            raise FileNotFoundError(path)
        what = os.fstat(descriptor)
        if stat.S_ISDIR(what.st_mode):
            with os.scandir(descriptor) as entries:
                names = sorted(e.name + ("/" if e.is_dir() else "") for e in entries)
            return _Found(names=tuple(names))
        if not stat.S_ISREG(what.st_mode):
            raise FileNotFoundError(path)
        keep = True
        return _Found(descriptor, what.st_size, what.st_mtime)
    finally:
        if not keep:
            os.close(descriptor)


def _listing(names: Sequence[str]) -> bytes:
    lines = (f'<a href="{quote(f"./{name}")}">{html.escape(name)}</a>\n' for name in names)
    listing = "".join(lines)
    return (
        "<!doctype html>\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<pre>\n{listing}</pre>\n"
    ).encode()
