"""Decides when a burst of changes in the manifest directory is over: pure.

Programs change files by several system calls, and whoever writes many files should cause one
round rather than many. So a burst ends when nothing has changed for a moment. What leaves nothing
to wait for ends it sooner, what may still be taken back keeps it open:

- A manifest that was renamed into place is whole: its program is done with it (`sed -i`, rsync,
  Ansible, git, kubectl's and most other tools' atomic writes). It ends a burst at once, unless a
  round has just been made: then it is one of many.
- An unlinked one may come back: `cp --remove-destination`, `install`, `tar x` and `git checkout`
  unlink a file and create it again, some 0.1 ms later. The burst waits that out, so that one look
  at the directory does for it. Whoever does so with the same content restarts the pods, as with
  the Go kubelet; see `FileSource`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from kubelet_trio.model import FileChange
from kubelet_trio.sources.files.scan import is_ignored

QUIET = 0.002  # seconds without an event that end a burst
LONGEST = 0.1  # seconds after which even an unfinished burst is handled
# Seconds that an unlinked file must stay away. Programs that unlink and rewrite a file do so at
# once; editors that take longer (vim) rename it away first, which is no unlink.
REMOVED = 0.005


class Burst:
    """The changes since the last round."""

    def __init__(self, path: str, rested: bool) -> None:
        """Begin without changes.

        Args:
            path: the directory of manifests, or the single file.
            rested: whether the last round was a while ago, so that one more costs nothing.
        """
        self._path, self._rested = path, rested
        self._latest: float | None = None  # when the burst is handled however it goes on
        self._ends = 0.0
        self._removed: dict[str, float] = {}
        self._recreated: set[str] = set()
        self._is_removal = True  # all that happened to manifests is that some were unlinked

    def add(self, changes: Iterable[FileChange], now: float) -> None:
        """Take changes that were seen at `now`, in seconds of Trio's clock."""
        if self._latest is None:
            self._latest, self._ends = now + LONGEST, now + QUIET
        for change in changes:
            if not self._is_leftover(change.path):
                self._add(change, now)

    def _add(self, change: FileChange, now: float) -> None:
        if change.removed:
            self._removed[change.path] = now
        else:
            if self._removed.pop(change.path, None) is not None:
                self._recreated.add(change.path)
            self._is_removal = False
        if self._is_removal:
            self._ends = now + REMOVED
        elif self._rested and change.moved:
            self._ends = now
        else:
            self._ends = now + QUIET

    def _is_leftover(self, path: str) -> bool:
        """Return whether a change is of no manifest, nor of a link that leads to some."""
        directory, name = os.path.split(path)
        return directory == self._path and is_ignored(name) and not name.startswith("..")

    @property
    def ends(self) -> float:
        """When it is over, if nothing else changes until then."""
        return self._ends if self._latest is None else min(self._ends, self._latest)

    @property
    def removed(self) -> dict[str, float]:
        """The files that were unlinked, and not created again so far as it was told: when."""
        return self._removed

    @property
    def recreated(self) -> frozenset[str]:
        """The files that were unlinked and created again."""
        return frozenset(self._recreated)
