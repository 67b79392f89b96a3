"""Recordings for people: each entry as a line, and what a recording spans. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kubelet_trio.recorder.format import Entry, Kind
from kubelet_trio.recorder.messages import read_body

_MOST = 160  # characters of a text


@dataclass(slots=True)
class Span:
    """What was counted of a recording: entries, those lost, and wall times in Unix seconds."""

    entries: int = 0
    lost: int = 0
    first: float | None = None
    last: float | None = None
    node: str = ""

    def count(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries, and count them."""
        offset = 0.0
        for entry in entries:
            if entry.kind in (Kind.START, Kind.CLOCK):
                body = read_body(entry.body)
                offset = float(body["wall"]) - entry.at
                self.node = str(body.get("node") or self.node)
            elif entry.kind is Kind.GAP:
                self.lost += int(read_body(entry.body).get("lost") or 0)
            wall = offset + entry.at
            self.first = wall if self.first is None else self.first
            self.last = wall
            self.entries += 1
            yield entry


def entry_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield each entry as a line: wall time in UTC, kind, key, and what it says in short."""
    offset = 0.0
    for entry in entries:
        if entry.kind in (Kind.START, Kind.CLOCK):
            offset = float(read_body(entry.body)["wall"]) - entry.at
        moment = datetime.datetime.fromtimestamp(offset + entry.at, datetime.UTC)
        time = moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
        words = (entry.key, _summary(entry))
        yield f"{time} {entry.kind.name:<8} {'  '.join(filter(None, words))}".rstrip()


def _summary(entry: Entry) -> str:
    if not entry.body:
        return "" if entry.kind is Kind.SNAPSHOT else "gone"
    body = read_body(entry.body)
    if not isinstance(body, dict):
        return ""
    return " ".join(_words(entry.kind, body).split())[:_MOST]


def _words(kind: Kind, body: dict[str, Any]) -> str:
    if kind is Kind.START:
        return f"{body.get('reason')}: node {body.get('node')}, version {body.get('version')}"
    if kind is Kind.PLAN:
        return "; ".join(body.get("lines") or ())
    if kind is Kind.STATUS:
        return _status_words(body)
    if kind in (Kind.WANTED, Kind.OBJECT):
        meta = body.get("metadata") or {}
        return f"{meta.get('namespace') or ''}/{meta.get('name')}"
    if kind is Kind.PROBE:
        return f"{body.get('result')} {body.get('text') or ''}"
    if kind is Kind.GAP:
        return f"{body.get('lost')} entries are missing: {body.get('reason')}"
    if kind is Kind.CLOCK:
        return f"the wall clock jumped by {body.get('jump'):+.1f} s"
    if kind is Kind.RECORD:
        return ""
    if kind is Kind.PLUGIN:
        return _offer_words(body)
    if kind is Kind.ASKED and isinstance(body.get("request"), dict):
        asker = {name: body[name] for name in ("pod", "container") if name in body}
        return _call_words({**body, "request": {**body["request"], **asker}})
    return _call_words(body)


def _status_words(status: dict[str, Any]) -> str:
    words = [str(status.get("phase") or ""), str(status.get("reason") or "")]
    for name in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(name) or ():
            ((state, told),) = (container.get("state") or {"waiting": {}}).items() or [("", {})]
            why = (told or {}).get("reason") or ""
            ready = ", ready" if container.get("ready") else ""
            restarts = container.get("restartCount") or 0
            words.append(f"{container.get('name')}: {state} {why}{ready}, {restarts} restarts;")
    return " ".join(words)


def _offer_words(offer: dict[str, Any]) -> str:
    """Return what a plugin or driver says of itself and of its devices."""
    words = [f"{name}={value}" for name, value in (offer.get("options") or {}).items()]
    if "connected" in offer:
        words.append("connected" if offer["connected"] else "not connected")
    words += [
        f"{name}: {told.get('health')}" for name, told in (offer.get("devices") or {}).items()
    ]
    words += [f"{name}: gone" for name in offer.get("gone") or ()]
    return ", ".join(words)


def _call_words(body: dict[str, Any]) -> str:
    """Return the words of a call, an answer, or another entry of plain values."""
    if "error" in body:
        return f"{body['error']}: {body.get('text')}"
    number = f"#{body['call']} " if "call" in body else ""
    told = body.get("request", body.get("args", body.get("ok", body if "call" not in body else "")))
    if isinstance(told, dict) and "entries" in told:
        return f"{len(told['entries'])} new or changed, {len(told.get('gone') or ())} gone"
    if isinstance(told, dict):
        told = ", ".join(f"{k}={_short(v)}" for k, v in told.items() if v not in (None, "", [], {}))
    elif isinstance(told, list):
        told = " ".join(map(str, told)) if all(isinstance(w, str) for w in told) else len(told)
    return f"{number}{'ok' if told is None or told is True else told}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        named = {**value, **(value.get("metadata") or {})}
        keys = ("name", "image", "state", "exit_code", "reason")
        return "{" + ", ".join(f"{k}={named[k]}" for k in keys if k in named) + "}"
    return str(value)[:60]
