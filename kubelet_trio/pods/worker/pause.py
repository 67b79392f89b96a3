"""Whether a pod's sync may ask the runtime for anything now.

Source: runtimeErrors and networkErrors of the Go kubelet's runtime.go, which stop its sync loop.
A teardown is not paused: to stop what runs may be what the runtime needs.
"""

from __future__ import annotations

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import pod_object_ref, pod_uid, spec
from kubelet_trio.pods.services import PodServices


def tell_trouble(services: PodServices, pod: Pod) -> None:
    """Say of a pod that the runtime would not tell of it, where that is not away altogether.

    Source: podWorkerLoop of pod_workers.go.
    """
    trouble = services.observer.trouble(pod_uid(pod))
    if trouble and services.runtime_state.value.is_usable:
        text = f"error determining status: {trouble}"
        services.events.emit(pod_object_ref(pod), "Warning", "FailedSync", text)


def is_paused(services: PodServices, pod: Pod) -> bool:
    """Return whether the runtime, its network or what is known of both keeps a pod waiting."""
    state = services.runtime_state.value
    if not state.is_usable or services.observer.healthy(trio.current_time()) is not None:
        return True
    if state.network_problem and spec(pod).hostNetwork is not True:
        text = f"network is not ready: {state.network_problem}"
        services.events.emit(pod_object_ref(pod), "Warning", "NetworkNotReady", text)
        return True
    return False
