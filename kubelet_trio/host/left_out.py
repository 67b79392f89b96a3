"""What the agent leaves out because it may not do it, and how it says so.

In a user namespace the kernel refuses what concerns the whole machine. The Go kubelet does not
start there, unless the gate `KubeletInUserNamespace` makes it ignore two refusals: of kernel
settings and of /dev/kmsg. All others it only logs, on every machine. This agent runs in either
case. In a user namespace one line and one note of `status` have everything that was left out; with
the gate it is what the node's administrator expects, without it a warning that names the gate.

Source: KEP-2033; setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go and
NewMainKubelet in pkg/kubelet/kubelet.go.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.cgroups import Delegation
from kubelet_trio.model import get_logger

log = get_logger()

USER_NAMESPACE_GATE = "KubeletInUserNamespace"
_HINT = (
    f"featureGates: {{{USER_NAMESPACE_GATE}: true}} accepts that; "
    "the Go kubelet does not start here without it"
)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A setting that this process may not make, or a file that it may not read."""

    event: str  # of its own log line, which it has outside user namespaces
    what: str
    effect: str
    fields: Mapping[str, object] = field(default_factory=dict)  # of that line

    def __str__(self) -> str:
        return f"{self.what} ({self.effect})"


@dataclass(frozen=True, slots=True)
class Denied:
    """What the parts of an agent in a user namespace need not try."""

    kernel_log: str = ""  # why /dev/kmsg cannot be read
    cgroups: Delegation = field(default_factory=Delegation)

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers of version 2 by which pods cannot be limited."""
        return self.cgroups.missing | self.cgroups.busy


def kernel_log_problem(kmsg: Path) -> str:
    """Return why the kernel's log cannot be read; "" if it can. Blocks."""
    try:
        os.close(os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as exc:
        return str(exc)
    return ""


def denied_parts(denied: Denied) -> Iterator[LeftOut]:
    """Yield what an agent does not try, for the report."""
    if denied.kernel_log:
        yield LeftOut("oom.not_watched", "/dev/kmsg", "no events SystemOOM")
    if denied.cgroups.denied:
        yield LeftOut(
            "cgroups.denied",
            f"cgroups below {denied.cgroups.denied}",
            "pods have no limits but those that the runtime sets",
        )
    elif denied.controllers:
        names = ", ".join(sorted(denied.controllers))
        yield LeftOut(
            "cgroups.controllers_missing",
            f"the cgroup controllers {names}",
            "pods are not limited by them",
        )


def report(found: Sequence[LeftOut], *, in_namespace: bool, has_gate: bool) -> tuple[str, ...]:
    """Log what was left out, and return the notes of `status` on it.

    Args:
        found: what was left out.
        in_namespace: whether this process is in a user namespace.
        has_gate: whether `KubeletInUserNamespace` is on.
    """
    if not in_namespace:
        for one in found:
            log.warning(one.event, **one.fields)
        return ()
    if not found:
        return ()
    parts = [str(one) for one in found]
    note = f"left out in this user namespace: {'; '.join(parts)}"
    if has_gate:
        log.info("user_namespace.left_out", parts=parts)
        return (note,)
    log.warning("user_namespace.left_out", parts=parts, hint=_HINT)
    return (f"{note}. {_HINT}",)
