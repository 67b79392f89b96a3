"""Declare the node's features, and reject pods that need another one (KEP-5328).

The scheduler places pods by the features that nodes declare. A pod that is bound to the node by
other means, and an update of a pod, are checked here. Upstream (1.36):
component-helpers/nodedeclaredfeatures, used in lifecycle/handlers.go and HandlePodUpdates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import could_restart_all, spec
from kubelet_trio.pods.admission.decision import Rejected

_RESTART_ALL = "RestartAllContainersOnContainerExits"
# Sorted, as the API requires it. Without ExtendWebSocketsToKubelet: translating WebSockets here
# costs two to three times as much as forwarding the API server's SPDY.
DECLARED: tuple[str, ...] = (_RESTART_ALL,)


def _other_users_on_host_network(pod: Pod) -> bool:
    return spec(pod).hostUsers is False and bool(spec(pod).hostNetwork)


def _resizes_pod(before: Pod, after: Pod) -> bool:
    return spec(before).resources != spec(after).resources


def _resizes_init(before: Pod, after: Pod) -> bool:
    inits = {c.name: c.resources for c in _ordinary_inits(before)}
    return any(c.name in inits and inits[c.name] != c.resources for c in _ordinary_inits(after))


def _ordinary_inits(pod: Pod) -> list[Container]:
    return [c for c in spec(pod).initContainers or () if c.restartPolicy != "Always"]


_NEEDED: Mapping[str, Callable[[Pod], bool]] = {
    _RESTART_ALL: lambda pod: could_restart_all(spec(pod)),
    "UserNamespacesHostNetworkSupport": _other_users_on_host_network,
}
_NEEDED_BY_UPDATE: Mapping[str, Callable[[Pod, Pod], bool]] = {
    "InPlacePodLevelResourcesVerticalScaling": _resizes_pod,
    "InPlacePodVerticalScalingInitContainers": _resizes_init,
}


def lacks_features(pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
    """Reject a pod that needs a feature that the node does not declare."""
    missing = [name for name, needs in _NEEDED.items() if needs(pod) and name not in DECLARED]
    return Rejected("PodFeatureUnsupported", _text(missing)) if missing else None


def lacks_for_update(before: Pod, after: Pod) -> str:
    """Return the error text for an update that needs an undeclared feature; "" if it needs none."""
    missing = [
        name
        for name, needs in _NEEDED_BY_UPDATE.items()
        if name not in DECLARED and needs(before, after)
    ]
    return _text(missing) if missing else ""


def _text(missing: Sequence[str]) -> str:
    return f"Pod requires node features that are not available: {', '.join(sorted(missing))}"
