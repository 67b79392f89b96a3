"""What a kind of volume is to the manager. All of it blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kubelet_trio.volumes.spec import VolumeSpec


class VolumePlugin(Protocol):
    """One kind of volume."""

    @property
    def managed(self) -> bool:
        """Whether the volume is the pod's own, so that it may be relabelled for SELinux."""
        ...

    @property
    def follows_objects(self) -> bool:
        """Whether setting it up again brings what changed since into a running pod."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether containers may never write to it, whatever the pod says."""
        ...

    def set_up(self, spec: VolumeSpec) -> None:
        """Make the volume usable; again is no error.

        Raises OSError, ValueError, `ObjectError` or `ConfigError`: the text is a FailedMount
        event's.
        """
        ...

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether it is there for containers, as an earlier set-up left it. Raises OSError."""
        ...

    def path(self, spec: VolumeSpec) -> Path:
        """Return where the volume is on the host."""
        ...
