"""The runtime behind a socket: gRPC calls, checked answers, and cheap decoding of lists."""

from kubelet_trio.cri.remote.runtime import RemoteRuntime

__all__ = ["RemoteRuntime"]
