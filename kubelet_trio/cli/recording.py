"""`kubelet-trio record`: packs and shows what the flight recorder has kept."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import click

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.tables import printable
from kubelet_trio.durations import human_duration
from kubelet_trio.recorder import (
    Entry,
    PodFilter,
    RecordingError,
    Span,
    entry_lines,
    pod_uids,
    read_recording,
    read_ring,
    since,
    write_recording,
)

_FLUSH_TIMEOUT = 10.0  # s


def save(
    root_dir: str, path: str | None, pod: str | None, namespace: str, back: float | None
) -> None:
    """Pack the ring of an agent, running or dead, into a file, and say what it has.

    Args:
        root_dir: the agent's.
        path: of the file; None: named by node and time.
        pod: keep only what concerns this pod, and the node.
        namespace: of the pod.
        back: seconds before now from which on entries are kept.

    Raises `ClientError`.
    """
    _flush(root_dir)
    span = Span()
    ring = Path(root_dir)
    entries = _chosen(ring, partial(read_ring, ring), pod, namespace, back)
    target = Path(path) if path is not None else None
    try:
        written = _write(target, span.count(entries))
    except OSError as exc:
        raise ClientError(f"{exc.filename or ring / 'recorder'}: {exc.strerror}") from exc
    click.echo(f"{written}: {_size(written.stat().st_size)}, {_says(span)}")


def show(
    root_dir: str, path: str | None, pod: str | None, namespace: str, back: float | None
) -> None:
    """Print the entries of a packed recording, or of the agent's ring, a line each.

    Raises `ClientError`.
    """
    if path is None:
        _flush(root_dir)
        place = Path(root_dir)
        read = partial(read_ring, place)
    else:
        place = Path(path)
        read = partial(read_recording, place)
    span = Span()
    try:
        for line in entry_lines(span.count(_chosen(place, read, pod, namespace, back))):
            click.echo(printable(line))
    except RecordingError as exc:
        raise ClientError(str(exc)) from exc
    except OSError as exc:
        raise ClientError(f"{exc.filename or place}: {exc.strerror}") from exc


def _flush(root_dir: str) -> None:
    """Let a running agent write what it has noted."""
    try:
        AgentClient(root_dir, timeout=_FLUSH_TIMEOUT).post("record")
    except ClientError as exc:
        # A dead agent has written all; what the ring has is shown in any case.
        if (Path(root_dir) / "kubelet-trio.sock").exists():
            click.echo(f"the last half second may be missing: {exc}", err=True)


def _chosen(
    place: Path,
    read: partial[Iterator[Entry]],
    pod: str | None,
    namespace: str,
    back: float | None,
) -> Iterator[Entry]:
    """Yield the chosen entries; an empty recording is an error. Raises `ClientError`."""
    entries: Iterable[Entry] = read()
    if back is not None:
        entries = since(entries, time.time() - back)
    if pod is not None:
        uids = pod_uids(read(), pod, namespace)
        if not uids:
            raise ClientError(f"{place}: the recording has no pod {namespace}/{pod}")
        entries = PodFilter(uids).filter(entries)
    is_empty = True
    for entry in entries:
        is_empty = False
        yield entry
    if is_empty:
        raise ClientError(
            f"{place}: there is no recording; is flightRecorderSize of its agent 0, or is it "
            "another root directory (--root-dir)?"
        )


def _write(path: Path | None, entries: Iterator[Entry]) -> Path:
    """Write a file that only its user reads; an incomplete one does not stay."""
    first = next(entries)
    name = path or Path(_default_name())
    fresh = name.with_name(f".{name.name}.new")
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    try:
        write_recording(fresh, _again(first, entries))
        fresh.replace(name)
    finally:
        fresh.unlink(missing_ok=True)
    return name


def _again(first: Entry, rest: Iterator[Entry]) -> Iterator[Entry]:
    yield first
    yield from rest


def _default_name() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return f"kubelet-trio-{os.uname().nodename}-{now:%Y%m%dT%H%M%SZ}.rec"


def _says(span: Span) -> str:
    first, last = span.first or 0.0, span.last or 0.0
    lost = f" ({span.lost} lost)" if span.lost else ""
    count = f"{span.entries} entries{lost} of {human_duration(last - first)}"
    return f"{count}, from {_time(first)} to {_time(last)}"


def _time(wall: float) -> str:
    return f"{datetime.datetime.fromtimestamp(wall, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
