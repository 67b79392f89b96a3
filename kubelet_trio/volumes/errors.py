"""The errors of this room.

    VolumeError        a volume could not be set up, mounted or torn down; its text is for users
    SubPathError       a subPath is refused; its text names host paths, so it is for the log

`VolumeManager` turns every other error into a `VolumeError`. `VOLUME_ERRORS` is what the removal
of a pod's volumes and its directory can raise.
"""

from __future__ import annotations

from collections.abc import Mapping


class VolumeError(Exception):
    """A volume could not be set up, mounted into a container or torn down.

    The pod's event or the container's status shows the text. Every step is idempotent, so the
    caller may always retry.
    """

    def __init__(self, volume: str, message: str) -> None:
        super().__init__(message)
        self.volume = volume
        self.message = message


class SubPathError(Exception):
    """A subPath is refused. The text names host paths: for the log, not for the pod's owner."""


def set_up_error(volume: str, cause: object) -> VolumeError:
    """Return the error for a failed set-up, in the words of a FailedMount event."""
    return VolumeError(volume, f'MountVolume.SetUp failed for volume "{volume}" : {cause}')


VOLUME_ERRORS = (VolumeError, OSError)


def unprocessed_error(failed: Mapping[str, str]) -> VolumeError:
    """Return the error for claims without a usable volume, in the words of a FailedMount event.

    Args:
        failed: the reason for each volume, by its name in the pod.
    """
    names = " ".join(failed)
    return VolumeError(
        next(iter(failed)),
        f"Unable to attach or mount volumes: unmounted volumes=[{names}], unattached volumes=[], "
        f"failed to process volumes=[{names}]: {'; '.join(dict.fromkeys(failed.values()))}",
    )
