"""What users have asked the recorded agent for, asked again at the same times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.model import PodUid
from kubelet_trio.pods import DebugRefusedError, RestartRefusedError
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_body
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.recorded import Life
from kubelet_trio.sources import ManifestError


class _Request(NamedTuple):
    at: float
    uid: str
    words: str
    make: Callable[[Agent], object]


class ReplayRequests:
    """The requests of one recorded life."""

    def __init__(self, life: Life, journal: Journal) -> None:
        """Read them. Raises `RecordingError`: one has another form."""
        self._journal = journal
        self._requests = list(_read(life))

    async def make(self, agent: Agent) -> None:
        """Ask an agent at the recorded times. One that is refused now is a difference."""
        for request in self._requests:
            await trio.sleep_until(request.at)
            self._journal.note(request.uid, "asked", request.words)
            try:
                request.make(agent)
            except (RestartRefusedError, DebugRefusedError, ManifestError) as exc:
                self._journal.diverge(request.at, request.uid, request.words, f"refused: {exc}")


def _read(life: Life) -> Iterator[_Request]:
    for entry in life.news:
        if entry.kind is not Kind.REQUEST:
            continue
        try:
            body = read_body(entry.body)
            if not isinstance(body, dict):
                raise TypeError("it is no object")
            yield _request(entry, body)
        except (KeyError, TypeError, ValueError) as exc:
            raise RecordingError(f"REQUEST {entry.key}: {exc!r}") from exc


def _request(entry: Entry, body: dict[str, Any]) -> _Request:
    what, _, uid = entry.key.partition("/")
    if what == "restart":
        name = msgspec.convert(body["container"], str)
        words = f"restart container {name}" if name else "restart the containers"
        return _Request(entry.at, uid, words, lambda agent: agent.restart(PodUid(uid), name))
    if what == "debug":
        manifest = msgspec.convert(body["manifest"], dict[str, Any])
        words = f"add ephemeral container {manifest['name']}"
        given = msgspec.json.encode(manifest)
        return _Request(entry.at, uid, words, lambda agent: agent.debug(PodUid(uid), given))
    if what == "grace":
        seconds = msgspec.convert(body["seconds"], int)
        words = f"shorten the grace period to {seconds} s"
        make = partial(_shorten, uid=PodUid(uid), seconds=seconds)
        return _Request(entry.at, uid, words, make)
    raise ValueError(f"no request {what!r} is known")


def _shorten(agent: Agent, uid: PodUid, seconds: int) -> None:
    agent.shorten_grace(uid, seconds)
