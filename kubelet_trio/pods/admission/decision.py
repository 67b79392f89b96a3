"""Decide whether a pod may run on this node: the Go kubelet's admit handlers as one pure function.

`decide_beside` looks at a pod, what the pods on the node hold, and the node:

    Admitted    it runs
    Rejected    it never runs: phase Failed, with upstream's reasons and messages
    Preempting  it is critical, and fits once some other pods have ended

The order is upstream's: sysctls, the operating system and features of the node, then what the
scheduler checks (resources, affinity, host ports, NoExecute taints), then AppArmor.
Upstream: pkg/kubelet/lifecycle, sysctl and preemption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Container, Pod, PodSecurityContext, Taint
from msgspec.structs import replace

from kubelet_trio.containers import apparmor_profile, pod_requests
from kubelet_trio.model import (
    NANO,
    is_claimed,
    is_critical,
    is_extended,
    is_static,
    metadata,
    pod_containers,
    spec,
    to_milli,
    to_units,
)
from kubelet_trio.pods.admission.affinity import matches_node, untolerated
from kubelet_trio.pods.admission.held import NOTHING, Held, Sums, host_ports
from kubelet_trio.pods.admission.preemption import NoVictimsError, choose_victims
from kubelet_trio.pods.admission.sysctls import SysctlRules

_OS = "kubernetes.io/os"
_LINUX = "linux"
_ORDER = ("pods", "cpu", "memory", "ephemeral-storage")  # that of the scheduler's fitsRequest


@dataclass(frozen=True, slots=True)
class AdmissionNode:
    """What admission needs to know of the node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, int] = field(default_factory=dict)  # nano-units; empty: unknown
    sysctls: SysctlRules = field(default_factory=SysctlRules)
    strict_groups: bool = False  # the runtime supports supplementalGroupsPolicy Strict
    no_apparmor: str = ""  # why AppArmor cannot be enforced; "" where it can
    limited_swap: bool = False  # containers may use swap
    static_cpus: bool = False  # cpuManagerPolicy is static
    static_memory: bool = False  # memoryManagerPolicy is Static
    pod_level_resizes: bool = True  # InPlacePodLevelResourcesVerticalScaling
    extended_claims: bool = True  # claims may give extended resources (DRAExtendedResource)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The pod may run; if `waits`, once the pods that are being preempted have ended."""

    waits: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """The pod may not run. `message` is that of upstream's event."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Preempting:
    """The pod may run once `victims` have ended.

    It waits for them. The Go kubelet admits no other pod meanwhile.
    """

    victims: tuple[Pod, ...]
    resource: str = ""  # the first one that is short
    # What the pod would get without this.
    rejection: Rejected | None = field(default=None, compare=False)


Decision = Admitted | Rejected | Preempting


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that the node has too little of, in nano-units."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        return self.requested - (self.capacity - self.used)

    def rejection(self) -> Rejected:
        name = self.resource
        return Rejected(
            f"OutOf{name}",
            f"Node didn't have enough resource: {name}, "
            f"requested: {_in_units(name, self.requested)}, used: {_in_units(name, self.used)}, "
            f"capacity: {_in_units(name, self.capacity)}",
        )


def decide(
    pod: Pod, others: Sequence[Pod], node: AdmissionNode, leaving: Sequence[Pod] = ()
) -> Decision:
    """Return whether the pod may run beside `others`; see `decide_beside`."""
    return decide_beside(pod, Held.by(others), node, Held.by(leaving))


def decide_beside(pod: Pod, others: Held, node: AdmissionNode, leaving: Held = NOTHING) -> Decision:
    """Return whether the pod may run.

    Args:
        pod: the pod to be admitted.
        others: the pods that are on the node, whether they run yet or not.
        node: the node.
        leaving: pods on the node that end in any case: the pod waits for what they hold.
    """
    rejection = _check_sysctls(pod, node) or _check_platform(pod, node)
    if rejection is not None:
        return rejection
    short = list(shortages(pod, (others.sums,), node))
    failures = list(_mismatches(pod, others.sums, node))
    if failures and (is_critical(pod) or not short):
        # Upstream's CriticalPodAdmissionHandler: a shortage does not reject a critical pod, since
        # preemption can mend it. Any other failure does.
        return failures[0]
    if short and not is_critical(pod):
        return short[0].rejection()
    rejection = _check_apparmor(pod, node)
    if rejection is not None:
        return rejection
    if short:
        return preempt(pod, others.pods, short)
    together = (others.sums, leaving.sums)
    waits = bool(leaving.sums.count) and any(shortages(pod, together, node))
    return Admitted(waits or _has_port_conflict(pod, leaving.sums))


def preempt(pod: Pod, others: Sequence[Pod], short: Sequence[Shortage]) -> Preempting | Rejected:
    """Choose pods that end so that a critical pod gets the resources that are short."""
    missing = {each.resource: each.missing for each in short}
    try:
        victims = tuple(choose_victims(pod, others, missing))
        return Preempting(victims, short[0].resource, short[0].rejection())
    except NoVictimsError as exc:
        wanted = "".join(f"(res: {n}, q: {_in_units(n, q)}), " for n, q in exc.missing.items())
        return Rejected(
            "UnexpectedAdmissionError",
            "Unexpected error while attempting to recover from admission failure: preemption: "
            f"error finding a set of pods to preempt: {exc}: [{wanted}]",
        )


def _in_units(resource: str, amount: int) -> int:
    """Return nano-units in the unit of upstream's messages: milli-CPUs, bytes, numbers."""
    return to_milli(amount) if resource == "cpu" else to_units(amount)


