"""When a pod needs a new sandbox. Source: the Go kubelet's PodSandboxChanged."""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import RuntimePod, SandboxRecord, spec


def current_sandbox(pod: Pod, observed: RuntimePod) -> SandboxRecord | None:
    """Return the sandbox that the pod's containers belong in, None if a new one is needed.

    It is the newest, and only if it is ready, the only ready one, in the network namespace
    that the pod asks for, and has an address where it should have one.
    """
    if not observed.sandboxes or sum(s.ready for s in observed.sandboxes) > 1:
        return None
    newest = observed.sandboxes[0]
    on_host = bool(spec(pod).hostNetwork)
    if not newest.ready or newest.host_network != on_host:
        return None
    return newest if newest.ips or on_host else None


def next_attempt(observed: RuntimePod) -> int:
    """Return the attempt of the pod's next sandbox: 0 for the first."""
    return max((s.attempt + 1 for s in observed.sandboxes), default=0)
