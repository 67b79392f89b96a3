"""The errors of this room.

    VolumeError        a volume could not be set up, mounted or torn down; its text is for users
    AttachLimitError   ... because a CSI driver attaches no more volumes to the node
    SubPathError       a subPath is refused; its text names host paths, so it is for the log
    VolumeStepError    a step of a set-up failed; the pod's event names the step
    DriverNotFoundError  ... because no CSI driver of that name is registered
    CsiCallError       ... because a CSI driver answered with an error, or not in time
    MissingToolError   a program of the host is missing; the text names the packages to install
    FilesystemMismatchError  a device has another file system than the volume asks for
    ContextError         a text is no SELinux context
    ManyLabelsError      containers of a pod want a volume with different SELinux labels
    LabelConflictError   two pods do

`VolumeManager` turns every other error into a `VolumeError`. `VOLUME_ERRORS` is what the removal
of a pod's volumes and its directory can raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class VolumeError(Exception):
    """A volume could not be set up, mounted into a container or torn down.

    The pod's event or the container's status shows the text. Every step is idempotent, so the
    caller may always retry. `reason` is the event's.
    """

    def __init__(self, volume: str, message: str, reason: str = "FailedMount") -> None:
        super().__init__(message)
        self.volume = volume
        self.message = message
        self.reason = reason


class AttachLimitError(VolumeError):
    """A CSI driver cannot attach more volumes to the node: the pod fails, it does not wait.

    VolumeAttachmentLimitExceeded in pkg/kubelet/volumemanager.
    """


class VolumeStepError(Exception):
    """A step of an asynchronous set-up failed.

    `step` is the Go kubelet's name of it, such as `MountVolume.MountDevice` or
    `MapVolume.SetUpDevice` (pkg/volume/util/operationexecutor); "": `MountVolume.SetUp`. `failed`
    are the words between step and volume.
    """

    step = ""
    failed = "failed"

    def __init__(self, message: str, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class DriverNotFoundError(VolumeStepError):
    """No CSI driver of that name is registered; it may register later."""

    def __init__(self, name: str) -> None:
        super().__init__(f"driver name {name} not found in the list of registered CSI drivers")
        self.driver = name


def missing_driver(error: BaseException | None) -> str:
    """Return the CSI driver whose absence has caused an error; "" for any other cause."""
    while error is not None:
        if isinstance(error, DriverNotFoundError):
            return error.driver
        error = error.__cause__
    return ""


class CsiCallError(VolumeStepError):
    """A CSI driver answered a call with an error, or did not answer."""

    def __init__(self, code: str, description: str, *, is_final: bool) -> None:
        """Describe the call's end.

        Args:
            code: the gRPC code by its name in Go, such as `DeadlineExceeded`.
            description: the driver's text.
            is_final: whether the driver surely does nothing for this call any more
                (isFinalError in pkg/volume/csi).
        """
        super().__init__(f"rpc error: code = {code} desc = {description}")
        self.code = code
        self.description = description
        self.is_final = is_final


class SubPathError(Exception):
    """A subPath is refused. The text names host paths: for the log, not for the pod's owner."""


class MissingToolError(OSError):
    """A program of the host is missing or cannot be executed; the text says what to install."""


class FilesystemMismatchError(OSError):
    """A device could not be mounted, and has another file system than the volume asks for.

    Its event has the reason FailedMountOnFilesystemMismatch (MountVolume in the Go kubelet's
    operation executor).
    """


class ContextError(ValueError):
    """A text is no SELinux context; nothing is mounted with it."""


class ManyLabelsError(ValueError):
    """The containers of a pod want one volume with different SELinux labels."""

    def __init__(self, labels: Iterable[str]) -> None:
        super().__init__(f"multiple SELinux labels found: {','.join(labels)}")


class LabelConflictError(ValueError):
    """Two pods want one volume with different SELinux labels."""


def set_up_error(volume: str, cause: object, *, is_block: bool = False) -> VolumeError:
    """Return the error for a failed set-up, in the words of its event."""
    step = cause.step if isinstance(cause, VolumeStepError) else ""
    step = step or ("MapVolume.MapPodDevice" if is_block else "MountVolume.SetUp")
    failed = cause.failed if isinstance(cause, VolumeStepError) else "failed"
    reason = "FailedMapVolume" if is_block else "FailedMount"
    return VolumeError(volume, f'{step} {failed} for volume "{volume}" : {cause}', reason)


def not_mounted_error(
    unmounted: Sequence[str], unattached: Iterable[str], exhausted: str = ""
) -> VolumeError:
    """Return the error for volumes that a pod waited for in vain (WaitForAttachAndMount).

    Args:
        unmounted: their names in the pod.
        unattached: those among them that are not attached.
        exhausted: one whose driver attaches no more volumes to the node; "": none.
    """
    text = (
        f"unmounted volumes=[{' '.join(unmounted)}], "
        f"unattached volumes=[{' '.join(unattached)}], failed to process volumes=[]: "
        "context deadline exceeded"
    )
    if exhausted:
        why = "Node has reached its volume attachment limit, rejecting pod."
        return AttachLimitError(exhausted, f"{why} {text}")
    first = unmounted[0] if unmounted else ""
    return VolumeError(first, f"Unable to attach or mount volumes: {text}")


VOLUME_ERRORS = (VolumeError, OSError)


def unprocessed_error(failed: Mapping[str, str]) -> VolumeError:
    """Return the error for claims without a usable volume, in the words of a FailedMount event.

    Args:
        failed: the reason for each volume, by its name in the pod.
    """
    names = " ".join(sorted(failed))
    return VolumeError(
        next(iter(failed)),
        f"Unable to attach or mount volumes: unmounted volumes=[{names}], unattached volumes=[], "
        f"failed to process volumes=[{names}]: {'; '.join(dict.fromkeys(failed.values()))}",
    )


def other_label_error(name: str, unique_name: str) -> VolumeError:
    """Return the error for a volume that is mounted with another SELinux label than a pod wants.

    Args:
        name: the volume's in the pod.
        unique_name: the volume's on the node.
    """
    return VolumeError(
        name,
        f"Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], "
        f'failed to process volumes=[]: waiting for unmount of volume "{unique_name}", because '
        "it is already mounted to a different pod with a different SELinux label",
    )
