"""The errors of runtime calls.

    RuntimeCallError                    the call failed
    ├── RuntimeUnavailableError         no answer: connection refused, lost, or reset
    ├── RuntimeTimeoutError             the call's deadline passed; it may still take effect
    ├── RuntimeObjectNotFoundError      no such sandbox, container or image
    ├── UnsupportedCallError            the runtime does not implement the call
    └── ImagePullError                  a pull failed; `reason` is the container's waiting reason

Callers decide by the class alone, never by a gRPC status or the text of a message.
"""

from __future__ import annotations


class RuntimeCallError(Exception):
    """A runtime call failed. `call` is its name in CRI, `message` the runtime's error text.

    `code` is Go's name of the gRPC status, "" without one; it is for error texts only.
    """

    __module__ = "kubelet_trio"  # tracebacks show where a program imports it from

    def __init__(self, call: str, message: str, *, code: str = "") -> None:
        super().__init__(f"{call}: {message}")
        self.call = call
        self.message = message
        self.code = code

    @property
    def go_text(self) -> str:
        """The error as Go prints it, for events in which the Go kubelet shows it so."""
        if not self.code:
            return self.message
        return f"rpc error: code = {self.code} desc = {self.message}"


class RuntimeUnavailableError(RuntimeCallError):
    """The runtime could not be reached, or the connection was lost before it answered."""


class RuntimeTimeoutError(RuntimeCallError):
    """No answer within the call's deadline. The call may take effect all the same."""


class RuntimeObjectNotFoundError(RuntimeCallError):
    """The sandbox, container or image does not exist."""


class UnsupportedCallError(RuntimeCallError):
    """The runtime does not implement this call."""


class ImagePullError(RuntimeCallError):
    """The image could not be pulled. `reason`: ErrImagePull, RegistryUnavailable, ..."""

    def __init__(
        self, call: str, message: str, reason: str = "ErrImagePull", *, code: str = ""
    ) -> None:
        super().__init__(call, message, code=code)
        self.reason = reason
