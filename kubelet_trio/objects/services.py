"""What of a cluster's services a node keeps."""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.core_v1 import Service


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port as it counts here."""

    name: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What of a service is kept: clusters have thousands, and pods need just this."""

    namespace: str
    name: str
    ip: str
    ports: tuple[ServicePort, ...]


def service_facts(service: Service) -> ServiceFacts | None:
    """Return what variables are made of; None for a service without an address or ports."""
    meta, spec = service.metadata, service.spec
    if meta is None or spec is None or spec.clusterIP in (None, "", "None") or not spec.ports:
        return None
    ports = (ServicePort(p.name or "", p.protocol or "TCP", p.port) for p in spec.ports)
    return ServiceFacts(meta.namespace or "", meta.name or "", spec.clusterIP or "", tuple(ports))
