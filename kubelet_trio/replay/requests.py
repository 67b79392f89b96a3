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

_TURNS = 50  # of the event loop, in which a worker learns what came at the same time


class _Request(NamedTuple):
    at: float
    uid: str
    words: str
    make: Callable[[Agent, trio.Nursery], object]


class ReplayRequests:
    """The requests of one recorded life."""

    def __init__(self, life: Life, journal: Journal) -> None:
        """Read them. Raises `RecordingError`: one has another form."""
        self._journal = journal
        self._requests = list(_read(life))

    async def make(self, agent: Agent) -> None:
        """Ask an agent at the recorded times. One that is refused now is a difference."""
        async with trio.open_nursery() as beside:
            for request in self._requests:
                await trio.sleep_until(request.at)
                self._journal.note(request.uid, "asked", request.words)
                try:
                    request.make(agent, beside)
                except (RestartRefusedError, DebugRefusedError, ManifestError) as exc:
                    told = f"refused: {exc}"
                    self._journal.diverge(request.at, request.uid, request.words, told)


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
    if what == "remove":
        return _Request(entry.at, "", "end all pods for good", _remove)
    if what == "restart":
        name = msgspec.convert(body["container"], str)
        words = f"restart container {name}" if name else "restart the containers"
        return _Request(entry.at, uid, words, lambda agent, _: agent.restart(PodUid(uid), name))
    if what == "debug":
        manifest = msgspec.convert(body["manifest"], dict[str, Any])
        words = f"add ephemeral container {manifest['name']}"
        given = msgspec.json.encode(manifest)
        return _Request(entry.at, uid, words, lambda agent, _: agent.debug(PodUid(uid), given))
    if what == "grace":
        seconds = msgspec.convert(body["seconds"], int)
        words = f"shorten the grace period to {seconds} s"
        make = partial(_shorten, uid=PodUid(uid), seconds=seconds)
        return _Request(entry.at, uid, words, make)
    raise ValueError(f"no request {what!r} is known")


def _shorten(agent: Agent, beside: trio.Nursery, uid: PodUid, seconds: int) -> None:
    beside.start_soon(_shorten_ending, agent, uid, seconds)


async def _shorten_ending(agent: Agent, uid: PodUid, seconds: int) -> None:
    """Shorten a pod's grace period once it ends: that may have come at the same time."""
    for _ in range(_TURNS):
        worker = agent.parts.workers.get(uid)
        if worker is None or worker.is_ending:
            break
        await trio.lowlevel.checkpoint()
    agent.shorten_grace(uid, seconds)


def _remove(agent: Agent, beside: trio.Nursery) -> None:
    # It waits for the end of the pods, which is a decision of its own.
    beside.start_soon(agent.remove_pods)
