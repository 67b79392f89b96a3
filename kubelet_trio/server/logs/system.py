"""/logs/: the host's /var/log as files and directory listings.

Like the Go kubelet's file server, but a symbolic link that leads out of the directory is 404. In
the Go kubelet, a pod that can create a link below the host's /var/log (by a hostPath volume) can
read every file of the node.
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

import trio

from kubelet_trio.model import Offload, Purpose, thread_offload
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.types import Request, Response, Send

SYSTEM_LOGS = Path("/var/log")
_CHUNK = 256 * 1024
# A log may contain HTML and scripts from untrusted programs: a browser must not execute them.
_SAFE_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; sandbox"),
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file, or a directory with the names in it."""

    size: int = 0
    modified: float = 0.0
    names: tuple[str, ...] | None = None


async def answer_system_logs(
    request: Request,
    roots: Sequence[Path] = (SYSTEM_LOGS,),
    offload: Offload = thread_offload.of(Purpose.LOGS),
) -> Response:
    """Answer with a file or a listing below the first of `roots`. Raises `HttpError`.

    Symbolic links may lead into any of `roots`.
    """
    # As Go's http.ServeFile.
    path = request.params.get("path", "")
    if ".." in path.split("/"):
        raise HttpError(HTTPStatus.BAD_REQUEST, "invalid URL path")
    try:
        found = await offload(_stat, roots, path)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise HttpError(HTTPStatus.NOT_FOUND, "404 page not found") from exc
    except PermissionError as exc:
        raise HttpError(HTTPStatus.FORBIDDEN, "403 Forbidden") from exc
    except (OSError, ValueError) as exc:
        raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "500 Internal Server Error") from exc
    if found.names is not None:
        listing = _listing(found.names)
        return Response(
            body=listing, content_type="text/html; charset=utf-8", headers=_SAFE_HEADERS
        )
    return _file_response(roots, path, found, offload)


async def send_system_log(roots: Sequence[Path], offload: Offload, name: str, send: Send) -> bool:
    """Send a file below the first of `roots`; return False if there is none."""
    try:
        found = await offload(_stat, roots, name)
    except (OSError, ValueError):
        return False
    if found.names is not None:
        return False
    await _send_file(roots, name, found.size, offload, send)
    return True


def _file_response(roots: Sequence[Path], path: str, found: _Entry, offload: Offload) -> Response:
    # The file is opened when the body is sent: HEAD, or a client that has gone, opens nothing.
    async def send_file(send: Send) -> None:
        await _send_file(roots, path, found.size, offload, send)

    modified = email.utils.formatdate(found.modified, usegmt=True)
    kind = mimetypes.guess_type(path)[0] or "text/plain; charset=utf-8"
    return Response(
        content_type=kind, headers=(("Last-Modified", modified), *_SAFE_HEADERS), stream=send_file
    )


async def _send_file(
    roots: Sequence[Path], path: str, size: int, offload: Offload, send: Send
) -> None:
    """Send at most `size` bytes of a file: a growing log could otherwise be sent for ever."""
    try:
        descriptor = await offload(_open, roots, path)
    except OSError as exc:
        raise trio.BrokenResourceError(f"{path} is gone: {exc}") from exc
    try:
        while size and (data := await offload(os.read, descriptor, min(size, _CHUNK))):
            size -= len(data)
            await send(data)
    finally:
        os.close(descriptor)


def _stat(roots: Sequence[Path], path: str) -> _Entry:
    """Return the file or directory at a path. Blocks. Raises OSError."""
    descriptor = _open(roots, path)
    try:
        what = os.fstat(descriptor)
        if stat.S_ISDIR(what.st_mode):
            with os.scandir(descriptor) as entries:
                names = sorted(e.name + ("/" if e.is_dir() else "") for e in entries)
            return _Entry(names=tuple(names))
        return _Entry(what.st_size, what.st_mtime)
    finally:
        os.close(descriptor)


def _open(roots: Sequence[Path], path: str) -> int:
    """Open a file or directory. Blocks. Raises OSError."""
    # open(2): O_NONBLOCK does not wait for the writer of a FIFO, O_NOCTTY does not take over a
    # terminal.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(roots[0] / path, flags)
    keep = False
    try:
        # Of the open file, so that no link can be changed between the check and the open.
        real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
            raise FileNotFoundError(path)
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise FileNotFoundError(path)
        keep = True
        return descriptor
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
