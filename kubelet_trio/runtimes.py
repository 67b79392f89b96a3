"""Creates the runtime of an endpoint, for the daemon and for embedded kubelets.

`process` is the embedded runtime; anything else is the socket of a CRI runtime. Without a
configured endpoint, `usable_socket` finds the socket of this machine.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.cri import Runtime
from kubelet_trio.supervision import ChildSpec

PROCESS = "process"

# The packages of containerd, CRI-O, cri-dockerd, k3s and RKE2, and MicroK8s use these paths.
USUAL_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/var/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
)
_PROGRAMS = ("containerd", "crio", "cri-dockerd")


@dataclass(frozen=True, slots=True)
class RuntimeSeam:
    """A runtime and the task that must run while it is used."""

    runtime: Runtime
    connection: ChildSpec


def make_runtime(
    endpoint: str,
    root_dir: Path,
    *,
    image_endpoint: str = "",
    request_timeout: float = 120.0,
    stream_lists: bool = False,
    allow_root: bool = False,
) -> RuntimeSeam:
    """Return the runtime of an endpoint; nothing is connected or started yet.

    Blocks. Raises OSError, and `StateVersionError` for state of a newer agent's process runtime.

    Args:
        endpoint: `process`, or a unix socket: a path, with or without `unix://`.
        root_dir: the agent's directory, where the process runtime keeps its state.
        image_endpoint: another socket for images; empty: the same.
        request_timeout: seconds for a call.
        stream_lists: whether to stream lists from a CRI runtime that can.
        allow_root: whether processes of the process runtime may run as root.
    """
    if endpoint == PROCESS:
        from kubelet_trio.cri import ProcessRuntime

        process = ProcessRuntime(root_dir, allow_root=allow_root, request_timeout=request_timeout)
        process.check_state()
        return RuntimeSeam(process, ChildSpec("connection", process.run))
    # Imported here: a program on the process runtime does not need HTTP/2.
    from kubelet_trio.cri import RemoteRuntime

    remote = RemoteRuntime(
        endpoint, image_endpoint, request_timeout=request_timeout, stream_lists=stream_lists
    )
    return RuntimeSeam(remote, ChildSpec("connection", remote.run))


def usable_socket(sockets: tuple[str, ...] = USUAL_SOCKETS) -> str | None:
    """Return the first of the usual CRI sockets that this user may connect to. Blocks.

    It does not connect: a runtime that is down is still the runtime of this machine.
    """
    for path in sockets:
        try:
            is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
        except OSError:
            continue
        # connect(2) on a unix socket needs write permission (unix(7)).
        if is_socket and os.access(path, os.R_OK | os.W_OK):
            return path
    return None


def has_runtime_installed() -> bool:
    """Whether a CRI runtime is installed, running or not. Blocks."""
    # Not by `shutil`, which brings the compressors: an agent calls this.
    places = [os.path.join(path, name) for path in os.get_exec_path() for name in _PROGRAMS]
    return any(os.path.isfile(place) and os.access(place, os.X_OK) for place in places)
