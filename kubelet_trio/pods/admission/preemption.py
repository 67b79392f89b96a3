"""Choose the pods that a critical pod preempts: as few and as small ones as possible.

BestEffort pods go before Burstable pods, and these before Guaranteed pods. Within a class those go
first whose requests come nearest to what is still missing. Upstream (1.36):
pkg/kubelet/preemption, getPodsToPreempt.
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
    """All pods that may be preempted have less than what is missing."""

    def __init__(self, missing: Missing) -> None:
        super().__init__("no set of running pods found to reclaim resources")
        self.missing = missing


def may_preempt(pod: Pod, other: Pod) -> bool:
    """Return whether a pod may preempt another one: types.Preemptable."""
    if is_critical(pod) and not is_critical(other):
        return True
    mine, theirs = spec(pod).priority, spec(other).priority
    return mine is not None and theirs is not None and mine > theirs


def choose_victims(pod: Pod, others: Sequence[Pod], missing: Missing) -> list[Pod]:
    """Return the pods to end so that their requests cover `missing`, BestEffort pods first.

    Raises:
        NoVictimsError: ending all pods that may be preempted is not enough.
    """
    # Victims are chosen by the QoS class, not by priority as in the scheduler.
    by_class: dict[str, list[Pod]] = {name: [] for name in _CLASSES}
    for other in others:
        if may_preempt(pod, other):
            by_class[pod_qos(other)].append(other)
    best_effort, burstable, guaranteed = (by_class[name] for name in _CLASSES)
    left = _without(missing, [*best_effort, *burstable, *guaranteed])
    if left:
        raise NoVictimsError(left)
    # From the most important class down: each is asked only for what the lesser classes lack.
    third = _nearest(guaranteed, _without(missing, [*best_effort, *burstable]))
    second = _nearest(burstable, _without(missing, [*best_effort, *third]))
    first = _nearest(best_effort, _without(missing, [*second, *third]))
    return [*first, *second, *third]


def _nearest(pods: Sequence[Pod], missing: Missing) -> list[Pod]:
    """Return pods that cover what is missing, the nearest first: getPodsToPreemptByDistance."""
    left, chosen = list(pods), []
    while missing:
        if not left:
            raise NoVictimsError(missing)
        # Of two pods that are equally near, the one with the smaller requests.
        best = min(left, key=lambda p: (_distance(p, missing), *_size(p)))
        left.remove(best)
        chosen.append(best)
        missing = _without(missing, [best])
    return chosen


def _distance(pod: Pod, missing: Missing) -> float:
    """Return how far a pod's requests are from what is missing: 0 if they cover it.

    Every resource has the same weight: shares are compared, not amounts.
    """
    requests = _requests(pod)
    shares = (max(0, amount - requests.get(n, 0)) / amount for n, amount in missing.items())
    return sum(share**2 for share in shares)


def _size(pod: Pod) -> tuple[int, ...]:
    requests = pod_requests(pod)
    return tuple(requests.get(name, 0) for name in _SMALLER_FIRST)


def _requests(pod: Pod) -> dict[str, int]:
    return {**pod_requests(pod), "pods": NANO}  # the number of pods is a resource as well


def _without(missing: Missing, pods: Sequence[Pod]) -> dict[str, int]:
    left = dict(missing)
    for pod in pods:
        requests = _requests(pod)
        for name in left:
            left[name] -= requests.get(name, 0)
    return {name: amount for name, amount in left.items() if amount > 0}
