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
        self._keeps_earlier = False
        self._earlier: frozenset[str] | None = None  # that an earlier agent reported, if kept
        self._reported: AsyncValue[frozenset[str]] = AsyncValue(frozenset())

    def note(self, name: str) -> None:
        """List a volume, in the next status of the node. Never blocks; may be repeated."""
        if name not in self._names:
            self._names.add(name)
            self._changed.ring()

    def drop(self, name: str) -> None:
        """Take a volume off the list, if it is there. Never blocks."""
        if self._earlier is not None:
            self._earlier -= {name}
        if name in self._names:
            self._names.discard(name)
            self._reported.value -= {name}
            self._changed.ring()

    def settle(self, *, is_complete: bool = True) -> None:
        """Say that the volumes are noted that an earlier agent left mounted.

        Args:
            is_complete: whether that is every one of them. If not, what the earlier agent reported
                stays listed until it is dropped.
        """
        self._is_complete = is_complete
        self._keeps_earlier = not is_complete
        self._changed.ring()

    async def wait_reported(self, name: str) -> None:
        """Wait until the API server has a status of the node that lists the volume."""
        await self._reported.wait_value(lambda names: name in names)

    def listed(self) -> tuple[str, ...] | None:
        """Return the list for the node's status; None: keep what an earlier agent reported."""
        if self._is_complete:
            return tuple(sorted(self._names))
        return None if self._earlier is None else tuple(sorted(self._names | self._earlier))

    def note_reported(self, names: Iterable[str]) -> None:
        """Take note of the list that the API server has."""
        names = frozenset(names)
        if self._keeps_earlier and self._earlier is None:
            self._earlier = names
            self._changed.ring()
        # A volume that was dropped meanwhile is not reported any more, or soon will not be.
        self._reported.value = names & self._names
