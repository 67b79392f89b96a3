"""A pod as an embedded kubelet last observed it, and what its status says in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.model import is_terminal


@dataclass(frozen=True, slots=True)
class Observed:
    """The pod as last observed, and whether it has left the node since."""

    pod: Pod
    gone: bool = False


def is_decided(observed: Observed) -> bool:
    """Return whether the pod is ready, or will not become it."""
    return observed.gone or is_ready(observed.pod) or has_ended(observed.pod)


def waiting_reasons(pod: Pod, reasons: Collection[str] = ()) -> str:
    """Return what containers wait for: every reason, or only the given ones."""
    status = pod.status or PodStatus()
    found = [
        ": ".join(part for part in (c.name, waiting.reason, waiting.message) if part)
        for c in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
        if c.state is not None and (waiting := c.state.waiting) is not None
        if not reasons or waiting.reason in reasons
    ]
    return "; ".join(found)


def is_ready(pod: Pod) -> bool:
    """Return whether the pod's Ready condition is true."""
    conditions = (pod.status.conditions if pod.status is not None else None) or ()
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def has_ended(pod: Pod) -> bool:
    """Return whether the pod's phase is a terminal one."""
    return is_terminal(pod.status)


def how_it_ended(observed: Observed) -> str:
    """Return the verb phrase of a pod that has ended or was removed, for an error."""
    if observed.gone:
        return "was removed"
    status = observed.pod.status or PodStatus()
    why = status.message or status.reason or _exit_codes(status)
    return f"ended ({status.phase}{f': {why}' if why else ''})"


def _exit_codes(status: PodStatus) -> str:
    told = []
    for c in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ())):
        if c.state is not None and (ended := c.state.terminated) is not None:
            why = (ended.message or "").strip()
            told.append(f"{c.name} exited with {ended.exitCode}{f': {why}' if why else ''}")
    return ", ".join(told)
