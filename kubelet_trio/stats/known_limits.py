"""Know the limits of cgroups without reading them, as long as nobody writes them.

A limit only changes when somebody writes it: the agent, the runtime, systemd, an administrator.
inotify reports each write to a file of a cgroup, from every mount and namespace of this kernel,
before the write returns. (It does not report what the kernel counts.) Without a free instance of
inotify, or a free watch, the limits are read each time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kubelet_trio.stats.open_files import Room

if TYPE_CHECKING:
    from inotify_simple import INotify

_AGAIN = 64  # readings after which all are read again, whatever inotify has said
# Its writes give and take files of the cgroups below, their limits too.
_OF_OTHERS = "cgroup.subtree_control"


@dataclass(slots=True)
class Known:
    """What is known of one directory's files."""

    watch: int
    contents: dict[str, bytes | None] = field(default_factory=dict)  # None: there is no such file
    forgotten: int = 0  # how often

    def forget(self) -> None:
        self.contents.clear()
        self.forgotten += 1


class KnownLimits:
    """Contents of limits by directory. Not thread-safe."""

    def __init__(self, room: Room) -> None:
        """Args:
        room: for the inotify instance.
        """
        self._room = room
        self._inotify: INotify | None = None
        self._known: dict[int, Known] = {}  # by watch
        self._readings = 0

    def watch(self, descriptor: int) -> Known | None:
        """Return what is known of a directory's files, nothing yet; None: it cannot be watched.

        `forget_written` forgets it when a file has been written.
        """
        from inotify_simple import INotify, flags

        try:
            if self._inotify is None:
                if self._room.left < 1:
                    return None
                self._inotify = INotify(nonblocking=True)
                self._room.left -= 1
            # By its descriptor: by its path it might be another one by now.
            mask = flags.MODIFY | flags.ONLYDIR
            watch = self._inotify.add_watch(f"/proc/self/fd/{descriptor}", mask)
        except OSError:
            return None
        return self._known.setdefault(watch, Known(watch))

    def unwatch(self, known: Known) -> None:
        """Let go of a directory."""
        self._known.pop(known.watch, None)
        if self._inotify is not None:
            with suppress(OSError):  # it was removed, and the kernel's watch with it
                self._inotify.rm_watch(known.watch)

    def forget_written(self) -> None:
        """Forget the contents of directories in which a file was written since the last call."""
        if self._inotify is None:
            return
        self._readings += 1
        written = list(self._inotify.read(timeout=0))
        if self._readings % _AGAIN == 0 or any(e.wd < 0 or e.name == _OF_OTHERS for e in written):
            # A negative watch: more events than the kernel keeps.
            for known in self._known.values():
                known.forget()
        for event in written:
            if (written_to := self._known.get(event.wd)) is not None:
                written_to.forget()

    def close(self) -> None:
        """Let go of everything."""
        self._known.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
            self._room.left += 1
