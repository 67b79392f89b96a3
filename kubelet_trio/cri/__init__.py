"""The Container Runtime Interface: the protocol every room uses, its messages and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio.cri import _messages as _messages
from kubelet_trio.cri._errors import (
    ImagePullError,
    NotFoundError,
    RuntimeCallError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
)
from kubelet_trio.cri._runtime import ExecResult, Listing, Runtime
from kubelet_trio.cri._streaming import CommandStreams, LocalStreams, StreamOptions
from kubelet_trio.cri.calls import CallsInFlight
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.guarded import PULL_SECONDS, GuardedRuntime
from kubelet_trio.cri.health import RuntimeHealth, RuntimeState

if TYPE_CHECKING:
    from kubelet_trio.cri.process import ProcessRuntime
    from kubelet_trio.cri.remote import RemoteRuntime

__all__ = [
    "PULL_SECONDS",
    "CallsInFlight",
    "CommandStreams",
    "ExecResult",
    "GuardedRuntime",
    "ImagePullError",
    "Listing",
    "LocalStreams",
    "NotFoundError",
    "ProcessRuntime",
    "RemoteRuntime",
    "Runtime",
    "RuntimeCallError",
    "RuntimeHealth",
    "RuntimeState",
    "RuntimeTimeoutError",
    "RuntimeUnavailableError",
    "StreamOptions",
    "UnsupportedCallError",
    "v1",
]


def __getattr__(name: str) -> object:
    # HTTP/2 is loaded only by those who talk to a socket, the embedded runtime by its users.
    if name == "RemoteRuntime":
        from kubelet_trio.cri.remote import RemoteRuntime

        return RemoteRuntime
    if name == "ProcessRuntime":
        from kubelet_trio.cri.process import ProcessRuntime

        return ProcessRuntime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
