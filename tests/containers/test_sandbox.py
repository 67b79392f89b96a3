from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import ContainerPort, PodSecurityContext, Sysctl

from kubelet_trio.cgroups import CgroupDriver
from kubelet_trio.containers import SandboxConfigError, sandbox_config
from kubelet_trio.cri import v1
from tests.containers.make import NODE, container, pod, sized


def namespaces(**fields: Any) -> tuple[v1.NamespaceMode, v1.NamespaceMode, v1.NamespaceMode]:
    linux = sandbox_config(pod(**fields), NODE, attempt=0).linux
    assert linux is not None
    assert linux.security_context is not None
    options = linux.security_context.namespace_options
    assert options is not None
    return options.network, options.pid, options.ipc


def test_the_same_pod_has_the_same_config() -> None:
    of_pod = pod(meta={"labels": {"app": "x"}})
    assert bytes(sandbox_config(of_pod, NODE, attempt=1)) == bytes(
        sandbox_config(of_pod, NODE, attempt=1)
    )


def test_metadata_names_and_directories() -> None:
    node = replace(NODE, pod_logs_dir=Path("/logs"))
    config = sandbox_config(pod(meta={"annotations": {"a": "b"}}), node, attempt=2)
    assert config.metadata == v1.PodSandboxMetadata(
        name="web", uid="u-1", namespace="default", attempt=2
    )
    assert config.log_directory == "/logs/default_web_u-1"
    assert config.hostname == "web"
    assert config.annotations == {"a": "b"}


def test_sysctls_have_dots_between_their_parts() -> None:
    named = [Sysctl("net/ipv4/conf/eth0.1/forwarding", "1"), Sysctl("kernel.shm_rmid_forced", "1")]
    linux = sandbox_config(
        pod(securityContext=PodSecurityContext(sysctls=named)), NODE, attempt=0
    ).linux
    assert linux is not None
    assert linux.sysctls == {
        "net.ipv4.conf.eth0/1.forwarding": "1",
        "kernel.shm_rmid_forced": "1",
    }


def test_on_the_hosts_network_the_hostname_is_the_runtimes_to_set() -> None:
    assert sandbox_config(pod(hostNetwork=True), NODE, attempt=0).hostname == ""


def test_the_full_hostname_if_asked_for() -> None:
    config = sandbox_config(pod(subdomain="s", setHostnameAsFQDN=True), NODE, attempt=0)
    assert config.hostname == "web.s.default.svc.cluster.local"
    long = pod(subdomain="s" * 60, setHostnameAsFQDN=True)
    with pytest.raises(SandboxConfigError, match="too long"):
        sandbox_config(long, NODE, attempt=0)


def test_namespaces_follow_the_spec() -> None:
    mode = v1.NamespaceMode
    assert namespaces() == (mode.POD, mode.CONTAINER, mode.POD)
    assert namespaces(shareProcessNamespace=True) == (mode.POD, mode.POD, mode.POD)
    assert namespaces(hostNetwork=True) == (mode.NODE, mode.CONTAINER, mode.POD)
    assert namespaces(hostPID=True, hostIPC=True) == (mode.POD, mode.NODE, mode.NODE)


def test_ports_of_main_containers_are_mapped_each_once() -> None:
    ports = [
        ContainerPort(containerPort=80, hostPort=8080),
        ContainerPort(containerPort=80, hostPort=8080),
        ContainerPort(containerPort=53, protocol="UDP", name="dns", hostIP="127.0.0.1"),
        ContainerPort(containerPort=54, protocol="SCTP", name="dns"),
        ContainerPort(containerPort=80, hostPort=8080, hostIP="::1"),
        ContainerPort(containerPort=80, hostPort=8080, hostIP="127.0.0.2"),
    ]
    config = sandbox_config(pod(container(ports=ports)), NODE, attempt=0)
    assert [
        (p.protocol.name, p.container_port, p.host_port, p.host_ip) for p in config.port_mappings
    ] == [
        ("TCP", 80, 8080, ""),
        ("UDP", 53, 0, "127.0.0.1"),
        ("TCP", 80, 8080, "::1"),
        ("TCP", 80, 8080, "127.0.0.2"),
    ]


@pytest.mark.parametrize(
    ("driver", "root", "expected"),
    [
        ("cgroupfs", "", "/kubepods/burstable/podu-1"),
        ("cgroupfs", "/edge", "/edge/kubepods/burstable/podu-1"),
        (
            "systemd",
            "",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice",
        ),
    ],
)
def test_the_cgroup_parent_is_the_pods(driver: CgroupDriver, root: str, expected: str) -> None:
    node = replace(NODE, cgroup_driver=driver, cgroup_root=root)
    linux = sandbox_config(pod(sized(requests={"cpu": "1"})), node, attempt=0).linux
    assert linux is not None
    assert linux.cgroup_parent == expected


def test_no_cgroup_parent_without_qos_cgroups() -> None:
    linux = sandbox_config(pod(), replace(NODE, cgroups_per_qos=False), attempt=0).linux
    assert linux is not None
    assert linux.cgroup_parent == ""


def test_the_sandbox_itself_is_always_under_the_runtimes_seccomp_profile() -> None:
    context = PodSecurityContext(runAsUser=7, fsGroup=8, sysctls=[Sysctl(name="a.b", value="1")])
    linux = sandbox_config(pod(securityContext=context), NODE, attempt=0).linux
    assert linux is not None
    assert linux.security_context is not None
    security = linux.security_context
    assert security.seccomp == v1.SecurityProfile(
        profile_type=v1.SecurityProfileProfileType.RuntimeDefault
    )
    assert security.run_as_user == v1.Int64Value(value=7)
    assert security.supplemental_groups == [8]
    assert linux.sysctls == {"a.b": "1"}


def test_a_quantity_that_is_none_is_an_error_of_the_sandbox() -> None:
    with pytest.raises(SandboxConfigError, match="'lots' is not a quantity"):
        sandbox_config(pod(sized(requests={"cpu": "lots"})), NODE, attempt=0)
