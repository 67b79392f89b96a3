"""May a pod run on this node: upstream's answers, one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lightkube.models.core_v1 import (
    AppArmorProfile,
    Container,
    ContainerExtendedResourceRequest,
    ContainerPort,
    Pod,
    PodExtendedResourceClaimStatus,
    PodOS,
    PodSecurityContext,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SecurityContext,
    Sysctl,
    Taint,
    Toleration,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import CONFIG_SOURCE, NANO
from kubelet_trio.pods import AdmissionNode, Rejected, sysctl_rules
from kubelet_trio.pods.admission.decision import Admitted, Preempting, decide

GI = 2**30
NODE = AdmissionNode(
    "node",
    labels={"zone": "a"},
    allocatable={
        "pods": 3 * NANO,
        "cpu": 4 * NANO,
        "memory": 8 * GI * NANO,
        "ephemeral-storage": 10 * GI * NANO,
        "hugepages-2Mi": 0,
    },
    sysctls=sysctl_rules(),
)


def pod(
    name: str = "web",
    source: str = "api",
    requests: dict[str, str] | None = None,
    ports: list[ContainerPort] | None = None,
    labels: dict[str, str] | None = None,
    security: SecurityContext | None = None,
    **spec: Any,
) -> Pod:
    container = Container(
        name="main",
        ports=ports,
        securityContext=security,
        resources=ResourceRequirements(requests=requests) if requests else None,
    )
    return Pod(
        metadata=ObjectMeta(
            name=name, uid=name, labels=labels, annotations={CONFIG_SOURCE: source}
        ),
        spec=PodSpec(**{"containers": [container], **spec}),
    )


def port(number: int, protocol: str = "TCP", ip: str | None = None) -> ContainerPort:
    return ContainerPort(containerPort=1, hostPort=number, protocol=protocol, hostIP=ip)


CPU = "Node didn't have enough resource: cpu, requested: 3500, used: 1000, capacity: 4000"
MISMATCH = "node(s) didn't match Pod's node affinity/selector"
PORTS = "node(s) didn't have free ports for the requested pod ports"
TAINTED = "node(s) had taints that the pod didn't tolerate"


@pytest.mark.parametrize(
    ("of", "others", "reason", "message"),
    [
        (pod(requests={"cpu": "3500m"}), [pod("a", requests={"cpu": "1"})], "OutOfcpu", CPU),
        (
            pod(requests={"memory": "9Gi"}),
            [],
            "OutOfmemory",
            f"Node didn't have enough resource: memory, requested: {9 * GI}, used: 0, "
            f"capacity: {8 * GI}",
        ),
        (
            pod(requests={"ephemeral-storage": "11Gi"}),
            [],
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, "
            f"requested: {11 * GI}, used: 0, capacity: {10 * GI}",
        ),
        (
            pod(),
            [pod("a"), pod("b"), pod("c")],
            "OutOfpods",
            "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
        ),
        (
            pod(requests={"hugepages-2Mi": "2Mi"}),
            [],
            "OutOfhugepages-2Mi",
            "Node didn't have enough resource: hugepages-2Mi, "
            f"requested: {2 * 2**20}, used: 0, capacity: 0",
        ),
        (
            pod(nodeSelector={"zone": "b"}),
            [],
            "NodeAffinity",
            f"Predicate NodeAffinity failed: {MISMATCH}",
        ),
        (
            pod(nodeName="other"),
            [],
            "NodeName",
            "Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        (
            pod(ports=[port(80)]),
            [pod("a", ports=[port(80)])],
            "NodePorts",
            f"Predicate NodePorts failed: {PORTS}",
        ),
        (
            pod(os=PodOS("windows")),
            [],
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            pod(labels={"kubernetes.io/os": "windows"}),
            [],
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ),
        (
            pod(securityContext=PodSecurityContext(supplementalGroupsPolicy="Strict")),
            [],
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            pod(securityContext=PodSecurityContext(sysctls=[Sysctl("kernel.sem", "1")])),
            [],
            "SysctlForbidden",
            'forbidden sysctl: "kernel.sem" not allowlisted',
        ),
    ],
)
def test_it_is_rejected_as_upstream_rejects_it(
    of: Pod, others: list[Pod], reason: str, message: str
) -> None:
    assert decide(of, others, NODE) == Rejected(reason, message)


def test_of_several_reasons_the_first_is_told() -> None:
    both = pod(requests={"cpu": "5"}, nodeSelector={"zone": "b"})
    assert isinstance(decide(both, [], NODE), Rejected)
    assert decide(both, [], NODE) == Rejected(
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000",
    )
    # A critical pod could make room; that it is not for this node cannot be helped.
    critical = pod(requests={"cpu": "5"}, nodeSelector={"zone": "b"}, priority=2_000_000_000)
    decision = decide(critical, [], NODE)
    assert isinstance(decision, Rejected)
    assert decision.reason == "NodeAffinity"


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [
        (port(80), port(81), True),
        (port(80), port(80, "UDP"), True),
        (port(80, ip="10.0.0.1"), port(80, ip="10.0.0.2"), True),
        (port(80, ip="10.0.0.1"), port(80), False),
        (port(80), port(80, ip="10.0.0.1"), False),
        (port(80, ip="10.0.0.1"), port(80, ip="10.0.0.1"), False),
    ],
)
def test_host_ports_are_of_an_address_and_protocol(
    mine: ContainerPort, theirs: ContainerPort, fits: bool
) -> None:
    decision = decide(pod(ports=[mine]), [pod("a", ports=[theirs])], NODE)
    assert (decision == Admitted()) is fits


def test_ports_of_sidecars_count_and_those_of_init_containers_do_not() -> None:
    def with_init(policy: str | None) -> Pod:
        init = Container(name="init", ports=[port(80)], restartPolicy=policy)
        return pod("a", initContainers=[init])

    web = pod(ports=[port(80)])
    assert isinstance(decide(web, [with_init("Always")], NODE), Rejected)
    assert decide(web, [with_init(None)], NODE) == Admitted()


def test_no_execute_taints_are_for_all_but_static_pods() -> None:
    tainted = replace(NODE, taints=(Taint(effect="NoExecute", key="gone"),))
    assert decide(pod(), [], tainted) == Rejected(
        "TaintToleration", f"Predicate TaintToleration failed: {TAINTED}"
    )
    assert decide(pod(source="file"), [], tainted) == Admitted()
    assert decide(pod(tolerations=[Toleration(operator="Exists")]), [], tainted) == Admitted()
    no_schedule = replace(NODE, taints=(Taint(effect="NoSchedule", key="busy"),))
    assert decide(pod(), [], no_schedule) == Admitted()


def test_apparmor_is_refused_where_the_host_has_none() -> None:
    without = replace(NODE, no_apparmor="AppArmor is not enabled on the host")

    def of(type_: str) -> Pod:
        return pod(security=SecurityContext(appArmorProfile=AppArmorProfile(type_)))

    assert decide(of("RuntimeDefault"), [], without) == Rejected(
        "AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"
    )
    assert decide(of("Unconfined"), [], without) == Admitted()
    assert decide(of("RuntimeDefault"), [], NODE) == Admitted()


def test_what_the_node_counts_nothing_of_is_not_measured() -> None:
    assert decide(pod(requests={"example.com/dongle": "3"}), [], NODE) == Admitted()
    unknown = replace(NODE, allocatable={})
    assert decide(pod(requests={"cpu": "100"}), [], unknown) == Admitted()


_GPU = "deviceclass.resource.kubernetes.io/gpu"


@pytest.mark.parametrize(
    ("resource", "container", "node", "reason"),
    [
        (_GPU, "main", NODE, ""),
        (_GPU, "other", NODE, f"OutOf{_GPU}"),
        (_GPU, "main", replace(NODE, extended_claims=False), f"OutOf{_GPU}"),
        # The node counts it, but claims and plugins may share a resource's name.
        ("example.com/dongle", "main", NODE, ""),
        ("example.com/dongle", "other", NODE, "OutOfexample.com/dongle"),
        ("hugepages-2Mi", "main", NODE, "OutOfhugepages-2Mi"),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_what_a_claim_gives_is_not_measured(
    resource: str, container: str, node: AdmissionNode, reason: str, kind: str
) -> None:
    """removeMissingExtendedResources of pkg/kubelet/lifecycle, KEP-5004."""
    asking = pod(requests={resource: "2"})
    assert asking.spec is not None
    if kind == "initContainers":
        (main,) = asking.spec.containers
        asking.spec.initContainers = [main]
        asking.spec.containers = [Container(name="idle")]
    mapping = ContainerExtendedResourceRequest(
        containerName=container, resourceName=resource, requestName="request-0"
    )
    asking.status = PodStatus(
        extendedResourceClaimStatus=PodExtendedResourceClaimStatus(
            requestMappings=[mapping], resourceClaimName="web-claim"
        )
    )
    here = replace(node, allocatable={**node.allocatable, "example.com/dongle": NANO})
    decision = decide(asking, [], here)
    assert (decision.reason if isinstance(decision, Rejected) else "") == reason


def test_overhead_counts() -> None:
    decision = decide(pod(requests={"cpu": "4"}, overhead={"cpu": "1m"}), [], NODE)
    assert isinstance(decision, Rejected)
    assert "requested: 4001" in decision.message


def test_a_critical_pod_preempts_one_that_is_not() -> None:
    static = pod(source="file", requests={"cpu": "3"})
    others = [pod("a", requests={"cpu": "2"}), pod("b", source="file", requests={"cpu": "1"})]
    assert decide(static, others, NODE) == Preempting((others[0],), "cpu")


def test_it_waits_for_the_pods_it_preempts_only_where_it_needs_their_place() -> None:
    leaving = [pod("a", requests={"cpu": "2"})]
    assert decide(pod(requests={"cpu": "3"}), [], NODE, leaving) == Admitted(waits=True)
    assert decide(pod(requests={"cpu": "2"}), [], NODE, leaving) == Admitted()
    port_holder = [pod("a", ports=[port(80)])]
    assert decide(pod(ports=[port(80)]), [], NODE, port_holder) == Admitted(waits=True)


def test_a_critical_pod_that_nobody_makes_room_for_is_rejected() -> None:
    static = pod(source="file", requests={"cpu": "3500m"})
    others = [pod("b", source="file", requests={"cpu": "1"})]
    assert decide(static, others, NODE) == Rejected(
        "UnexpectedAdmissionError",
        "Unexpected error while attempting to recover from admission failure: preemption: error "
        "finding a set of pods to preempt: no set of running pods found to reclaim resources: "
        "[(res: cpu, q: 500), ]",
    )
