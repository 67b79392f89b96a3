"""The node's `volumesInUse`: the volumes that the node may have mounted.

The attach controller detaches none of them, so a volume is reported before it is mounted and until
it is unmounted everywhere. Source: GetVolumesInUse in pkg/kubelet/volumemanager, and
markVolumesFromNode in kubelet_node_status.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from trio_util import AsyncValue

from kubelet_trio.model import Bell


class ReportedVolumes:
    """The node's `volumesInUse`. Volumes write it, and the task of the node's status reports it."""

    def __init__(self, changed: Bell) -> None:
        """Ring `changed` when the status has to be reported at once."""
        self._changed = changed
        self._names: set[str] = set()
        self._is_complete = False
        self._reported: AsyncValue[frozenset[str]] = AsyncValue(frozenset())

    def note(self, name: str) -> None:
        """List a volume, in the next status of the node. Never blocks; may be repeated."""
        if name not in self._names:
            self._names.add(name)
            self._changed.ring()

    def drop(self, name: str) -> None:
        """Take a volume off the list, if it is there. Never blocks."""
        if name in self._names:
            self._names.discard(name)
            self._reported.value -= {name}
            self._changed.ring()

    def settle(self) -> None:
        """Say that every volume that an earlier agent left mounted is noted."""
        self._is_complete = True
        self._changed.ring()

    async def wait_reported(self, name: str) -> None:
        """Wait until the API server has a status of the node that lists the volume."""
        await self._reported.wait_value(lambda names: name in names)

    def listed(self) -> tuple[str, ...] | None:
        """Return the list for the node's status; None: keep what an earlier agent reported."""
        return tuple(sorted(self._names)) if self._is_complete else None

    def note_reported(self, names: Iterable[str]) -> None:
        """Take note of the list that the API server has."""
        # A volume that was dropped meanwhile is not reported any more, or soon will not be.
        self._reported.value = frozenset(names) & self._names
