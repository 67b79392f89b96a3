"""Decides which changes of manifest files count, and keeps each file's last valid pods: pure.

A file that is being written or replaced passes through states that its author did not mean:
empty, incomplete, missing. A change therefore counts when its writer has finished (the file
was closed after writing, or renamed into place), when the file was not written to for a
second, or when it did not change for `settle` seconds.
Until then, and while the file does not parse, its last valid pods stay in force.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.objects import ApiObject
from kubelet_trio.sources.errors import FieldError, ManifestError
from kubelet_trio.sources.files.burst import REMOVED
from kubelet_trio.sources.files.scan import DirectoryListing, FileRead, Signature
from kubelet_trio.sources.manifest.static import mark_seen, seen_at

_OLD = 1.0  # seconds without a write after which a file counts as finished


@dataclass(frozen=True, slots=True)
class KnownFile:
    """One file: its last valid pods and objects, and its error since then."""

    signature: Signature | None  # of the content last read; None: read it again
    pods: tuple[Pod, ...] = ()
    error: ManifestError | None = None
    objects: tuple[ApiObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after one scan."""

    read: tuple[str, ...] = ()
    again_at: float | None = None  # trio time of the next scan, if a file is changing


class Ledger:
    """The files of one source by path."""

    def __init__(self, settle: float, last_good: Iterable[tuple[str, Pod]] = ()) -> None:
        self._settle = settle
        self._files: dict[str, KnownFile] = {}
        # The last signature of each changing file (None: missing), and when it counts.
        self._changing: dict[str, tuple[Signature | None, float]] = {}
        for path, pod in last_good:
            pods = self._files[path].pods if path in self._files else ()
            self._files[path] = KnownFile(None, (*pods, pod))

    @property
    def files(self) -> dict[str, KnownFile]:
        return self._files

    def decide(
        self,
        listing: DirectoryListing,
        finished: Collection[str] | None,
        now: float,
        wall: float,
        removed: Mapping[str, float] = MappingProxyType({}),
    ) -> Decision:
        """Apply a scan: forget files that were removed, and return the files to read.

        Args:
            listing: the scan.
            finished: paths that were completely written; None: all of them.
            now: trio time.
            wall: Unix seconds.
            removed: when paths were seen to be unlinked, in trio time.
        """
        read: list[str] = []
        changing: dict[str, tuple[Signature | None, float]] = {}
        for path, signature in listing.files.items():
            known = self._files.get(path)
            named = finished is not None and path in finished
            # Read a named file even if its signature is the same: the kernel stamps files with
            # a coarse clock (a tick, 1 to 10 ms), and two writes may share one stamp.
            if known is not None and known.signature == signature and not named:
                continue
            done = finished is None or named or wall - signature.mtime_ns / 1e9 >= _OLD
            until = self._until(path, signature, now + self._settle)
            if done or now >= until:
                read.append(path)
            changing[path] = (signature, until)
        for path in [p for p in self._files if p not in listing.files and p not in listing.broken]:
            unlinked = removed.get(path)
            settled = now + self._settle
            if unlinked is not None:
                settled = min(settled, unlinked + REMOVED)
            until = self._until(path, None, settled)
            if now >= until:
                del self._files[path]
            else:
                changing[path] = (None, until)
        # The name exists, so nothing was removed: its last valid pods stay.
        for path, why in listing.broken.items():
            self._keep(path, None, ManifestError(path, [FieldError("", why)]))
        self._changing = changing
        waiting = [until for path, (_, until) in changing.items() if path not in read]
        return Decision(tuple(read), min(waiting, default=None))

    def _until(self, path: str, state: Signature | None, at_latest: float) -> float:
        # Another change starts the wait again; the same state keeps its earlier deadline.
        before, until = self._changing.get(path, (state, at_latest))
        return min(until, at_latest) if before == state else at_latest

    def take(self, path: str, result: FileRead, seen: str) -> None:
        """Note a file's content. A known pod keeps the time at which it was first seen."""
        self._changing.pop(path, None)
        if result.error is not None:
            self._keep(path, result.signature, result.error)
            return
        before = self._files.get(path, KnownFile(None))
        known = {pod_uid(pod): pod for pod in before.pods}
        pods = tuple(_with_seen(pod, known, seen) for pod in result.pods)
        self._files[path] = KnownFile(result.signature, pods, objects=result.objects)

    def is_settled(self, path: str) -> bool:
        """Return whether nothing is known to be changing about a file."""
        return path not in self._changing

    def uids(self, path: str) -> frozenset[PodUid]:
        """Return the pods of a file that is valid; none of another."""
        known = self._files.get(path)
        valid = known.pods if known is not None and known.error is None else ()
        return frozenset(pod_uid(pod) for pod in valid)

    def cannot_read(self, path: str, error: ManifestError) -> None:
        """Note that a file exists but does not open: its pods stay, and it is read again."""
        self._changing.pop(path, None)
        self._keep(path, None, error)

    def _keep(self, path: str, signature: Signature | None, error: ManifestError) -> None:
        before = self._files.get(path, KnownFile(None))
        self._files[path] = replace(before, signature=signature, error=error)

    def pods(self) -> tuple[Pod, ...]:
        """Return all pods, by the lexical order of their files."""
        return tuple(pod for path in sorted(self._files) for pod in self._files[path].pods)

    def objects(self) -> tuple[ApiObject, ...]:
        """Return all other objects, by the lexical order of their files."""
        return tuple(each for path in sorted(self._files) for each in self._files[path].objects)

    def errors(self) -> list[tuple[ManifestError, tuple[Pod, ...]]]:
        """Return the errors of all files, in lexical order, with the pods that each one keeps."""
        known = (self._files[path] for path in sorted(self._files))
        return [(file.error, file.pods) for file in known if file.error is not None]


def _with_seen(pod: Pod, known: dict[PodUid, Pod], seen: str) -> Pod:
    before = known.get(pod_uid(pod))
    if before is None:
        return mark_seen(pod, seen)
    marked = mark_seen(pod, seen_at(before) or seen)
    return before if before == marked else marked
