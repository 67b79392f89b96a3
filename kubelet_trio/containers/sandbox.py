"""Turns a pod into the CRI config of its sandbox. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lightkube.models.core_v1 import Container, ContainerPort, Pod

from kubelet_trio.cgroups import pod_cgroup_parent
from kubelet_trio.containers.dns import pod_dns
from kubelet_trio.containers.errors import SandboxConfigError
from kubelet_trio.containers.hosts import kernel_hostname, pod_hostname
from kubelet_trio.containers.labels import sandbox_annotations, sandbox_labels
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.containers.paths import pod_log_directory
from kubelet_trio.containers.resources.amounts import pod_qos
from kubelet_trio.containers.resources.container import overhead_resources, sandbox_resources
from kubelet_trio.containers.security import sandbox_security
from kubelet_trio.cri import v1
from kubelet_trio.model import pod_key, pod_uid
from kubelet_trio.model import spec as pod_spec


def sandbox_config(
    pod: Pod,
    node: NodeSettings,
    *,
    attempt: int,
    users: v1.UserNamespace | None = None,
    volume_groups: Sequence[int] = (),
) -> v1.PodSandboxConfig:
    """Return the config of a pod's sandbox; it is equal for equal arguments.

    `users` is the pod's own user namespace, if it has one, and `volume_groups` are the groups that
    its volumes add. `pod_dns(...).warnings` reports what is cut from its resolver settings. Raises
    `SandboxConfigError` for an invalid name or quantity.
    """
    key, spec = pod_key(pod), pod_spec(pod)
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(
            name=key.name, namespace=key.namespace, uid=pod_uid(pod), attempt=attempt
        ),
        # On the host's network the runtime sets the host's name.
        hostname="" if spec.hostNetwork else _hostname(pod, node),
        log_directory=str(pod_log_directory(node.pod_logs_dir, pod)),
        dns_config=pod_dns(pod, node).config,
        port_mappings=list(port_mappings(pod)),
        labels=sandbox_labels(pod),
        annotations=sandbox_annotations(pod),
        linux=_linux(pod, node, users, volume_groups),
    )


def port_mappings(pod: Pod) -> Iterator[v1.PortMapping]:
    """Yield the ports of the main containers, including those without a host port."""
    for container in pod_spec(pod).containers or ():
        for port in _distinct_ports(container):
            yield v1.PortMapping(
                protocol=v1.Protocol[port.protocol or "TCP"],
                container_port=port.containerPort,
                host_port=port.hostPort or 0,
                host_ip=port.hostIP or "",
            )


def _hostname(pod: Pod, node: NodeSettings) -> str:
    name = pod_hostname(pod, node.cluster_domain)
    return kernel_hostname(name, pod_spec(pod).setHostnameAsFQDN)


def _linux(
    pod: Pod, node: NodeSettings, users: v1.UserNamespace | None, volume_groups: Sequence[int]
) -> v1.LinuxPodSandboxConfig:
    try:
        return v1.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent(pod, node),
            security_context=sandbox_security(pod, users, volume_groups),
            sysctls=_sysctls(pod),
            overhead=overhead_resources(pod, node),
            resources=sandbox_resources(pod, node),
        )
    except ValueError as exc:
        raise SandboxConfigError(str(exc)) from exc


def cgroup_parent(pod: Pod, node: NodeSettings) -> str:
    """Return the pod's cgroup in the form that CRI expects; "" without `cgroupsPerQOS`."""
    return pod_cgroup_parent(
        pod_uid(pod),
        pod_qos(pod),
        driver=node.cgroup_driver,
        root=node.cgroup_root,
        per_qos=node.cgroups_per_qos,
    )


def _sysctls(pod: Pod) -> dict[str, str]:
    context = pod_spec(pod).securityContext
    return {dotted_sysctl(s.name): s.value for s in (context.sysctls if context else None) or ()}


def dotted_sysctl(name: str) -> str:
    """Return a sysctl's name with dots, as runtimes expect it: `net/ipv4/x` is `net.ipv4.x`.

    In a name with slashes a dot is part of a component (of an interface's name) and becomes a
    slash, sysctl.d(5).
    """
    first = next((char for char in name if char in "./"), ".")
    return name if first == "." else name.translate(str.maketrans("./", "/."))


def _distinct_ports(container: Container) -> Iterator[ContainerPort]:
    """Yield a container's ports, each name once; unnamed ones each combination of fields once."""
    seen: set[str] = set()
    for port in container.ports or ():
        name = port.name or _port_name(port)
        if name not in seen:
            seen.add(name)
            yield port


def _port_name(port: ContainerPort) -> str:
    # As upstream's MakePortMappings, so that the same duplicates are dropped.
    family = "any" if not port.hostIP else "v6" if ":" in port.hostIP else "v4"
    return f"{family}-{port.protocol}-{port.hostIP}:{port.containerPort}:{port.hostPort}"
