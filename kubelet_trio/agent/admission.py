"""Admission wired to the node: what it says of itself, to admission."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightkube.models.core_v1 import Node, Pod, Taint

from kubelet_trio.containers import NodeSettings
from kubelet_trio.cri import RuntimeState
from kubelet_trio.model import is_static
from kubelet_trio.pods import (
    AdmissionCheck,
    AdmissionNode,
    Rejected,
    SysctlRules,
    kernel_version,
    lacks_features,
    sysctl_rules,
)
from kubelet_trio.sources import check_cluster_pod

UNSUPPORTED = "PodFeatureUnsupported"

_GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")
_APPARMOR_FS = Path("/sys/kernel/security/apparmor")


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """What others select or avoid a node by."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What of admission is settled at start.

    Attributes:
        marks: of the node as it was told to be, where no API server says otherwise.
        sysctls: what pods may set.
        no_apparmor: why AppArmor cannot be enforced; "" where it can.
        checks: further rooms' word on a pod, in their order.
        max_pods: the most pods there can be.
    """

    marks: NodeMarks = field(default_factory=NodeMarks)
    sysctls: SysctlRules = field(default_factory=sysctl_rules)
    no_apparmor: str = ""
    checks: tuple[AdmissionCheck, ...] = ()
    max_pods: int = 110


def admission_settings(
    node_name: str,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    allowed_unsafe_sysctls: Sequence[str] = (),
    max_pods: int = 110,
) -> AdmissionSettings:
    """Return the settings of this machine. Blocks. Raises ValueError for a sysctl."""
    arch = platform.machine()
    return AdmissionSettings(
        marks=NodeMarks(
            {
                "kubernetes.io/hostname": node_name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": _GO_ARCH.get(arch, arch),
                **(labels or {}),
            },
            tuple(taints),
        ),
        sysctls=sysctl_rules(allowed_unsafe_sysctls, kernel_version(os.uname().release)),
        no_apparmor=apparmor_problem(),
        max_pods=max_pods,
    )


def apparmor_problem(enabled: Path = _APPARMOR, file_system: Path = _APPARMOR_FS) -> str:
    """Return why this host cannot enforce AppArmor profiles; "" where it can."""
    try:
        is_on = file_system.exists() and enabled.read_text().startswith("Y")
    except OSError:
        is_on = False
    return "" if is_on else "AppArmor is not enabled on the host"


def marks_of(node: Node) -> NodeMarks:
    """Return the marks of a node's object."""
    labels = node.metadata.labels if node.metadata is not None else None
    taints = node.spec.taints if node.spec is not None else None
    return NodeMarks(labels or {}, tuple(taints or ()))


def admission_node(
    node: NodeSettings,
    settings: AdmissionSettings,
    runtime: RuntimeState,
    marks: NodeMarks,
) -> AdmissionNode:
    """Return the node as it is now, by the marks that it has now."""
    return AdmissionNode(
        name=node.node_name,
        labels=marks.labels,
        taints=marks.taints,
        allocatable=node.allocatable,
        sysctls=settings.sysctls,
        strict_groups=runtime.supplemental_groups_policy,
        no_apparmor=settings.no_apparmor,
    )


def unsupported(pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
    """Reject a pod of an API server that asks for what this agent does not do.

    Manifests are refused for the same when they are read.
    """
    if is_static(pod):
        return None
    errors = check_cluster_pod(pod)
    if not errors:
        return None
    return Rejected(UNSUPPORTED, "; ".join(f"{e.field}: {e.message}" for e in errors))


# Asked before all others: no room and no other pod's end lets these pods in.
FEATURE_CHECKS = (unsupported, lacks_features)
