"""Explain a pod: what is wanted, what is, what stands between them, what happens next. Pure.

`explain` turns what the pod's worker already knows (`PodFacts`) into a `PodWhy`. Nothing is decided
here: waits and times are those of the plan, the holds and the termination request themselves.
"""

from kubelet_trio.pods.reasons.explain import explain
from kubelet_trio.pods.reasons.facts import (
    Blocker,
    PodFacts,
    ProbeFacts,
    PullFacts,
    VolumeFacts,
)
from kubelet_trio.pods.reasons.types import (
    Actual,
    ActualContainer,
    Next,
    PodWhy,
    Reason,
    Wanted,
    WantedContainer,
)
from kubelet_trio.pods.reasons.words import sentences

__all__ = [
    "Actual",
    "ActualContainer",
    "Blocker",
    "Next",
    "PodFacts",
    "PodWhy",
    "ProbeFacts",
    "PullFacts",
    "Reason",
    "VolumeFacts",
    "Wanted",
    "WantedContainer",
    "explain",
    "sentences",
]
