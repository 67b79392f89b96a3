"""Follows the cluster's services, for the environment variables of pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio
from lightkube.models.core_v1 import Service

from kubelet_trio.kube import KubeApi, Reflector, ServerFeatures
from kubelet_trio.objects.kinds import ServiceFacts, ServicePort
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory


def service_facts(service: Service) -> ServiceFacts | None:
    """Return what variables need of a service; None if it has no address or no ports."""
    meta, spec = service.metadata, service.spec
    # "None" is the cluster IP of a headless service: it has no address for a variable.
    if meta is None or spec is None or spec.clusterIP in (None, "", "None") or not spec.ports:
        return None
    ports = (ServicePort(p.name or "", p.protocol or "TCP", p.port) for p in spec.ports)
    return ServiceFacts(meta.namespace or "", meta.name or "", spec.clusterIP or "", tuple(ports))


class ClusterServices:
    """Follows all services; calls `synced` after the first list."""

    def __init__(
        self,
        api: KubeApi,
        synced: Callable[[], None] = lambda: None,
        memory: ClusterMemory = NO_MEMORY,
        features: ServerFeatures | None = None,
    ) -> None:
        self._api = api
        self._features = features
        self._memory = memory
        self._synced = synced
        self._known = trio.Event()
        self.facts: tuple[ServiceFacts, ...] = ()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the services until cancelled."""
        reflector = Reflector(self._api, Service, features=self._features)
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            task_status.started()
            while True:
                self._take((await reflector.wait_delivery()).objects.values())

    async def wait_known(self, seconds: float) -> bool:
        """Wait up to `seconds` for the services; return whether they are known."""
        # Offline there is no answer to wait for: use the services from before the start.
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
