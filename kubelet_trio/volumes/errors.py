"""What volume work may raise besides OSError, which never leaves this room."""

from __future__ import annotations

from collections.abc import Mapping


class VolumeError(Exception):
    """A volume could not be set up, handed to a container or taken down.

    The text is what the pod's event or the container's status shows. Trying again later is
    always right: every step is idempotent.
    """

    def __init__(self, volume: str, message: str) -> None:
        super().__init__(message)
        self.volume = volume
        self.message = message


def set_up_error(volume: str, cause: object) -> VolumeError:
    """Return the error of a failed set-up, in the words of a FailedMount event."""
    return VolumeError(volume, f'MountVolume.SetUp failed for volume "{volume}" : {cause}')


# What comes out of removing a pod's volumes and its directory.
VOLUME_ERRORS = (VolumeError, OSError)


def unprocessed_error(failed: Mapping[str, str]) -> VolumeError:
    """Return the error of claims that lead nowhere, in the words of a FailedMount event.

    Args:
        failed: why, by the volume's name in the pod.
    """
    names = " ".join(failed)
    return VolumeError(
        next(iter(failed)),
        f"Unable to attach or mount volumes: unmounted volumes=[{names}], unattached volumes=[], "
        f"failed to process volumes=[{names}]: {'; '.join(dict.fromkeys(failed.values()))}",
    )
