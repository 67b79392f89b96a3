"""The Container Runtime Interface: the protocol every room uses, its messages and errors."""

from kubelet_trio.cri._errors import (
    ImagePullError,
    NotFoundError,
    RuntimeCallError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
)
from kubelet_trio.cri._runtime import ExecResult, Listing, Runtime
from kubelet_trio.cri.generated.runtime import v1

__all__ = [
    "ExecResult",
    "ImagePullError",
    "Listing",
    "NotFoundError",
    "Runtime",
    "RuntimeCallError",
    "RuntimeTimeoutError",
    "RuntimeUnavailableError",
    "UnsupportedCallError",
    "v1",
]
