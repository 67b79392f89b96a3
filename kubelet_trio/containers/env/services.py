"""Environment variables with the addresses of services, in the format of Docker links. Pure.

A pod gets those of its namespace if `enableServiceLinks` is on, and those of the API server
(`default/kubernetes`) in any case. Source: getServiceEnvVarMap in kubelet_pods.go.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from kubelet_trio.objects import ServiceFacts

_MASTER = ("default", "kubernetes")


def service_variables(
    services: Iterable[ServiceFacts], namespace: str, *, links: bool
) -> dict[str, str]:
    """Return the variables of a pod in a namespace."""
    chosen: dict[str, ServiceFacts] = {}
    for service in sorted(services, key=lambda s: (s.namespace, s.name)):
        is_own = links and service.namespace == namespace
        is_master = (service.namespace, service.name) == _MASTER
        # A service `kubernetes` in the pod's own namespace hides the API server's.
        if is_own or (is_master and service.name not in chosen):
            chosen[service.name] = service
    variables: dict[str, str] = {}
    for service in chosen.values():
        variables.update(_variables(service))
    return variables


def _variables(service: ServiceFacts) -> Iterator[tuple[str, str]]:
    prefix = _variable(service.name)
    yield f"{prefix}_SERVICE_HOST", service.ip
    # As with Docker links, the variables without a port's name are those of the first port.
    yield f"{prefix}_SERVICE_PORT", str(service.ports[0].port)
    for port in service.ports:
        if port.name:
            yield f"{prefix}_SERVICE_PORT_{_variable(port.name)}", str(port.port)
    for number, port in enumerate(service.ports):
        protocol = port.protocol.lower()
        url = f"{protocol}://{_host(service.ip)}:{port.port}"
        if number == 0:
            yield f"{prefix}_PORT", url
        link = f"{prefix}_PORT_{port.port}_{port.protocol.upper()}"
        yield link, url
        yield f"{link}_PROTO", protocol
        yield f"{link}_PORT", str(port.port)
        yield f"{link}_ADDR", service.ip


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def _host(ip: str) -> str:
    try:
        return f"[{ip}]" if ipaddress.ip_address(ip).version == 6 else ip
    except ValueError:
        return ip
