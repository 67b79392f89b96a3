"""Rules of a pod's subresources `binding` and `eviction`."""

from __future__ import annotations

from kubelet_trio.testing.kube.rules.problems import Problems
from kubelet_trio.testing.kube.store import Json


def check_binding(problems: Problems, body: Json) -> None:
    target = body.get("target") or {}
    if target.get("kind") not in (None, "", "Node"):
        problems.unsupported("target.kind", target["kind"], ("Node", "<empty>"))
    if not target.get("name"):
        problems.required("target.name")


def check_eviction(problems: Problems, body: Json) -> None:
    seconds = (body.get("deleteOptions") or {}).get("gracePeriodSeconds")
    if seconds is not None and seconds < 0:
        text = "must be greater than or equal to 0"
        problems.invalid("deleteOptions.gracePeriodSeconds", seconds, text)
