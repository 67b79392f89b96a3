"""What admission needs of the node: its settings, its state, and the checks of other rooms."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightkube.models.core_v1 import Node, Pod, Taint
from trio_util import AsyncValue

from kubelet_trio.containers import NodeSettings, pod_level
from kubelet_trio.cri import RuntimeState
from kubelet_trio.managers import ManagerSettings
from kubelet_trio.model import is_static, spec
from kubelet_trio.node import Pressure
from kubelet_trio.pods import (
    AdmissionCheck,
    AdmissionNode,
    Rejected,
    SysctlRules,
    kernel_version,
    lacks_features,
    sysctl_rules,
)
from kubelet_trio.pressure import pressure_rejection
from kubelet_trio.shutdown import REJECTED
from kubelet_trio.sources import check_cluster_pod

UNSUPPORTED = "PodFeatureUnsupported"

# The label kubernetes.io/arch has Go's names (runtime.GOARCH).
_GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
# Both, as isEnabled of runc's libcontainer/apparmor.
_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")
_APPARMOR_FS = Path("/sys/kernel/security/apparmor")


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """The labels and taints by which pods select or avoid a node."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """The settings of admission.

    Attributes:
        marks: of the configuration; the node's object at an API server takes precedence.
        sysctls: those that pods may set.
        no_apparmor: why AppArmor cannot be enforced; "" if it can.
        checks: further checks, in their order.
        max_pods: the most pods that the node may have.
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
    pod_level_resources: bool = True,
) -> AdmissionSettings:
    """Return the settings of this machine. Blocks. Raises ValueError for an invalid sysctl.

    Args:
        node_name: the node's name.
        labels: the node's.
        taints: the node's.
        allowed_unsafe_sysctls: names, or beginnings of names and `*`.
        max_pods: most pods of the node.
        pod_level_resources: the gate PodLevelResources.
    """
    arch = os.uname().machine
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
        checks=() if pod_level_resources else (no_resources_of_its_own,),
        max_pods=max_pods,
    )


def apparmor_problem(enabled: Path = _APPARMOR, file_system: Path = _APPARMOR_FS) -> str:
    """Return why this host cannot enforce AppArmor profiles; "" if it can."""
    try:
        is_on = file_system.exists() and enabled.read_text().startswith("Y")
    except OSError:
        is_on = False
    return "" if is_on else "AppArmor is not enabled on the host"


def no_resources_of_its_own(pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
    """Reject a pod with resources for all its containers together."""
    # Source: isPodLevelResourcesSupported in pkg/kubelet/lifecycle.
    if not pod_level(pod, "requests") and not pod_level(pod, "limits"):
        return None
    return Rejected("PodLevelResourcesNotSupported", "PodLevelResources feature gate is disabled")


def marks_of(node: Node) -> NodeMarks:
    """Return the marks of a node's object."""
    labels = node.metadata.labels if node.metadata is not None else None
    taints = node.spec.taints if node.spec is not None else None
    return NodeMarks(labels or {}, tuple(taints or ()))


class NodeAdmission:
    """Gives admission the current node, and the checks of other rooms."""

    def __init__(
        self,
        settings: AdmissionSettings,
        node: Callable[[], NodeSettings],
        runtime: AsyncValue[RuntimeState],
        known_node: Callable[[], Node | None],
        pressure: AsyncValue[Pressure],
        is_shutting_down: AsyncValue[bool],
        managers: ManagerSettings | None = None,
        removed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Args:
        settings: fixed at start.
        node: returns the node's current settings.
        runtime: the runtime's last observed state.
        known_node: returns the node's object; None if it is not known.
        pressure: the node's shortages.
        is_shutting_down: whether the machine shuts down.
        managers: their policies.
        removed: returns the resources whose device plugins have gone for good.
        """
        self._settings = settings
        self._node = node
        self._runtime = runtime
        self._known_node = known_node
        self._pressure = pressure
        self._is_shutting_down = is_shutting_down
        self._managers = managers or ManagerSettings()
        self._removed = removed

    def node(self) -> AdmissionNode:
        """Return the current node."""
        removed = self._removed()
        settings, node, known = self._settings, self._node(), self._known_node()
        # Users and controllers may have changed the labels and taints of the node's object.
        marks = marks_of(known) if known is not None else settings.marks
        return AdmissionNode(
            name=node.node_name,
            labels=marks.labels,
            taints=marks.taints,
            # Devices that there are, the device manager counts itself.
            allocatable=node.allocatable and {**node.allocatable, **dict.fromkeys(removed, 0)},
            sysctls=settings.sysctls,
            strict_groups=self._runtime.value.supplemental_groups_policy,
            no_apparmor=settings.no_apparmor,
            limited_swap=node.limited_swap and node.swap_controller,
            static_cpus=self._managers.gives_cpus,
            static_memory=self._managers.gives_memory,
            pod_level_resizes=node.pod_level_resizes,
            extended_claims=self._managers.extended_claims,
        )

    @property
    def first_checks(self) -> tuple[AdmissionCheck, ...]:
        """The checks before all others."""
        # The order of admit handlers in NewMainKubelet: eviction first, node shutdown last.
        return (self._under_pressure,)

    @property
    def last_checks(self) -> tuple[AdmissionCheck, ...]:
        """The checks of pods that nothing else rejects."""
        # They run before preemption: a pod that these reject displaces no other.
        return (self._unsupported, lacks_features, *self._settings.checks, self._in_shutdown)

    def _under_pressure(self, pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
        rejection = pressure_rejection(pod, self._pressure.value)
        return Rejected(*rejection) if rejection is not None else None

    def _unsupported(self, pod: Pod, others: Sequence[Pod]) -> Rejected | None:
        return unsupported(pod, others, claims=self._managers.claims)

    def _in_shutdown(self, _pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
        return Rejected(*REJECTED) if self._is_shutting_down.value else None


def unsupported(pod: Pod, _others: Sequence[Pod], *, claims: bool = True) -> Rejected | None:
    """Reject a pod of an API server that needs a feature which this agent lacks.

    `claims` says whether pods may use resource claims.
    """
    # The sources refuse such manifests when they read them; an embedded agent's do not know.
    if is_static(pod) and (claims or not spec(pod).resourceClaims):
        return None
    errors = check_cluster_pod(pod, claims=claims)
    if not errors:
        return None
    return Rejected(UNSUPPORTED, "; ".join(f"{e.field}: {e.message}" for e in errors))
