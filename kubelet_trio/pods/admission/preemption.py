"""Whom a critical pod displaces: the fewest and least of those that may be displaced.

Source: pkg/kubelet/preemption, 1.36. Guaranteed pods are spared where Burstable ones do,
and these where BestEffort ones do. Within a class those go first whose requests come nearest
to what is still missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_qos, pod_requests
from kubelet_trio.model import NANO, is_critical, spec

_CLASSES = ("BestEffort", "Burstable", "Guaranteed")
_SMALLER_FIRST = ("memory", "cpu")

Missing = Mapping[str, int]  # nano-units by resource name, each above 0


class NoVictimsError(Exception):
    """Nobody that may be displaced has what is missing."""

    def __init__(self, missing: Missing) -> None:
        super().__init__("no set of running pods found to reclaim resources")
        self.missing = missing


def may_displace(pod: Pod, other: Pod) -> bool:
    """Return whether a pod may take another one's place."""
    if is_critical(pod) and not is_critical(other):
        return True
    mine, theirs = spec(pod).priority, spec(other).priority
    return mine is not None and theirs is not None and mine > theirs


def choose_victims(pod: Pod, others: Sequence[Pod], missing: Missing) -> list[Pod]:
    """Return whom to end so that `missing` is there, BestEffort pods first.

    Raises `NoVictimsError` where ending all that may be displaced is not enough.
    """
    by_class: dict[str, list[Pod]] = {name: [] for name in _CLASSES}
    for other in others:
        if may_displace(pod, other):
            by_class[pod_qos(other)].append(other)
    best_effort, burstable, guaranteed = (by_class[name] for name in _CLASSES)
    left = _without(missing, [*best_effort, *burstable, *guaranteed])
    if left:
        raise NoVictimsError(left)
    third = _nearest(guaranteed, _without(missing, [*best_effort, *burstable]))
    second = _nearest(burstable, _without(missing, [*best_effort, *third]))
    first = _nearest(best_effort, _without(missing, [*second, *third]))
    return [*first, *second, *third]


def _nearest(pods: Sequence[Pod], missing: Missing) -> list[Pod]:
    """Take the pod that comes nearest to what is missing, until nothing is."""
    left, chosen = list(pods), []
    while missing:
        if not left:
            raise NoVictimsError(missing)
        best = min(left, key=lambda p: (_distance(p, missing), *_size(p)))
        left.remove(best)
        chosen.append(best)
        missing = _without(missing, [best])
    return chosen


def _distance(pod: Pod, missing: Missing) -> float:
    """Return how much of what is missing a pod does not have, each resource counted alike."""
    requests = _requests(pod)
    shares = (max(0, amount - requests.get(n, 0)) / amount for n, amount in missing.items())
    return sum(share**2 for share in shares)


def _size(pod: Pod) -> tuple[int, ...]:
    requests = pod_requests(pod)
    return tuple(requests.get(name, 0) for name in _SMALLER_FIRST)


def _requests(pod: Pod) -> dict[str, int]:
    return {**pod_requests(pod), "pods": NANO}


def _without(missing: Missing, pods: Sequence[Pod]) -> dict[str, int]:
    left = dict(missing)
    for pod in pods:
        requests = _requests(pod)
        for name in left:
            left[name] -= requests.get(name, 0)
    return {name: amount for name, amount in left.items() if amount > 0}
