"""Source `file`: runs the pods of the manifest directory (or of a single file).

Owns the last valid content of each file (`ledger`). inotify wakes it, and it scans the path
every `interval` as well; it reads only files that changed. What may go wrong:

* A file does not parse or open: its last valid pods stay in force; other files are unaffected.
* The path cannot be read: nothing is delivered, so the last snapshot stays in force.
* The directory is missing. If it was missing from the start, it counts as empty. If it
  disappears later, its pods stay: a missing mount must not take a node down.
  To remove all pods, remove the files. A single file that is removed takes its pods with it.
* A file is unlinked and created again at once: if its content is the same, its pods are removed
  and come back, as with the Go kubelet. If it differs, they stay until the new ones are there.
* A file without any document is invalid, not empty: it may be in the middle of a write.
  An empty `List` means "no pods".

After a crash the supervisor calls `run` again on the same object, which keeps its state.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping

import trio
from lightkube.models.core_v1 import Pod, PodStatus
from msgspec.structs import replace

from kubelet_trio.model import (
    CONFIG_SOURCE,
    FileChange,
    Latest,
    Offload,
    Phase,
    PodUid,
    Purpose,
    SystemClock,
    WallClock,
    Watcher,
    next_due,
    open_watcher,
    pod_annotations,
    pod_uid,
    thread_offload,
)
from kubelet_trio.sources.errors import ManifestError
from kubelet_trio.sources.files.burst import LONGEST, Burst
from kubelet_trio.sources.files.ledger import Ledger
from kubelet_trio.sources.files.scan import (
    DirectoryListing,
    FileRead,
    PathKind,
    is_ignored,
    read_manifests,
    scan,
)
from kubelet_trio.sources.manifest.static import MANIFEST, seen_now
from kubelet_trio.sources.source import (
    SourceProblem,
    SourceProblems,
    SourceSnapshot,
    printable_path,
    problems_of,
)

SOURCE = "file"

_FIRST = 5.0  # seconds that changing files may delay the first delivery


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
        local_claims: bool = True,
    ) -> None:
        """Set the source up; `run` does the work.

        Args:
            path: a file, or a directory (read without its subdirectories).
            node_name: added to the names of the pods, as the Go kubelet does.
            interval: seconds between scans without an event (`fileCheckFrequency`).
            settle: seconds without a further change until a file counts as written.
            open_watcher: opens the watcher that `run` uses and closes.
            offload: runs blocking file access in threads.
            clock: for `config.seen` and the age of files.
            last_good: pods from before the agent's restart, of any source. Pods of files that
                are invalid now keep running; the files replace the others.
            local_claims: whether pods may use claims: the node has no API server.
        """
        self.path = os.path.abspath(path)
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self._node_name = node_name
        self._local_claims = local_claims
        self._interval = interval
        self._open_watcher = open_watcher
        self._offload = offload
        self._clock = clock or SystemClock()
        self._problems = SourceProblems()
        self.problems = self._problems.now
        remembered = [
            # The status of a fresh manifest: if the file did not change, both pods are equal.
            (manifest, replace(pod, status=PodStatus(phase="Pending")))
            for pod in last_good
            if (manifest := self._manifest(pod))
        ]
        self._ledger = Ledger(settle, remembered)
        # The path's last kind: a missing directory keeps its pods, a removed file does not.
        self._kind: PathKind | None = None
        if remembered:
            alone = any(path == self.path for path, _ in remembered)
            self._kind = PathKind.FILE if alone else PathKind.DIRECTORY
        self._changes: list[FileChange] = []
        self._removed: Mapping[str, float] = {}  # when files were unlinked since
        # Files that were unlinked and created again, with the pods that they had.
        self._recreated: dict[str, frozenset[PodUid]] = {}
        self.delivered: SourceSnapshot | None = None
        self._first_by: float | None = None

    @property
    def origin(self) -> str:
        return printable_path(self.path)

    def _manifest(self, pod: Pod) -> str:
        """Return the file of a pod that this source once delivered, "" for other pods."""
        annotations = pod_annotations(pod)
        path = annotations.get(MANIFEST, "")
        ours = path == self.path or os.path.dirname(path) == self.path
        return path if ours and annotations.get(CONFIG_SOURCE) == SOURCE else ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Scan, deliver, wait for a change; until cancelled."""
        watcher = self._open_watcher()
        try:
            task_status.started()
            while True:
                again_at = await self._round(watcher)
                await self._wait(watcher, again_at)
        finally:
            watcher.close()

    async def _round(self, watcher: Watcher) -> float:
        """Scan once, act on it, and return the time of the next scan at the latest."""
        finished, removed = self._take_changes()
        listing = await self._offload(scan, self.path)
        # A watch that is new may have missed a change since the scan: scan again.
        while watcher.watch(listing.watch):
            listing = await self._offload(scan, self.path)
        now = trio.current_time()
        again_at = None
        trouble = await self._replacement_problem(listing) or self._path_problem(listing)
        if not trouble:
            again_at = await self._read(listing, finished, removed)
        # A path that never existed counts as empty (resetStoreFromPath in config/file.go).
        if not trouble or (listing.kind is not PathKind.UNREADABLE and self._kind is None):
            await self._deliver(is_changing=again_at is not None and self._is_early(now))
        files = [
            problem
            for error, pods in self._ledger.errors()
            for problem in problems_of(error, SOURCE, pods)
        ]
        path = [SourceProblem(SOURCE, self.origin, trouble)] if trouble else []
        self._problems.report((*path, *files))
        due = next_due(self._interval, Phase.MANIFESTS)
        return due if again_at is None else min(again_at, due)

    async def _replacement_problem(self, listing: DirectoryListing) -> str:
        """Return why a file at the directory's path does not replace it, "" if it does.

        Only a valid manifest replaces the directory and thereby ends its pods.
        """
        if listing.kind is not PathKind.FILE or self._kind is not PathKind.DIRECTORY:
            return ""
        results = await self._read_files(listing.files)
        if all(isinstance(result, FileRead) and not result.error for result in results.values()):
            return ""
        return "is a file that is no manifest where a directory was; its pods stay until it is back"

    def _path_problem(self, listing: DirectoryListing) -> str:
        """Note the path's kind; return why the listing cannot be used, "" if it can."""
        if listing.kind is PathKind.UNREADABLE:
            return f"cannot be read: {listing.why}"
        if listing.kind in (PathKind.DIRECTORY, PathKind.FILE):
            self._kind = listing.kind
            return ""
        if self._kind is None:
            return "does not exist"
        if self._kind is PathKind.FILE and listing.kind is PathKind.MISSING:
            return ""  # the single file was removed, and its pods with it
        return "does not exist any more; its pods stay until it is back"

    async def _read(
        self, listing: DirectoryListing, finished: set[str] | None, removed: Mapping[str, float]
    ) -> float | None:
        """Read changed files; return when to scan again, None if no file is changing."""
        now, wall = trio.current_time(), self._clock.time()
        decision = self._ledger.decide(listing, finished, now, wall, removed)
        again_at = decision.again_at
        results = await self._read_files(decision.read)
        for path, result in results.items():
            if isinstance(result, ManifestError):
                self._ledger.cannot_read(path, result)
            elif result is not None and result.signature == listing.files[path]:
                self._ledger.take(path, result, seen_now(wall))
            else:
                # Written since the scan: the content may be incomplete.
                again_at = now + LONGEST if again_at is None else min(again_at, now + LONGEST)
        return again_at

    async def _read_files(
        self, paths: Collection[str]
    ) -> dict[str, FileRead | ManifestError | None]:
        if not paths:
            return {}
        known = frozenset(pod_uid(pod) for pod in self._ledger.pods())
        return await self._offload(
            read_manifests, paths, self._node_name, known.__contains__, self._local_claims
        )

    async def _deliver(self, *, is_changing: bool) -> None:
        snapshot = SourceSnapshot(SOURCE, self._ledger.pods(), self._ledger.objects())
        again = self._take_again()
        if again and self.delivered is not None:
            left = tuple(pod for pod in snapshot.pods if pod_uid(pod) not in again)
            self.delivered = dataclasses.replace(snapshot, pods=left)
            self.snapshots.put(self.delivered)
            await self.snapshots.wait_taken()  # the next one would replace it
        # The first delivery waits for files that are being written: their pods may run already.
        if snapshot == self.delivered or (self.delivered is None and is_changing):
            return
        self.delivered = snapshot
        self.snapshots.put(snapshot)

    def _take_again(self) -> frozenset[PodUid]:
        """Return the pods whose manifest was unlinked and is there again as it was."""
        again: set[PodUid] = set()
        for path in [path for path in self._recreated if self._ledger.is_settled(path)]:
            again |= self._recreated.pop(path) & self._ledger.uids(path)
        return frozenset(again)

    def _is_early(self, now: float) -> bool:
        if self._first_by is None:
            self._first_by = now + _FIRST
        return now < self._first_by

    async def _wait(self, watcher: Watcher, until: float) -> None:
        """Wait for the end of a burst of changes, or for the time to scan again."""
        rested_at, burst = trio.current_time() + LONGEST, None
        with trio.move_on_at(until):
            changes = await watcher.wait_changes()
            burst = Burst(self.path, rested=trio.current_time() >= rested_at)
            while True:
                self._changes += changes
                burst.add(changes, trio.current_time())
                changes = []
                with trio.move_on_at(burst.ends):
                    changes = await watcher.wait_changes()
                if not changes:
                    break
        if burst is not None:
            self._removed = burst.removed
            for path in burst.recreated:
                self._recreated.setdefault(path, self._ledger.uids(path))

    def _take_changes(self) -> tuple[set[str] | None, Mapping[str, float]]:
        """Return the files that were completely written, and when others were unlinked.

        The former are None (all) if a directory or link above them was replaced.
        """
        changes, self._changes = self._changes, []
        removed, self._removed = self._removed, {}
        finished = {c.path for c in changes if c.finished}
        for path in finished:
            directory, name = os.path.split(path)
            inside = directory == self.path
            # A ConfigMap volume replaces all its files at once by renaming its link `..data`.
            if path != self.path and (not inside or name.startswith("..")):
                return None, removed
        return {path for path in finished if not is_ignored(os.path.basename(path))}, removed
