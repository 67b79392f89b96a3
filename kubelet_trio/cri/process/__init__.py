"""The embedded runtime: containers as processes of the host. See `docs/process-runtime.md`."""

from kubelet_trio.cri.process.control import Output, ProcessStreams
from kubelet_trio.cri.process.runtime import NOTICE, ProcessRuntime

__all__ = ["NOTICE", "Output", "ProcessRuntime", "ProcessStreams"]
