"""What a runtime call may raise.

    RuntimeCallError                the call failed; try again later unless told otherwise
    ├── RuntimeUnavailableError     nobody answered: connection refused, lost, or reset
    ├── RuntimeTimeoutError         the call's own deadline passed; it may still take effect
    ├── NotFoundError               the sandbox, container or image is not there
    ├── UnsupportedCallError        this runtime does not have the call
    └── ImagePullError              a pull failed; `reason` is the container's waiting reason

No caller reads a gRPC status or the text of a message to decide what to do.
"""

from __future__ import annotations


class RuntimeCallError(Exception):
    """A runtime call failed. `call` is CRI's name of it, `message` the runtime's words.

    `code` is Go's name of the gRPC status ("" where there was none): for texts only.
    """

    __module__ = "kubelet_trio"  # tracebacks show where a program imports it from

    def __init__(self, call: str, message: str, *, code: str = "") -> None:
        super().__init__(f"{call}: {message}")
        self.call = call
        self.message = message
        self.code = code

    @property
    def go_text(self) -> str:
        """The error as Go prints it, which is what some of the Go kubelet's events show."""
        if not self.code:
            return self.message
        return f"rpc error: code = {self.code} desc = {self.message}"


class RuntimeUnavailableError(RuntimeCallError):
    """The runtime could not be reached, or went away before it answered."""


class RuntimeTimeoutError(RuntimeCallError):
    """No answer within the call's deadline. What was asked may have happened all the same."""


class NotFoundError(RuntimeCallError):
    """The object named does not exist: success for whoever wanted it gone."""


class UnsupportedCallError(RuntimeCallError):
    """The runtime does not implement this call."""


class ImagePullError(RuntimeCallError):
    """The image could not be pulled. `reason`: ErrImagePull, RegistryUnavailable, ..."""

    def __init__(
        self, call: str, message: str, reason: str = "ErrImagePull", *, code: str = ""
    ) -> None:
        super().__init__(call, message, code=code)
        self.reason = reason
