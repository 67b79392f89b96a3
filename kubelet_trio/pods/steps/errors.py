"""The errors of the steps.

PodRejectedError           the node turns out to be unable to run the pod: it fails
StepError                  a step for the whole pod failed
└── ResizeFailedError      its resize failed; all else of the plan was executed
ContainerStartError        one container did not start
HookError                  a lifecycle hook failed
TeardownIncompleteError    a teardown left something that runs, or that should be gone
"""

from __future__ import annotations

from collections.abc import Mapping

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import pod_key
from kubelet_trio.pods.types import WaitingReason


class PodRejectedError(Exception):
    """The node cannot run the pod; `reason` and `message` are those of a rejection."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class StepError(Exception):
    """A step for the whole pod failed; `reason` and `message` are those of its event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class ContainerStartError(Exception):
    """One container did not start; see `ImageError` for the attributes."""

    def __init__(self, waiting: WaitingReason, retry_at: float | None = None) -> None:
        super().__init__(f"{waiting.reason}: {waiting.message}")
        self.waiting = waiting
        self.retry_at = retry_at


class ResizeFailedError(StepError):
    """A resize failed. `failed`: the containers that did not start, by name."""

    def __init__(self, cause: StepError, failed: Mapping[str, ContainerStartError]) -> None:
        super().__init__(cause.reason, cause.message)
        self.failed = dict(failed)


class HookError(Exception):
    """A hook failed; the text is that of the container's PostStartHookError."""


class TeardownIncompleteError(Exception):
    """The runtime still has containers or sandboxes of the pod; the teardown starts over."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(f"the runtime still has containers or sandboxes of {pod_key(pod)}")