def _check_sysctls(pod: Pod, node: AdmissionNode) -> Rejected | None:
    body = spec(pod)
    context = body.securityContext or PodSecurityContext()
    for sysctl in context.sysctls or ():
        problem = node.sysctls.problem(
            sysctl.name, host_network=bool(body.hostNetwork), host_ipc=bool(body.hostIPC)
        )
        if problem is not None:
            return Rejected("SysctlForbidden", f"forbidden sysctl: {problem}")
    return None


def _check_platform(pod: Pod, node: AdmissionNode) -> Rejected | None:
    body = spec(pod)
    # rejectPodAdmissionBasedOnOSSelector reads the pod's labels, and not its node selector.
    if (metadata(pod).labels or {}).get(_OS, _LINUX) != _LINUX:
        return Rejected(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    if body.os is not None and body.os.name != _LINUX:
        return Rejected(
            "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
        )
    context = body.securityContext or PodSecurityContext()
    if context.supplementalGroupsPolicy == "Strict" and not node.strict_groups:
        return Rejected(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        )
    return None


def _check_apparmor(pod: Pod, node: AdmissionNode) -> Rejected | None:
    profiles = [apparmor_profile(pod, container) for container in pod_containers(pod)]
    wanted = [p for p in profiles if p is not None and p.type != "Unconfined"]
    if not wanted:
        return None
    problem = node.no_apparmor
    if not problem and any(
        p.type == "Localhost" and not (p.localhostProfile or "").strip() for p in wanted
    ):
        problem = 'invalid empty AppArmor profile name: ""'
    return Rejected("AppArmor", f"Cannot enforce AppArmor: {problem}") if problem else None


def _mismatches(pod: Pod, others: Sums, node: AdmissionNode) -> Iterator[Rejected]:
    """Yield why the node does not match a pod, whatever resources it has."""
    if not matches_node(pod, node.name, node.labels):
        yield _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if spec(pod).nodeName not in (None, "", node.name):
        yield _failed("NodeName", "node(s) didn't match the requested node name")
    if _has_port_conflict(pod, others):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    # Upstream checks taints "except for static pods".
    if not is_static(pod) and untolerated(node.taints, spec(pod).tolerations or (), "NoExecute"):
        yield _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _failed(predicate: str, why: str) -> Rejected:
    return Rejected(predicate, f"Predicate {predicate} failed: {why}")


def shortages(pod: Pod, others: Sequence[Sums], node: AdmissionNode) -> Iterator[Shortage]:
    """Yield the resources that the node has too little of, beside what `others` hold together."""
    capacity = node.allocatable
    if not capacity:
        return  # the node does not report what it has
    count = sum(each.count for each in others)
    if "pods" in capacity and (count + 1) * NANO > capacity["pods"]:
        yield Shortage("pods", NANO, count * NANO, capacity["pods"])
    counted = _without_claimed(pod) if node.extended_claims else pod
    wanted = {n: a for n, a in pod_requests(counted).items() if a > 0 and n != "pods"}
    used = {name: sum(each.used(name) for each in others) for name in wanted}
    # Upstream reports extended resources in the random order of a Go map; here they are sorted.
    for name in sorted(wanted, key=lambda n: (_ORDER.index(n) if n in _ORDER else 9, n)):
        if name not in capacity and is_extended(name):
            # Of a device plugin or of the whole cluster. Upstream's
            # removeMissingExtendedResources: the node does not count what it does not report.
            continue
        here = capacity.get(name, 0)
        if wanted[name] > here - used[name]:
            yield Shortage(name, wanted[name], used[name], here)


def _without_claimed(pod: Pod) -> Pod:
    """Return the pod without the requests that claims meet; usually the pod itself."""
    if pod.status is None or pod.status.extendedResourceClaimStatus is None:
        return pod

    def unclaimed(container: Container) -> Container:
        resources = container.resources
        if resources is None or not resources.requests:
            return container
        kept = {
            name: amount
            for name, amount in resources.requests.items()
            if not is_claimed(pod, container.name, name)
        }
        return replace(container, resources=replace(resources, requests=kept))

    body = spec(pod)
    mains = [unclaimed(each) for each in body.containers]
    inits = [unclaimed(each) for each in body.initContainers or ()]
    return replace(pod, spec=replace(body, containers=mains, initContainers=inits))


def _has_port_conflict(pod: Pod, others: Sums) -> bool:
    return any(others.has_port(port) for port in host_ports(pod))
