"""`/logs/?query=`: the logs of the node's services, from the journal or from files.

A query becomes a command line of journalctl. Every argument is one of our options, with the
client's text only after its `=`. There is no shell; the command has a deadline and ends when the
client disconnects.

Source: pkg/kubelet/kubelet_server_journal.go and kubelet_server_journal_linux.go (NodeLogQuery).
"""

from __future__ import annotations

import datetime
import re
import subprocess
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

import trio

from kubelet_trio.model import Purpose, thread_offload
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.types import Request, Response, Send, parse_decimal
from kubelet_trio.server.logs.system import answer_system_logs, send_system_log

LIMIT = 30.0  # seconds that a query may take
MAX_TAIL = 100_000
_MAX_SERVICE = 256
_MAX_SERVICES = 4
_UNSAFE = re.compile(r"[^a-zA-Z\-_0-9@]")
_CHUNK = 64 * 1024
_TEXT = "text/plain;charset=UTF-8"
JOURNAL = "journalctl"

# Sends the log file with a name below /var/log; returns False if there is none.
SendFile = Callable[[str, Send], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class NodeLogQuery:
    """A query for the logs of services, or for one file."""

    services: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    tail: int | None = None
    boot: int | None = None
    pattern: str = ""

    @property
    def has_options(self) -> bool:
        return self != NodeLogQuery(self.services, self.files)


def read_log_query(arguments: Sequence[tuple[str, str]]) -> NodeLogQuery | None:
    """Read a query; None if the request has no query. Raises `HttpError` 400."""
    errors: list[str] = []
    # As upstream, a value with a slash is a file, any other a service.
    asked = [value for name, value in arguments if name == "query"]
    files = tuple(q for q in asked if "/" in q or "\\" in q)
    services = tuple(q for q in asked if q not in files and q.strip())
    if asked and not (files or services):
        shown = ", ".join(_quoted(q) for q in asked)
        errors.append(f"query: Invalid value: []string{{{shown}}}: query cannot be empty")
    given: dict[str, str] = {}
    for name, value in arguments:
        given.setdefault(name, value)
    query = NodeLogQuery(
        services,
        files,
        _time(given.get("sinceTime", ""), "sinceTime", errors),
        _time(given.get("untilTime", ""), "untilTime", errors),
        _integer(given.get("tailLines", ""), "tailLines", errors),
        _integer(given.get("boot", ""), "boot", errors),
        given.get("pattern", ""),
    )
    if errors:
        raise HttpError(HTTPStatus.BAD_REQUEST, _joined(errors))
    return None if query == NodeLogQuery() else query


def check_log_query(query: NodeLogQuery) -> None:
    """Check the values of a query. Raises `HttpError` 406."""
    errors = [*_service_errors(query), *_source_errors(query)]
    if query.since is not None and query.until is not None and query.since > query.until:
        errors.append(
            f"untilTime: Invalid value: {_quoted(_utc(query.until))}: must be after `sinceTime`"
        )
    if query.boot is not None and query.boot > 0:
        errors.append(f"boot: Invalid value: {query.boot}: must be less than 1")
    if query.tail is not None and not 0 <= query.tail <= MAX_TAIL:
        errors.append(
            f"tailLines: Invalid value: {query.tail}: must be between 0 and {MAX_TAIL}, inclusive"
        )
    problem = _pattern_problem(query.pattern)
    if problem:
        errors.append(f"pattern: Invalid value: {_quoted(query.pattern)}: {problem}")
    if errors:
        raise HttpError(HTTPStatus.NOT_ACCEPTABLE, _joined(errors))


def journal_arguments(query: NodeLogQuery, services: Sequence[str]) -> list[str]:
    """Return journalctl's arguments for the given services of a query."""
    # `--utc`, and `UTC` in the times below: the Go kubelet passes times without a zone, which
    # journalctl reads as local ones.
    arguments = ["--utc", "--no-pager", "--output=short-precise"]
    if query.since is not None:
        arguments.append(f"--since={_utc(query.since)}")
    if query.until is not None:
        arguments.append(f"--until={_utc(query.until)}")
    if query.tail is not None:
        arguments += ["--pager-end", f"--lines={query.tail}"]
    arguments += [f"--unit={service}" for service in services]
    if query.pattern:
        arguments += [f"--grep={query.pattern}", "--case-sensitive=false"]
    if query.boot is not None:
        arguments.append(f"--boot={query.boot}")
    return arguments


def log_query_response(
    query: NodeLogQuery, request: Request, send_file: SendFile, journal: str = JOURNAL
) -> Response:
    """Answer a checked query for services with their logs, as journalctl writes them."""
    is_compressed = request.headers.get("accept-encoding") == "gzip"

    async def stream(send: Send) -> None:
        out = _GzipSender(send) if is_compressed else None
        with trio.move_on_after(LIMIT):
            await _copy(query, out.send if out is not None else send, send_file, journal)
        if out is not None:
            await out.finish()

    headers = (("Content-Encoding", "gzip"),) if is_compressed else ()
    return Response(content_type=_TEXT, headers=headers, stream=stream)


async def answer_log_query(request: Request, roots: Sequence[Path]) -> Response:
    """Answer `/logs/`, with or without a query. Raises `HttpError`."""
    query = read_log_query(request.arguments)
    if query is None:
        return await answer_system_logs(request, roots)
    if request.params.get("path", ""):
        raise HttpError(HTTPStatus.NOT_ACCEPTABLE, "path not allowed in query mode")
    check_log_query(query)
    if query.services:
        send = partial(send_system_log, roots, thread_offload.of(Purpose.LOGS))
        return log_query_response(query, request, send)
    path = query.files[0].replace("\\", "/").lstrip("/")
    return await answer_system_logs(replace(request, params={"path": path}), roots)


class _GzipSender:
    """Compresses each piece and sends it at once."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)  # 16: gzip

    async def send(self, data: bytes) -> None:
        # Flushed: otherwise lines wait in the compressor until it has enough of them.
        compressed = self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        await self._send(compressed)

    async def finish(self) -> None:
        await self._send(self._compressor.flush())


async def _copy(query: NodeLogQuery, send: Send, send_file: SendFile, journal: str) -> None:
    # Units that the journal has entries of, not those that systemd has loaded: also removed ones.
    known = await _journal_units(journal)
    in_journal = [s for s in query.services if f"{s}.service" in known]
    in_files = [s for s in query.services if s not in in_journal]
    if in_journal:
        await _copy_journal([journal, *journal_arguments(query, in_journal)], send)
    if in_files and query.has_options:
        names = " ".join(in_files)
        text = f"\noptions present and query resolved to log files for [{names}]\n"
        await send(f"{text}try without specifying options\n".encode())
        return
    for service in in_files:
        for name in (service, f"{service}.log", f"{service}/{service}.log"):
            if await send_file(name, send):
                break
        else:
            await send(f"\nlog not found for {service}\n".encode())


async def _journal_units(journal: str) -> str:
    """Return the units that the journal knows, one a line; empty if there is no journal."""
    try:
        done = await trio.run_process(
            [journal, "--field", "_SYSTEMD_UNIT"],
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


async def _copy_journal(command: list[str], send: Send) -> None:
    try:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except (OSError, ValueError):
        await send(b"\nerror: journal output not available\n")
        return
    assert process.stdout is not None
    try:
        while data := await process.stdout.receive_some(_CHUNK):
            await send(bytes(data))
        await process.wait()
    finally:
        with trio.move_on_after(5, shield=True):
            await _terminate(process)


async def _terminate(process: trio.Process) -> None:
    """Kill journalctl if it still runs, and close its output."""
    if process.returncode is None:
        process.kill()
        await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()


def _service_errors(query: NodeLogQuery) -> list[str]:
    errors = []
    for service in query.services:
        # The limit is 256, the text of the error says 100: both are upstream's.
        if len(service) > _MAX_SERVICE:
            errors.append(f"query: Invalid value: {_quoted(service)}: length must be less than 100")
        elif _UNSAFE.search(service):
            problem = "input contains unsupported characters"
            errors.append(f"query: Invalid value: {_quoted(service)}: {problem}")
    count = len(query.services)
    if count > _MAX_SERVICES:
        errors.append(f"query: Too many: {count}: must have at most {_MAX_SERVICES} items")
    return errors


def _source_errors(query: NodeLogQuery) -> list[str]:
    files, services = query.files, query.services
    shown = f"[]string{{{', '.join(_quoted(f) for f in files)}}}"
    if not files and not services:
        return ["query: Required value: cannot be empty with options"]
    if files and services:
        both = f"[{' '.join(files)}], [{' '.join(services)}]"
        return [f"query: Invalid value: {_quoted(both)}: cannot specify a file and service"]
    if len(files) > 1:
        return [f"query: Invalid value: {shown}: cannot specify more than one file"]
    if files and query.has_options:
        return [f"query: Invalid value: {shown}: cannot specify file with options"]
    return []


def _pattern_problem(pattern: str) -> str:
    """Return why journalctl cannot take a pattern; "" if it can.

    Python's `re` stands in for journalctl's PCRE: it finds most malformed patterns early.
    """
    if "\0" in pattern:
        return "must not contain NUL"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:  # deep nesting, huge repeat counts
        return f"error parsing regexp: {exc}"
    return ""


def _time(text: str, name: str, errors: list[str]) -> datetime.datetime | None:
    if not text:
        return None
    try:
        # Python also takes a date alone and times without a zone; RFC 3339 and Go do not.
        time = datetime.datetime.fromisoformat(text)
        if time.tzinfo is not None and "T" in text.upper():
            return time.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        pass
    errors.append(f"{name}: Invalid value: {_quoted(text)}: invalid time format")
    return None


def _integer(text: str, name: str, errors: list[str]) -> int | None:
    if not text:
        return None
    if (number := parse_decimal(text)) is not None:
        return number
    problem = f"strconv.Atoi: parsing {_quoted(text)}: invalid syntax"
    errors.append(f"{name}: Invalid value: {_quoted(text)}: {problem}")
    return None


def _utc(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _joined(errors: list[str]) -> str:
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
