"""The manifest directory (or single file): what is in it is what runs.

Owns what each file last said (`ledger`). Woken by inotify, and looks every `interval`
whatever happens; files are read only if they changed. What may go wrong:

* A file does not parse, or does not open: its last good pods stay, other files notice nothing.
* The path cannot be read: nothing is delivered, so what was delivered stands. It is not empty.
* The directory is not there. If it has not been since the agent knows it, it is empty, as for
  the Go kubelet. If it goes later, its pods stay: a missing mount must not take a node down.
  To remove all pods, remove the files. A single file that goes takes its pods with it.
* A file without any document is broken, not empty: that is what a file being written looks
  like. An empty `List` is how a file says "no pods".

The supervisor may run `run` again on the same object: what the files last said is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import trio
from lightkube.models.core_v1 import Pod, PodStatus
from msgspec.structs import replace

from kubelet_trio.model import (
    CONFIG_SOURCE,
    Latest,
    Offload,
    Purpose,
    SystemClock,
    WallClock,
    pod_annotations,
    thread_offload,
)
from kubelet_trio.sources._errors import ManifestError
from kubelet_trio.sources.ledger import Ledger
from kubelet_trio.sources.problems import Problems, problems_of, told
from kubelet_trio.sources.scan import (
    FileRead,
    Listing,
    PathKind,
    is_ignored,
    look,
    read_manifests,
)
from kubelet_trio.sources.static import MANIFEST, seen_now
from kubelet_trio.sources.types import SourceProblem, SourceSnapshot
from kubelet_trio.sources.watch import Change, Watcher, open_watcher

SOURCE = "file"

_QUIET = 0.01  # seconds without an event that end a burst of them
_BURST = 0.1  # seconds after which a burst that does not end is acted on
_FIRST = 5.0  # seconds that files in motion may hold up the first delivery


class FileSource:
    """Source `file`. Snapshots go out when they change, problems are in `problems`."""

    name = SOURCE

    def __init__(
        self,
        path: str | os.PathLike[str],
        node_name: str,
        *,
        interval: float = 20.0,
        settle: float = 0.1,
        open_watcher: Callable[[], Watcher] = open_watcher,
        offload: Offload = thread_offload.of(Purpose.SOURCES),
        clock: WallClock | None = None,
        last_good: Iterable[Pod] = (),
    ) -> None:
        """Args:
        path: a file, or a directory (read without its subdirectories).
        interval: seconds between looks without an event (`fileCheckFrequency`).
        settle: seconds that a change must hold still if its writer may not be done.
        open_watcher: makes the watcher that `run` uses and closes.
        last_good: pods from before the agent's restart, of any source. Those of files that
            are broken now keep running; the rest are replaced by what their files say.
        """
        self.path = os.path.abspath(path)
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self._node_name = node_name
        self._interval = interval
        self._open_watcher = open_watcher
        self._offload = offload
        self._clock = clock or SystemClock()
        self._problems = Problems()
        self.problems = self._problems.now
        remembered = [
            (manifest, replace(pod, status=PodStatus(phase="Pending")))
            for pod in last_good
            if (manifest := self._manifest(pod))
        ]
        self._ledger = Ledger(settle, remembered)
        # What the path was last: a directory that is missing is not a file that was removed.
        self._kind: PathKind | None = None
        if remembered:
            alone = any(path == self.path for path, _ in remembered)
            self._kind = PathKind.FILE if alone else PathKind.DIRECTORY
        self._changes: list[Change] = []
        self.delivered: SourceSnapshot | None = None
        self._first_by: float | None = None

    @property
    def origin(self) -> str:
        return told(self.path)

    def _manifest(self, pod: Pod) -> str:
        """Return the file of a pod that this source once delivered, "" for others."""
        annotations = pod_annotations(pod)
        path = annotations.get(MANIFEST, "")
        ours = path == self.path or os.path.dirname(path) == self.path
        return path if ours and annotations.get(CONFIG_SOURCE) == SOURCE else ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look, deliver, wait for a change; until cancelled."""
        watcher = self._open_watcher()
        try:
            task_status.started()
            while True:
                again_at = await self._round(watcher)
                await self._wait(watcher, again_at)
        finally:
            watcher.close()

    async def _round(self, watcher: Watcher) -> float:
        """Look once, act on it, and return when to look again at the latest."""
        finished, removed = self._take_changes()
        listing = await self._offload(look, self.path)
        while watcher.watch(listing.watch):
            listing = await self._offload(look, self.path)
        now = trio.current_time()
        again_at = None
        trouble = await self._usurper(listing) or self._trouble(listing)
        if not trouble:
            again_at = await self._read(listing, finished, removed)
        if not trouble or (listing.kind is not PathKind.UNREADABLE and self._kind is None):
            self._deliver(in_motion=again_at is not None and self._is_early(now))
        files = [p for error in self._ledger.errors() for p in problems_of(error, SOURCE)]
        path = [SourceProblem(SOURCE, self.origin, trouble)] if trouble else []
        self._problems.report((*path, *files))
        return now + self._interval if again_at is None else min(again_at, now + self._interval)

    async def _usurper(self, listing: Listing) -> str:
        """Return what is wrong with a file that stands where the directory was, "" if nothing.

        Only one that is a manifest takes the directory's place; anything else says nothing
        about the directory's pods.
        """
        if listing.kind is not PathKind.FILE or self._kind is not PathKind.DIRECTORY:
            return ""
        results = await self._offload(read_manifests, listing.files, self._node_name)
        if all(isinstance(result, FileRead) and not result.error for result in results.values()):
            return ""
        return "is a file that is no manifest where a directory was; its pods stay until it is back"

    def _trouble(self, listing: Listing) -> str:
        """Note what the path is; return why what is there says nothing about pods, or ""."""
        if listing.kind is PathKind.UNREADABLE:
            return f"cannot be read: {listing.why}"
        if listing.kind in (PathKind.DIRECTORY, PathKind.FILE):
            self._kind = listing.kind
            return ""
        if self._kind is None:
            return "does not exist"
        if self._kind is PathKind.FILE and listing.kind is PathKind.MISSING:
            return ""  # the one file was removed
        return "does not exist any more; its pods stay until it is back"

    async def _read(
        self, listing: Listing, finished: set[str] | None, removed: set[str]
    ) -> float | None:
        """Read what changed; return when to look again, None if all is settled."""
        now, wall = trio.current_time(), self._clock.time()
        decision = self._ledger.decide(listing, finished, now, wall, removed)
        again_at = decision.again_at
        results = await self._offload(read_manifests, decision.read, self._node_name)
        for path, result in results.items():
            if isinstance(result, ManifestError):
                self._ledger.cannot_read(path, result)
            elif result is not None and result.signature == listing.files[path]:
                self._ledger.take(path, result, seen_now(wall))
            else:
                # Written to since the look: what was read may be half of something.
                again_at = now + _BURST if again_at is None else min(again_at, now + _BURST)
        return again_at

    def _deliver(self, *, in_motion: bool) -> None:
        snapshot = SourceSnapshot(SOURCE, self._ledger.pods(), self._ledger.objects())
        if snapshot == self.delivered or (self.delivered is None and in_motion):
            return
        self.delivered = snapshot
        self.snapshots.put(snapshot)

    def _is_early(self, now: float) -> bool:
        if self._first_by is None:
            self._first_by = now + _FIRST
        return now < self._first_by

    async def _wait(self, watcher: Watcher, until: float) -> None:
        """Wait for a burst of changes to be over, or for the time to look again."""
        with trio.move_on_at(until):
            self._changes += await watcher.wait_changes()
            with trio.move_on_after(_BURST):
                quiet = False
                while not quiet:
                    with trio.move_on_after(_QUIET) as pause:
                        self._changes += await watcher.wait_changes()
                    quiet = pause.cancelled_caught

    def _take_changes(self) -> tuple[set[str] | None, set[str]]:
        """Return the files whose writers are done, and those that were unlinked.

        The former are None if something above them was swapped.
        """
        changes, self._changes = self._changes, []
        removed = {c.path for c in changes if c.removed}
        finished = {c.path for c in changes if c.finished}
        for path in finished:
            directory, name = os.path.split(path)
            inside = directory == self.path
            if path != self.path and (not inside or name.startswith("..")):
                return None, removed
        return {path for path in finished if not is_ignored(os.path.basename(path))}, removed
