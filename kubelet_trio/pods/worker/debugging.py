"""The ephemeral containers that were added to a pod on this node, as by `kubelet-trio debug`.

Only to pods without an API server behind them: those of the API server get theirs from it. The
containers belong to one UID. They are laid over the pod that the source wants, and the pod's record
keeps them for the next agent; neither the manifest nor the UID nor any hash changes by them, so the
pod runs on. They end with the pod and are lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightkube.models.core_v1 import EphemeralContainer, Pod
from msgspec.structs import replace

from kubelet_trio.model import is_static, metadata, spec

PROCESS = "process"  # the name of the runtime whose containers are processes of the host


class DebugRefusedError(ValueError):
    """No ephemeral container is added; the text says why."""


def with_added(pod: Pod, added: Sequence[EphemeralContainer]) -> Pod:
    """Return the pod with containers that were added to it; `pod` itself if there are none."""
    if not added:
        return pod
    own = spec(without_added(pod, added)).ephemeralContainers or ()
    return replace(pod, spec=replace(spec(pod), ephemeralContainers=[*own, *added]))


def without_added(pod: Pod, added: Sequence[EphemeralContainer]) -> Pod:
    """Return the pod as its source wants it."""
    if not added:
        return pod
    names = {container.name for container in added}
    own = [c for c in spec(pod).ephemeralContainers or () if c.name not in names]
    return replace(pod, spec=replace(spec(pod), ephemeralContainers=own or None))


def check_debuggable(pod: Pod | None, *, is_ending: bool) -> None:
    """Check that a pod of this node may be given containers. Raises `DebugRefusedError`."""
    if pod is None:
        raise DebugRefusedError("the pod is not on this node any more")
    if not is_static(pod):
        meta = metadata(pod)
        raise DebugRefusedError(
            f"pod {meta.name} is one of the API server's, which alone may add containers to it: "
            f"kubectl debug -n {meta.namespace} {meta.name}"
        )
    if is_ending:
        raise DebugRefusedError("the pod is ending or has ended: nothing starts in it any more")


def check_runnable(container: EphemeralContainer, runtime: str) -> None:
    """Check that the node's runtime can run a container. Raises `DebugRefusedError`.

    A container that can never start would stay in its pod: none is ever removed.
    """
    if runtime != PROCESS:
        return
    if container.targetContainerName:
        raise DebugRefusedError(
            "the process runtime has no PID namespaces to share: every container sees all "
            f'processes of this host; leave the target "{container.targetContainerName}" out'
        )
    if not container.command:
        raise DebugRefusedError(
            "the process runtime has no images whose entrypoint could be run: "
            "give a command, a program of this host"
        )
