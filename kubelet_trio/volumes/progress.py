"""Telling of volumes whose files take long to be given to a group (`fsGroup`).

A volume of many files keeps its pod waiting for minutes. Its events say so after half a minute, and
then once a minute how far it is, with the Go kubelet's reason and words
(pkg/volume/volume_linux.go).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import EventSink, pod_object_ref

_FIRST = 30.0  # seconds until the first event
_PERIOD = 60.0  # seconds between the others
_LOOK = 1.0

_REASON = "VolumePermissionChangeInProgress"
_ADVICE = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)


@dataclass(eq=False, slots=True)
class Walk:
    """One volume whose files are being given to a group; a thread counts them."""

    root: Path
    files: int = 0

    def step(self) -> None:
        self.files += 1


@dataclass(slots=True)
class Walks:
    """Those that are under way."""

    _under_way: list[Walk] = field(default_factory=list)

    @contextmanager
    def walk(self, root: Path) -> Iterator[Walk]:
        """Around a walk, in its thread."""
        walk = Walk(root)
        self._under_way.append(walk)
        try:
            yield walk
        finally:
            self._under_way.remove(walk)

    def below(self, directory: Path) -> list[Walk]:
        """Return those in a directory."""
        return [walk for walk in self._under_way if directory in walk.root.parents]


async def tell_progress(walks: Walks, pod: Pod, pod_dir: Path, events: EventSink) -> None:
    """Tell of a pod's walks that take long, until cancelled."""
    due: dict[Walk, float] = {}
    told: set[Walk] = set()
    while True:
        now = trio.current_time()
        for walk in walks.below(pod_dir):
            if due.setdefault(walk, now + _FIRST) > now:
                continue
            place = walk.root.relative_to(pod_dir.parent)
            text = f"Setting volume ownership for {place}"
            if walk in told:
                text = f"{text}, processed {walk.files} files."
            else:
                text += (
                    f" is taking longer than expected, consider using OnRootMismatch - {_ADVICE}"
                )
            events.emit(pod_object_ref(pod), "Warning", _REASON, text)
            told.add(walk)
            due[walk] = now + _PERIOD
        await trio.sleep(_LOOK)
