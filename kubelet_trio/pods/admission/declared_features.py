"""Features that a node declares, and pods that need them (KEP-5328).

A scheduler goes by what nodes declare; a pod that came all the same, or an update of one, is held
against it here too. Source: component-helpers/nodedeclaredfeatures of 1.36, and its use in
lifecycle/handlers.go and HandlePodUpdates.

Declared is what this agent does. Not ExtendWebSocketsToKubelet: to translate WebSockets here costs
two to three times what it costs to hand an API server's SPDY through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import could_restart_all, spec
from kubelet_trio.pods.admission.decision import Rejected

RESTART_ALL = "RestartAllContainersOnContainerExits"
# Sorted, as the API wants them.
DECLARED: tuple[str, ...] = (RESTART_ALL,)


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
    RESTART_ALL: lambda pod: could_restart_all(spec(pod)),
    "UserNamespacesHostNetworkSupport": _other_users_on_host_network,
}
_NEEDED_BY_UPDATE: Mapping[str, Callable[[Pod, Pod], bool]] = {
    "InPlacePodLevelResourcesVerticalScaling": _resizes_pod,
    "InPlacePodVerticalScalingInitContainers": _resizes_init,
}


def lacks_features(pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
    """Reject a pod that needs what the node does not declare."""
    missing = [name for name, needs in _NEEDED.items() if needs(pod) and name not in DECLARED]
    return Rejected("PodFeatureUnsupported", _text(missing)) if missing else None


def lacks_for_update(before: Pod, after: Pod) -> str:
    """Return what to say of an update that needs what the node does not declare; "" if none."""
    missing = [
        name
        for name, needs in _NEEDED_BY_UPDATE.items()
        if name not in DECLARED and needs(before, after)
    ]
    return _text(missing) if missing else ""


def _text(missing: Sequence[str]) -> str:
    return f"Pod requires node features that are not available: {', '.join(sorted(missing))}"
