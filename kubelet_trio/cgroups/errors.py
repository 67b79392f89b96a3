"""The errors of this room.

    CgroupError             a cgroup could not be created or limited
    └── CgroupsDeniedError  this process may not write cgroups at all; a retry does not help
    CgroupBusyError         a cgroup cannot be removed because it has processes

`CGROUP_ERRORS` is what the creation and removal of a pod's cgroup can raise.
"""

from __future__ import annotations

from pathlib import Path


class CgroupError(Exception):
    """A cgroup could not be created or limited; the message has path, file and value."""


class CgroupsDeniedError(CgroupError):
    """This process may not write cgroups: they are read-only, or it lacks the permission."""


class CgroupBusyError(Exception):
    """A cgroup cannot be removed because it has processes."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"cgroup {path} still has processes in it")
        self.path = path


CGROUP_ERRORS = (CgroupError, CgroupBusyError, OSError)
