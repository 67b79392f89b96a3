"""Rules of Lease."""

from __future__ import annotations

from kubelet_trio.testing.kube.rules.problems import NOT_NEGATIVE, Problems
from kubelet_trio.testing.kube.store import Json


def check_lease(problems: Problems, obj: Json) -> None:
    spec = obj.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        problems.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if transitions is not None and transitions < 0:
        problems.invalid("spec.leaseTransitions", transitions, NOT_NEGATIVE)
    if spec.get("preferredHolder") and not spec.get("strategy"):
        text = "may only be specified when `strategy` is defined"
        problems.forbidden("spec.preferredHolder", text)
