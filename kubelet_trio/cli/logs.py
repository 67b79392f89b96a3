"""`kubelet-trio logs`: the logs of one container, or of many at once, as `kubectl logs`."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from kubelet_trio.cli.ages import parse_since
from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.listing import Shown, pod_order
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.reading import default_container, find_pod

_TAIL_OF_MANY = 10  # lines of each, where pods are selected by label (kubectl)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What to print of each log."""

    container: str = ""  # empty: the default one
    all_containers: bool = False
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    limit_bytes: int = 0
    since: str = ""
    since_time: str = ""
    prefix: bool = False
    ignore_errors: bool = False
    max_requests: int = 5

    def query(self, tail: int | None) -> dict[str, str]:
        """Return the query of a request. Raises `ClientError`."""
        query = {key: "1" for key in ("follow", "previous", "timestamps") if getattr(self, key)}
        if tail is not None and tail >= 0:
            query["tailLines"] = str(tail)
        if self.limit_bytes:
            query["limitBytes"] = str(self.limit_bytes)
        if self.since:
            try:
                query["sinceSeconds"] = str(parse_since(self.since))
            except ValueError as exc:
                raise ClientError(f"--since: {exc}") from exc
        if self.since_time:
            query["sinceTime"] = self.since_time
        return query


@dataclass(frozen=True, slots=True)
class _Log:
    namespace: str
    pod: str
    container: str

    def prefix(self) -> bytes:
        return f"[pod/{self.pod}/{self.container}] ".encode()


def pod_logs(agent: AgentClient, name: str, namespace: str, options: LogOptions) -> None:
    """Print the logs of a pod, byte for byte. Raises `ClientError`."""
    pod = find_pod(agent, name, namespace)
    _print_logs(agent, _logs_of(pod, options), options, options.tail)


def selected_logs(agent: AgentClient, shown: Shown, options: LogOptions) -> None:
    """Print the logs of the pods that match a selector. Raises `ClientError`."""
    found = agent.get("pods", namespace=shown.namespace)["items"]
    chosen = shown.choose(found, pod_order)
    if not chosen:
        click.echo("No resources found", err=True)
        return
    tail = _TAIL_OF_MANY if options.tail is None else options.tail
    logs = [log for pod in chosen for log in _logs_of(pod, options)]
    _print_logs(agent, logs, options, tail)


def _logs_of(pod: Json, options: LogOptions) -> list[_Log]:
    meta, spec = part(pod, "metadata"), part(pod, "spec")
    if options.all_containers:
        lists = ("initContainers", "containers", "ephemeralContainers")
        names = [str(c.get("name", "")) for each in lists for c in items(spec, each)]
    else:
        names = [options.container or default_container(pod)]
    return [_Log(meta.get("namespace", ""), meta.get("name", ""), name) for name in names]


def _print_logs(
    agent: AgentClient, logs: Sequence[_Log], options: LogOptions, tail: int | None
) -> None:
    query = options.query(tail)
    if len(logs) > 1 and options.follow:
        if len(logs) > options.max_requests:
            raise ClientError(
                f"{len(logs)} logs to follow are more than --max-log-requests="
                f"{options.max_requests}: raise it, or choose fewer"
            )
        _follow_all(agent, logs, options, query)
        return
    for log in logs:
        try:
            for piece in _pieces(agent, log, options, query):
                _write(piece)
        except ClientError as exc:
            if not options.ignore_errors:
                raise
            click.echo(f"error: {exc}", err=True)


def _pieces(
    agent: AgentClient, log: _Log, options: LogOptions, query: dict[str, str]
) -> Iterator[bytes]:
    pieces = agent.stream("logs", log.namespace, log.pod, log.container, **query)
    # Alone, a log is printed byte for byte: it may have any encoding, and no last newline.
    return _lines(pieces, log.prefix()) if options.prefix else pieces


def _lines(pieces: Iterator[bytes], prefix: bytes) -> Iterator[bytes]:
    """Yield whole lines, each after `prefix`; the last one may lack its newline."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield b"".join(prefix + line + b"\n" for line in lines)
    if rest:
        yield prefix + rest


def _follow_all(
    agent: AgentClient, logs: Sequence[_Log], options: LogOptions, query: dict[str, str]
) -> None:
    """Print several logs while they grow, by whole lines. Raises `ClientError`."""
    # Bounded: a terminal that reads slowly slows the agent's streams down, as with one log.
    arrived: queue.Queue[bytes | ClientError | None] = queue.Queue(maxsize=64)

    def read(log: _Log) -> None:
        try:
            prefix = log.prefix() if options.prefix else b""
            pieces = agent.stream("logs", log.namespace, log.pod, log.container, **query)
            for piece in _lines(pieces, prefix):
                # Else the next line of another log would begin in the middle of this one.
                arrived.put(piece if piece.endswith(b"\n") else piece + b"\n")
        except ClientError as exc:
            arrived.put(exc)
        else:
            arrived.put(None)

    for log in logs:
        # A daemon: Ctrl-C must not wait for a log that does not grow.
        threading.Thread(target=read, args=(log,), daemon=True).start()
    left = len(logs)
    while left:
        piece = arrived.get()
        if isinstance(piece, bytes):
            _write(piece)
            continue
        left -= 1
        if piece is not None and not options.ignore_errors:
            raise piece
        if piece is not None:
            click.echo(f"error: {piece}", err=True)


def _write(piece: bytes) -> None:
    # Flushed, so that `-f` shows lines immediately.
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
