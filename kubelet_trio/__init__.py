"""A Kubernetes node agent on Trio, with strict supervision trees.

As a library: `open_kubelet` runs it inside a trio program; see `docs/embedding.md`. The names
below come from `kubelet_trio.embed`, which is loaded when one of them is first asked for: the
commands that only look at an agent import this package too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kubelet_trio._deferred import defer, linux_only, spare_task_names

if TYPE_CHECKING:
    from kubelet_trio.embed import (
        CommandFailedError,
        ContainerUnavailableError,
        EventStream,
        ExecResult,
        FieldError,
        Kubelet,
        KubeletClosedError,
        KubeletConfig,
        KubeletError,
        KubeletFailedError,
        LogLines,
        ManagerSettings,
        ManifestError,
        PodChange,
        PodEndedError,
        PodExistsError,
        PodLike,
        PodNotFoundError,
        PodNotReadyError,
        PodResizeError,
        PodWatch,
        PodWhy,
        ResourcesLike,
        RunningPod,
        Runtime,
        RuntimeCallError,
        TopologyOptions,
        open_kubelet,
    )

__version__ = "0.1.0"

__all__ = [
    "CommandFailedError",
    "ContainerUnavailableError",
    "EventStream",
    "ExecResult",
    "FieldError",
    "Kubelet",
    "KubeletClosedError",
    "KubeletConfig",
    "KubeletError",
    "KubeletFailedError",
    "LogLines",
    "ManagerSettings",
    "ManifestError",
    "PodChange",
    "PodEndedError",
    "PodExistsError",
    "PodLike",
    "PodNotFoundError",
    "PodNotReadyError",
    "PodResizeError",
    "PodWatch",
    "PodWhy",
    "ResourcesLike",
    "RunningPod",
    "Runtime",
    "RuntimeCallError",
    "TopologyOptions",
    "open_kubelet",
]

# lightkube for its models alone: its client brings an HTTP library, asyncio and YAML, 6 MB.
# asyncio for structlog, whose `await`-able loggers nobody here calls.
# ssl and hmac for trio, whose TLS and DTLS a node without an API server has no use for: with
# OpenSSL 4 MB.
# idna and locale for trio and subprocess, 300 KB: for host names and texts in other encodings.
# sysconfig for ctypes since Python 3.14, on other systems.
# _colorize for traceback, which since Python 3.14 brings dataclasses and `inspect` before
# `load_lean` could spare them: for the interpreter's own tracebacks.
defer("lightkube", "asyncio", "ssl", "hmac", "idna", "locale", "_colorize", "sysconfig")
spare_task_names()


def __getattr__(name: str) -> Any:
    if name in __all__:
        if sys.platform != "linux":
            return linux_only(name)
        from kubelet_trio import embed

        return getattr(embed, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
