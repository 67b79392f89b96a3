"""The Container Runtime Interface (CRI): its protocol, messages, errors and implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.cri import _messages as _messages
from kubelet_trio.cri.calls import CallsInFlight
from kubelet_trio.cri.errors import (
    ImagePullError,
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
)
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.guarded import GuardedRuntime
from kubelet_trio.cri.health import RuntimeHealth, RuntimeState
from kubelet_trio.cri.protocol import (
    CommandStreams,
    ExecResult,
    Listing,
    LocalStreams,
    Runtime,
    StreamOptions,
)
from kubelet_trio.cri.resources import merged_resources

if TYPE_CHECKING:
    from kubelet_trio.cri.process import ProcessRuntime
    from kubelet_trio.cri.remote import RemoteRuntime

__all__ = [
    "CallsInFlight",
    "CommandStreams",
    "ExecResult",
    "GuardedRuntime",
    "ImagePullError",
    "Listing",
    "LocalStreams",
    "ProcessRuntime",
    "RemoteRuntime",
    "Runtime",
    "RuntimeCallError",
    "RuntimeHealth",
    "RuntimeObjectNotFoundError",
    "RuntimeState",
    "RuntimeTimeoutError",
    "RuntimeUnavailableError",
    "StreamOptions",
    "UnsupportedCallError",
    "merged_resources",
    "v1",
]


# An agent uses one of the two; only the remote one needs HTTP/2.
__getattr__ = names_on_demand(__name__, {"ProcessRuntime": "process", "RemoteRuntime": "remote"})
