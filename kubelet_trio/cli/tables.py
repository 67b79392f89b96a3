"""Output as kubectl prints it: tables, rows of pods and events, `-o json` and `-o yaml`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from kubelet_trio.cli.ages import age, parse_time
from kubelet_trio.cli.colour import paint_cell
from kubelet_trio.cli.podstate import Json, items, part, summarize
from kubelet_trio.durations import human_duration

POD_COLUMNS = ("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE")
WIDE_COLUMNS = ("IP", "NODE", "CPU", "MEMORY", "RESIZE")
EVENT_COLUMNS = ("NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "CONTAINER", "MESSAGE")
WIDE_EVENT_COLUMNS = ("SOURCE", "FIRST SEEN", "COUNT", "NAME")
# The fieldPath of an event that concerns one container of its pod.
_CONTAINER_PATH = re.compile(r"spec\.(?:initC|ephemeralC|c)ontainers\{(.+)\}")


def has_colour() -> bool:
    """Return whether the running command colours its output."""
    context = click.get_current_context(silent=True)
    return context is not None and context.color is True


def printable(text: str) -> str:
    """Return text without control characters, which a terminal obeys; newlines and tabs stay."""
    # Events and manifests may have text from untrusted users: CVE-2021-25743.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Table:
    """Rows under a header; columns never shrink, so that a watch stays aligned."""

    def __init__(self, columns: Sequence[str], gap: int = 3) -> None:
        self._columns = columns
        self._gap = gap
        self._widths = [len(column) for column in columns]

    def header(self) -> str:
        return self._line(self._columns)

    def rows(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Return the lines of rows, with columns wide enough for all of them."""
        self.fit(rows)
        return [self._line([printable(cell) for cell in row]) for row in rows]

    def text(self, rows: Sequence[Sequence[str]], *, headers: bool = True) -> str:
        """Return the header, unless it is unwanted, and the lines of rows; each ends a line."""
        lines = self.rows(rows)
        return "".join(f"{line}\n" for line in ([self.header()] if headers else []) + lines)

    def fit(self, rows: Sequence[Sequence[str]]) -> None:
        """Widen the columns for these rows."""
        for row in rows:
            lengths = (len(printable(cell)) for cell in row)
            self._widths = [max(w, n) for w, n in zip(self._widths, lengths, strict=True)]

    def _line(self, cells: Sequence[str]) -> str:
        is_coloured = has_colour()
        padded = []
        for column, cell, width in zip(self._columns, cells, self._widths, strict=True):
            shown = paint_cell(column, cell) if is_coloured and cell != column else cell
            padded.append(shown + " " * (width + self._gap - len(cell)))
        return "".join(padded).rstrip()


def _seen(status: Json) -> Any:
    """Return when a pod was first seen: a static one has no creation time."""
    scheduled = (c for c in items(status, "conditions") if c.get("type") == "PodScheduled")
    # Its start time is of the agent that runs.
    return next(scheduled, {}).get("lastTransitionTime") or status.get("startTime")


def pod_row(pod: Json, now: float, *, wide: bool = False) -> tuple[str, ...]:
    """Return a pod's cells under `POD_COLUMNS`, and `WIDE_COLUMNS` if `wide`."""
    meta, status = part(pod, "metadata"), part(pod, "status")
    summary = summarize(pod, now)
    since = meta.get("creationTimestamp") or _seen(status)
    row = (
        meta.get("namespace", ""),
        meta.get("name", ""),
        summary.ready,
        summary.status,
        summary.restarts,
        age(since, now),
    )
    if not wide:
        return row
    addresses = items(status, "podIPs")
    address = addresses[0].get("ip") if addresses else status.get("podIP")
    return (
        *row,
        address or "<none>",
        part(pod, "spec").get("nodeName") or "<none>",
        _request_and_limit(status, "cpu"),
        _request_and_limit(status, "memory"),
        _resize_state(status),
    )


def label_cells(
    labels: Mapping[str, str], columns: Sequence[str], *, every: bool
) -> tuple[str, ...]:
    """Return the cells of the labels `columns`, and one of all labels if `every`."""
    whole = ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"
    return (*(labels.get(key, "") for key in columns), *((whole,) if every else ()))


def _request_and_limit(status: Json, resource: str) -> str:
    """Return `request/limit`: what is allocated to the pod, and the limit of its cgroup."""
    request = part(status, "allocatedResources").get(resource)
    limit = part(part(status, "resources"), "limits").get(resource)
    return f"{request or '-'}/{limit or '-'}" if request or limit else "<none>"


def _resize_state(status: Json) -> str:
    """Return why a resize is pending, and how the one in progress goes."""
    conditions = {c.get("type"): c for c in items(status, "conditions")}
    pending, going = (conditions.get(t) for t in ("PodResizePending", "PodResizeInProgress"))
    states = []
    if pending is not None:
        states.append(pending.get("reason") or "Pending")
    if going is not None:
        states.append(going.get("reason") or "InProgress")
    return ",".join(states) or "<none>"


def event_row(event: Json, now: float, *, wide: bool = False) -> tuple[str, ...]:
    """Return an event's cells under `EVENT_COLUMNS`, and `WIDE_EVENT_COLUMNS` if `wide`."""
    involved, meta = part(event, "involvedObject"), part(event, "metadata")
    row = (
        meta.get("namespace", ""),
        event_age(event, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        event_container(event),
        str(event.get("message", "")).strip(),
    )
    if not wide:
        return row
    return (
        *row,
        part(event, "source").get("component", ""),
        age(event.get("firstTimestamp"), now),
        str(event.get("count") or 1),
        meta.get("name", ""),
    )


def event_container(event: Json) -> str:
    """Return the container that an event concerns; empty if it concerns the whole object."""
    path = str(part(event, "involvedObject").get("fieldPath") or "")
    found = _CONTAINER_PATH.fullmatch(path)
    return found[1] if found is not None else path


def event_age(event: Json, now: float) -> str:
    """Return when an event was last seen, with count and time span if it was repeated."""
    last = parse_time(event.get("lastTimestamp")) or now
    first = parse_time(event.get("firstTimestamp")) or last
    count = event.get("count") or 1
    text = human_duration(now - last)
    return f"{text} (x{count} over {human_duration(now - first)})" if count > 1 else text


def as_text(thing: Any, form: str) -> str:
    """Return decoded JSON as `json` or `yaml` text, formatted as by kubectl."""
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(thing), indent=4).decode() + "\n"
    import yaml  # deferred: most commands print tables

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(thing, Dumper=dumper, default_flow_style=False, allow_unicode=True)
    return text


def as_list(things: list[Any]) -> Any:
    """Wrap objects as the v1 List that kubectl prints."""
    return {"apiVersion": "v1", "items": things, "kind": "List", "metadata": {}}
