"""The Pods API: the pods of this node with their newest statuses, for other programs on it.

Source: pkg/kubelet/apis/pods/server.go. Calls are limited as those of the pod resources API, and
watches by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.grpc import GRPCError, Server, ServerLimits, ServerStream, Status
from kubelet_trio.model import PodUid, get_logger
from kubelet_trio.server.pods_api.encode import PodEncoder, encode_deleted
from kubelet_trio.server.pods_api.generated.v1alpha1 import (
    EventType,
    GetPodRequest,
    GetPodResponse,
    ListPodsRequest,
    ListPodsResponse,
    WatchPodsEvent,
    WatchPodsRequest,
)
from kubelet_trio.server.pods_api.generated.v1alpha1.server import PodsBase
from kubelet_trio.server.pods_api.watches import PodEvent, PodEventType, PodWatches

log = get_logger()

# DefaultQPS and DefaultBurstTokens in pkg/kubelet/apis/pods; the rest is this agent's.
LIMITS = ServerLimits(
    connections=32,
    streams=32,
    stream_window=1 << 16,
    queued_bytes=4 << 20,
    request_bytes=1 << 12,
    calls=16,
    call_seconds=30.0,
    qps=100,
    burst=10,
)
MAX_WATCHES = 64

Watcher = ServerStream[WatchPodsRequest, WatchPodsEvent]


def pods_api_server(pods: Callable[[], Mapping[PodUid, Pod]], watches: PodWatches) -> Server:
    """Return the server.

    Args:
        pods: returns the pods of the node with their statuses, by UID.
        watches: is told of all that changes in them.
    """
    return Server([PodsApi(pods, watches)], limits=LIMITS)


class PodsApi(PodsBase):
    """The service, version v1alpha1."""

    def __init__(self, pods: Callable[[], Mapping[PodUid, Pod]], watches: PodWatches) -> None:
        self._pods = pods
        self._watches = watches
        self._encoder = PodEncoder()
        self._count = 0  # watches

    async def list_pods(self, request: ListPodsRequest) -> ListPodsResponse:
        pods = self._pods()
        encoded = []
        for uid in sorted(pods):
            # Encoding hundreds of pods takes long enough to hold up others.
            await trio.lowlevel.checkpoint()
            encoded.append(self._encoder.encode(pods[uid]))
        self._encoder.keep_only(self._pods())
        return ListPodsResponse(pods=encoded)

    async def get_pod(self, request: GetPodRequest) -> GetPodResponse:
        await trio.lowlevel.checkpoint()
        pod = self._pods().get(PodUid(request.pod_uid))
        if pod is None:
            raise GRPCError(Status.NOT_FOUND, f"pod with UID {request.pod_uid} not found")
        return GetPodResponse(pod=self._encoder.encode(pod))

    async def watch_pods(self, request: WatchPodsRequest, stream: Watcher) -> None:
        if self._count >= MAX_WATCHES:
            message = f"more than {MAX_WATCHES} watches of pods are open"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, message)
        self._count += 1
        try:
            await self._watch(stream)
        finally:
            self._count -= 1

    async def _watch(self, stream: Watcher) -> None:
        with self._watches.watching(self._pods()) as watch, watch.scope:
            while watch.initial:
                # Let go of each pod once it is sent: a slow client must not hold old ones.
                pod = watch.initial.popleft()
                await stream.send_message(self._message(PodEvent(PodEventType.ADDED, pod)))
            await stream.send_message(WatchPodsEvent(type=EventType.INITIAL_SYNC_COMPLETE))
            while (event := await watch.next_event()) is not None:
                await stream.send_message(self._message(event))
        # The client's name is in the context of its connection.
        log.warning("pods_api.watch_ended", reason="the client does not read fast enough")
        # The message of upstream.
        raise GRPCError(Status.RESOURCE_EXHAUSTED, "watch client channel closed")

    def _message(self, event: PodEvent) -> WatchPodsEvent:
        if event.type is PodEventType.DELETED:
            pod = encode_deleted(event.pod)
            self._encoder.keep_only(self._pods())
        else:
            pod = self._encoder.encode(event.pod)
        return WatchPodsEvent(type=EventType(event.type.value), pod=pod)
