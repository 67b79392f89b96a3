"""Decide whether a node matches a pod: its node selector, required affinity and tolerations.

Upstream: component-helpers/scheduling/corev1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import Pod, Taint, Toleration

from kubelet_trio.model import matches_node_selector, spec


def matches_node(pod: Pod, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether the pod's selector and required affinity are satisfied."""
    selector = spec(pod).nodeSelector or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = spec(pod).affinity
    required = (
        affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
        if affinity is not None and affinity.nodeAffinity is not None
        else None
    )
    if required is None:
        return True
    return matches_node_selector(required, name, labels)


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effect: str
) -> Taint | None:
    """Return the first taint with an effect that no toleration matches."""
    given = list(tolerations)
    for taint in taints:
        if taint.effect == effect and not any(_tolerates(t, taint) for t in given):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False  # a toleration without a key matches every key
    if toleration.operator == "Exists":
        return True
    if toleration.operator not in (None, "", "Equal"):
        return False
    return (toleration.value or "") == (taint.value or "")
