"""The pods and objects that a recorded agent was to run, as a source of a replayed one.

What would reach out of the replay is changed on the way: see `places`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import Latest, PodUid
from kubelet_trio.objects import KINDS, ApiObject
from kubelet_trio.recorder import Entry, read_body
from kubelet_trio.replay.places import Places
from kubelet_trio.sources import SourceProblem, SourceSnapshot


class ReplaySource:
    """One source of the recorded agent. `deliver` puts a snapshot into effect."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    @property
    def origin(self) -> str:
        return "recording"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait until cancelled: `deliver` does the work."""
        task_status.started()
        await trio.sleep_forever()

    def deliver(self, snapshot: SourceSnapshot) -> None:
        self.delivered = snapshot
        self.snapshots.put(snapshot)


class Wanted:
    """What is wanted as of now; `apply` takes an entry, `deliver` passes all of it on."""

    def __init__(self, names: Sequence[str], places: Places) -> None:
        """Args:
        names: of the sources.
        places: change what would reach out.
        """
        # Of two pods with one UID the first source's runs; the API server is the last.
        ordered = sorted(names or ["file"], key=lambda name: (name == "api", name))
        self.sources = tuple(ReplaySource(name) for name in ordered)
        self._places = places
        self._pods: dict[str, dict[str, Pod]] = {name: {} for name in ordered}
        self._objects: dict[str, ApiObject] = {}
        self._all_ready = False
        self._kept: frozenset[PodUid] = frozenset()
        self._has_pods = False

    def wanted(self, entry: Entry) -> str:
        """Take a WANTED entry; return what it means in a few words."""
        source, _, uid = entry.key.rpartition("/")
        pods = self._pods.setdefault(source, {})
        if not entry.body:
            pods.pop(uid, None)
            return "not wanted any more"
        was, pods[uid] = pods.get(uid), _pod(self._places.pod(read_body(entry.body)))
        self._has_pods = True
        meta = pods[uid].metadata
        if meta is not None and meta.deletionTimestamp:
            return "its deletion is asked for"
        return "wanted" if was is None else "wanted in another form"

    def settled(self, entry: Entry) -> None:
        """Take a SOURCES entry."""
        body = read_body(entry.body)
        self._all_ready = bool(body.get("all_ready"))
        self._kept = frozenset(PodUid(uid) for uid in body.get("kept") or ())

    def known(self, entry: Entry) -> None:
        """Take an OBJECT entry. One of a kind that pods do not refer to is left out."""
        kind = entry.key.partition("/")[0]
        if not entry.body:
            self._objects.pop(entry.key, None)
        elif kind in KINDS:
            body = read_body(entry.body)
            if kind == "PersistentVolume":
                name = body.get("metadata", {}).get("name", "")
                self._places.volume(name, body.get("spec") or {})
            self._objects[entry.key] = msgspec.convert(body, KINDS[kind], strict=False)

    def deliver(self) -> None:
        """Pass on what is wanted now."""
        objects = tuple(self._objects.values())
        for index, source in enumerate(self.sources):
            pods = tuple(self._pods[source.name].values())
            if not (self._all_ready or pods or source.delivered is not None):
                continue
            source.deliver(
                SourceSnapshot(
                    source.name,
                    pods,
                    objects if index == 0 else (),
                    is_complete=self._all_ready,
                    kept=self._kept if index == 0 else frozenset(),
                )
            )


def _pod(content: dict[str, Any]) -> Pod:
    return msgspec.convert(content, Pod, strict=False)
