"""What pods refer to at an API server: objects, tokens, services. Wired by `agent.cluster`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import ContainerConfigError, service_variables
from kubelet_trio.kube import KubeApi, ServerFeatures
from kubelet_trio.model import PodUid, WallClock, is_static, pod_key, spec
from kubelet_trio.node import DEFAULT_TTL
from kubelet_trio.objects import (
    NO_MEMORY,
    ChangeDetection,
    ClusterAccounts,
    ClusterMemory,
    ClusterObjects,
    ClusterServices,
    ClusterTokens,
    NodeObjects,
    ObjectStore,
)
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor

_SERVICES_LIMIT = 5.0  # seconds that a container's start waits for the first list of services


class PodObjects:
    """See the module. `beside` once, before its children run."""

    def __init__(
        self,
        api: KubeApi,
        clock: WallClock,
        strategy: ChangeDetection = ChangeDetection.WATCH,
        memory: ClusterMemory = NO_MEMORY,
        *,
        time_to_live: Callable[[], float] = lambda: DEFAULT_TTL,
        features: ServerFeatures | None = None,
    ) -> None:
        self.tokens = ClusterTokens(api, clock, memory)
        self.accounts = ClusterAccounts(api, self.tokens)
        self._changed: Callable[[PodUid], None] = lambda _uid: None
        self._retry: Callable[[], None] = lambda: None
        self._store = ClusterObjects(
            api,
            lambda uid: self._changed(uid),
            strategy=strategy,
            time_to_live=time_to_live,
            memory=memory,
        )
        self._services = ClusterServices(api, lambda: self._retry(), memory, features)

    def beside(
        self,
        local: ObjectStore,
        *,
        changed: Callable[[PodUid], None],
        retry: Callable[[], None],
        is_static: Callable[[PodUid], bool],
    ) -> ObjectStore:
        """Return the store of all pods, and tell the agent from here on.

        Args:
            local: documents beside the manifests, for static pods.
            changed: an object that a pod holds is another.
            retry: pods may now start that could not.
            is_static: whether a pod comes from a manifest of this node.
        """
        self._changed, self._retry = changed, retry
        return NodeObjects(local, self._store, is_static)

    def children(self) -> tuple[ChildSpec | DynamicSupervisor, ...]:
        """Return what runs."""
        return ChildSpec("services", self._services.run), self._store.tree

    async def variables(self, pod: Pod) -> Mapping[str, str]:
        """Return what a pod is told of services; a static one starts without them if need be."""
        known = is_static(pod) or await self._services.wait_known(_SERVICES_LIMIT)
        if not known:
            raise ContainerConfigError(
                "services have not yet been read at least once, cannot construct envvars"
            )
        links = spec(pod).enableServiceLinks is not False
        return service_variables(self._services.facts, pod_key(pod).namespace, links=links)
