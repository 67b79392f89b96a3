"""The pod resources API: v1 and v1alpha1 on one socket, with one rate limit.

Clients are monitoring agents of the node. They poll, and between two polls few pods change, so a
pod's encoded message is kept as long as the pod holds the same: a List of 250 pods costs a
millisecond or two instead of sixty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.grpc import (
    GRPCError,
    Handler,
    RawMessage,
    Server,
    ServerLimits,
    Status,
    unary_unary,
)
from kubelet_trio.managers.podresources.generated import v1, v1alpha1
from kubelet_trio.managers.podresources.generated.v1.server import PodResourcesListerBase
from kubelet_trio.managers.podresources.messages import (
    Uses,
    allocatable_use,
    alpha_pod_use,
    main_containers,
    pod_use,
    shown_containers,
)
from kubelet_trio.managers.podresources.types import ResourcesView
from kubelet_trio.model import Meter, PodUid, encode_bytes, metadata, pod_uid

# DefaultQPS and DefaultBurstTokens in pkg/kubelet/apis/podresources; the rest is this agent's: the
# clients of a node are a handful, with one call at a time. A name is at most 253 bytes long.
LIMITS = ServerLimits(
    connections=32,
    streams=32,
    stream_window=1 << 16,
    queued_bytes=4 << 20,
    request_bytes=1 << 12,
    calls=32,
    call_seconds=30.0,
    qps=100,
    burst=10,
)
_PREFIX = "kubelet_pod_resources_endpoint_"
_LIST_V1 = "/v1.PodResourcesLister/List"
_LIST_ALPHA = "/v1alpha1.PodResourcesLister/List"
_POD_RESOURCES = 1  # the field of both messages ListPodResourcesResponse


def pod_resources_server(
    view: ResourcesView, meter: Meter, *, use_active_pods: bool = True
) -> Server:
    """Return the server of both versions.

    Args:
        view: the node.
        meter: counts the requests.
        use_active_pods: the gate KubeletPodResourcesListUseActivePods: v1 lists no ended pods.
    """
    services = PodResources(view, meter, use_active_pods), AlphaPodResources(view, meter)
    return Server(services, limits=LIMITS)


class PodResources(PodResourcesListerBase):
    """Version v1."""

    def __init__(self, view: ResourcesView, meter: Meter, use_active_pods: bool = True) -> None:
        self._view = view
        self._meter = meter
        self._use_active_pods = use_active_pods
        self._encoded = _Encoded(self._uses, lambda pod, uses: bytes(pod_use(pod, uses)))

    def __mapping__(self) -> Mapping[str, Handler]:
        listed = unary_unary(self._list, v1.ListPodResourcesRequest, RawMessage)
        return {**super().__mapping__(), _LIST_V1: listed}

    async def _list(self, _: v1.ListPodResourcesRequest) -> RawMessage:
        self._count("requests_total")
        self._count("requests_list")
        pods = self._view.pods(active_only=self._use_active_pods)
        return await self._encoded.reply(pods)

    async def get_allocatable_resources(
        self, request: v1.AllocatableResourcesRequest
    ) -> v1.AllocatableResourcesResponse:
        await trio.lowlevel.checkpoint()
        self._count("requests_total")
        self._count("requests_get_allocatable")
        return allocatable_use(self._view.allocatable())

    async def get(self, request: v1.GetPodResourcesRequest) -> v1.GetPodResourcesResponse:
        await trio.lowlevel.checkpoint()
        self._count("requests_total")
        self._count("requests_get")
        name, namespace = request.pod_name, request.pod_namespace
        pod = self._view.active_pod(namespace, name)
        if pod is None:
            self._count("errors_get")
            # Upstream returns a plain error, which gRPC makes UNKNOWN, not NOT_FOUND.
            message = f"pod {name} in namespace {namespace} not found"
            raise GRPCError(Status.UNKNOWN, message)
        return v1.GetPodResourcesResponse(pod_resources=pod_use(pod, self._uses(pod)))

    def _uses(self, pod: Pod) -> Uses:
        uid, use = pod_uid(pod), self._view.container_use
        return tuple((name, use(uid, name)) for name in shown_containers(pod))

    def _count(self, name: str) -> None:
        self._meter.count(_PREFIX + name, ("v1",))


class AlphaPodResources:
    """Version v1alpha1: devices only, and also of pods that have ended."""

    def __init__(self, view: ResourcesView, meter: Meter) -> None:
        self._view = view
        self._meter = meter
        self._encoded = _Encoded(self._uses, lambda pod, uses: bytes(alpha_pod_use(pod, uses)))

    def __mapping__(self) -> Mapping[str, Handler]:
        return {_LIST_ALPHA: unary_unary(self._list, v1alpha1.ListPodResourcesRequest, RawMessage)}

    async def _list(self, _: v1alpha1.ListPodResourcesRequest) -> RawMessage:
        self._meter.count(_PREFIX + "requests_total", ("v1alpha1",))
        return await self._encoded.reply(self._view.pods(active_only=False))

    def _uses(self, pod: Pod) -> Uses:
        uid, use = pod_uid(pod), self._view.container_use
        return tuple((name, use(uid, name)) for name in main_containers(pod))


class _Encoded:
    """Encoded pods, each kept while it has the same name and its containers hold the same."""

    def __init__(
        self, uses_of: Callable[[Pod], Uses], encode: Callable[[Pod, Uses], bytes]
    ) -> None:
        self._uses_of = uses_of
        self._encode = encode
        self._kept: dict[PodUid, tuple[object, bytes]] = {}

    async def reply(self, pods: Iterable[Pod]) -> RawMessage:
        """Return a ListPodResourcesResponse with these pods."""
        await trio.lowlevel.checkpoint()
        # One moment for all pods: no await between the first and the last.
        now = [(pod, self._uses_of(pod)) for pod in pods]
        kept: dict[PodUid, tuple[object, bytes]] = {}
        parts: list[bytes] = []
        for pod, uses in now:
            uid, meta = pod_uid(pod), metadata(pod)
            key = meta.namespace, meta.name, uses
            found = self._kept.get(uid)
            if found is None or found[0] != key:
                found = key, encode_bytes(_POD_RESOURCES, self._encode(pod, uses))
                # Encoding hundreds of pods takes long enough to hold up others.
                await trio.lowlevel.checkpoint()
            kept[uid] = found
            parts.append(found[1])
        self._kept = kept
        return RawMessage(b"".join(parts))
