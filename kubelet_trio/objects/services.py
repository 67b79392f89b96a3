"""A cluster's services, and what of them a node keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Service

from kubelet_trio.kube import Abilities, KubeApi, Reflector
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory


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


class ClusterServices:
    """Follows all services; `synced` is called once they are known for the first time."""

    def __init__(
        self,
        api: KubeApi,
        synced: Callable[[], None] = lambda: None,
        memory: ClusterMemory = NO_MEMORY,
        abilities: Abilities | None = None,
    ) -> None:
        self._api = api
        self._abilities = abilities
        self._memory = memory
        self._synced = synced
        self._known = trio.Event()
        self.facts: tuple[ServiceFacts, ...] = ()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow them until cancelled."""
        reflector = Reflector(self._api, Service, abilities=self._abilities)
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            task_status.started()
            while True:
                self._take((await reflector.wait_delivery()).objects.values())

    async def wait_known(self, seconds: float) -> bool:
        """Wait so long for the services to be known, and return whether they are."""
        with trio.move_on_after(0 if self._memory.is_cut_off else seconds):
            await self._known.wait()
        last = None if self._known.is_set() else self._memory.last_services()
        if last is not None:
            self.facts = last
        return self._known.is_set() or last is not None

    def _take(self, services: Iterable[Service]) -> None:
        found = map(service_facts, services)
        self.facts = tuple(facts for facts in found if facts is not None)
        self._memory.note_services(self.facts)
        if not self._known.is_set():
            self._known.set()
            self._synced()
