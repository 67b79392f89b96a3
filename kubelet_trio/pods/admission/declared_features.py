"""Declare the node's features, and reject pods that need another one (KEP-5328).

The scheduler places pods by the features that nodes declare, and the API server refuses a resize
that needs another one. A pod that is bound to the node by other means is checked here. Upstream
(1.36): component-helpers/nodedeclaredfeatures, used in lifecycle/handlers.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import could_restart_all, spec
from kubelet_trio.pods.admission.decision import Rejected

_RESTART_ALL = "RestartAllContainersOnContainerExits"
# As the gates are named.
_DECLARED = frozenset(
    {
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        _RESTART_ALL,
    }
)


def declared_features(gates_off: Collection[str] = ()) -> tuple[str, ...]:
    """Return what the node declares: sorted, as the API requires it.

    API servers hand WebSocket clients of exec, attach and port-forward through to nodes that
    declare ExtendWebSocketsToKubelet, and translate for others.
    """
    return tuple(sorted(_DECLARED.difference(gates_off)))


def _other_users_on_host_network(pod: Pod) -> bool:
    return spec(pod).hostUsers is False and bool(spec(pod).hostNetwork)


_NEEDED: Mapping[str, Callable[[Pod], bool]] = {
    _RESTART_ALL: lambda pod: could_restart_all(spec(pod)),
    "UserNamespacesHostNetworkSupport": _other_users_on_host_network,
}


def lacks_features(pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
    """Reject a pod that needs a feature that the node does not declare."""
    missing = [name for name, needs in _NEEDED.items() if needs(pod) and name not in _DECLARED]
    if not missing:
        return None
    text = f"Pod requires node features that are not available: {', '.join(sorted(missing))}"
    return Rejected("PodFeatureUnsupported", text)
