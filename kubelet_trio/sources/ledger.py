"""What each manifest file last said, and which changes are to be believed yet: pure.

A file that is being written, or replaced by removing and writing it again, passes through
states that nobody meant: empty, half, gone. So a change counts when whoever made it is
known to be finished (a file closed after writing, or renamed into place), when the file
has not been written to for a second, or when it has held still for `settle` seconds.
A file that was unlinked is gone after `_REMOVED` seconds: who writes it anew that way does so
at once, and those who take their time (vim) rename it away first.
Until then the file's last good pods stand, and so they do while it does not parse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.objects import ApiObject
from kubelet_trio.sources._errors import FieldError, ManifestError
from kubelet_trio.sources.scan import FileRead, Listing, Signature
from kubelet_trio.sources.static import mark_seen, seen_at

_OLD = 1.0  # seconds without a write after which a file counts as finished
_REMOVED = 0.01  # seconds that an unlinked file must stay away, after those that end a burst


@dataclass(frozen=True, slots=True)
class Known:
    """One file: its last good pods and objects, and what is wrong with it since."""

    signature: Signature | None  # of the content last read; None: read it again
    pods: tuple[Pod, ...] = ()
    error: ManifestError | None = None
    objects: tuple[ApiObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one look."""

    read: tuple[str, ...] = ()
    again_at: float | None = None  # trio time at which to look again, if something is in motion


class Ledger:
    """The files of one source by path."""

    def __init__(self, settle: float, last_good: Iterable[tuple[str, Pod]] = ()) -> None:
        self._settle = settle
        self._files: dict[str, Known] = {}
        # What each changing file looked like (None: gone), and when that counts.
        self._moving: dict[str, tuple[Signature | None, float]] = {}
        for path, pod in last_good:
            pods = self._files[path].pods if path in self._files else ()
            self._files[path] = Known(None, (*pods, pod))

    @property
    def files(self) -> dict[str, Known]:
        return self._files

    def decide(
        self,
        listing: Listing,
        finished: Collection[str] | None,
        now: float,
        wall: float,
        removed: Collection[str] = (),
    ) -> Decision:
        """Take in a look, forget files that are gone for good, and say what to read.

        Args:
            listing: what is there.
            finished: paths whose writers are known to be done; None: all of them.
            now: trio time.
            wall: Unix seconds.
            removed: paths known to have been unlinked.
        """
        read: list[str] = []
        moving: dict[str, tuple[Signature | None, float]] = {}
        for path, signature in listing.files.items():
            known = self._files.get(path)
            named = finished is not None and path in finished
            # A named one is read even if it looks the same: the kernel's clock for files is
            # coarse, and two writes may fall into one tick of it.
            if known is not None and known.signature == signature and not named:
                continue
            done = finished is None or named or wall - signature.mtime_ns / 1e9 >= _OLD
            until = self._until(path, signature, now + self._settle)
            if done or now >= until:
                read.append(path)
            moving[path] = (signature, until)
        for path in [p for p in self._files if p not in listing.files and p not in listing.broken]:
            hold = min(_REMOVED, self._settle) if path in removed else self._settle
            until = self._until(path, None, now + hold)
            if now >= until:
                del self._files[path]
            else:
                moving[path] = (None, until)
        for path, why in listing.broken.items():
            self._keep(path, None, ManifestError(path, [FieldError("", why)]))
        self._moving = moving
        waiting = [until for path, (_, until) in moving.items() if path not in read]
        return Decision(tuple(read), min(waiting, default=None))

    def _until(self, path: str, state: Signature | None, at_latest: float) -> float:
        before, until = self._moving.get(path, (state, at_latest))
        return min(until, at_latest) if before == state else at_latest

    def take(self, path: str, result: FileRead, seen: str) -> None:
        """Note what a file said. A pod that was there before keeps when it was first seen."""
        self._moving.pop(path, None)
        if result.error is not None:
            self._keep(path, result.signature, result.error)
            return
        before = self._files.get(path, Known(None))
        known = {pod_uid(pod): pod for pod in before.pods}
        pods = tuple(_with_seen(pod, known, seen) for pod in result.pods)
        self._files[path] = Known(result.signature, pods, objects=result.objects)

    def cannot_read(self, path: str, error: ManifestError) -> None:
        """Note that a file is there and does not open: its pods stay, and it is tried again."""
        self._moving.pop(path, None)
        self._keep(path, None, error)

    def _keep(self, path: str, signature: Signature | None, error: ManifestError) -> None:
        before = self._files.get(path, Known(None))
        self._files[path] = replace(before, signature=signature, error=error)

    def pods(self) -> tuple[Pod, ...]:
        """Return all pods, by the lexical order of their files."""
        return tuple(pod for path in sorted(self._files) for pod in self._files[path].pods)

    def objects(self) -> tuple[ApiObject, ...]:
        """Return all other objects, by the lexical order of their files."""
        return tuple(each for path in sorted(self._files) for each in self._files[path].objects)

    def errors(self) -> list[ManifestError]:
        """Return what is wrong with files, in lexical order."""
        found = (self._files[path].error for path in sorted(self._files))
        return [error for error in found if error is not None]


def _with_seen(pod: Pod, known: dict[PodUid, Pod], seen: str) -> Pod:
    before = known.get(pod_uid(pod))
    if before is None:
        return mark_seen(pod, seen)
    marked = mark_seen(pod, seen_at(before) or seen)
    return before if before == marked else marked
