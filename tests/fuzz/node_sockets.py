"""Targets: what programs of the node say on the gRPC sockets that the agent serves."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import strategies as st

from kubelet_trio.grpc import Server
from kubelet_trio.managers.podresources import pod_resources_server
from kubelet_trio.managers.podresources.generated.v1 import GetPodResourcesRequest
from kubelet_trio.server import pods_api_server
from kubelet_trio.server.pods_api.generated.v1alpha1 import GetPodRequest
from tests.fuzz.mutate import edited, frames
from tests.fuzz.target import Target, in_trio
from tests.grpc import raw_peer
from tests.managers.podresources.view import FakeNode, pod_named
from tests.server.pods_api.pods import Node
from tests.server.pods_api.pods import pod_named as api_pod

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _request(path: str, message: bytes, stream: int = 1) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    body = raw_peer.data(raw_peer.message(message), end=True, stream=stream)
    return raw_peer.headers(fields, stream=stream) + body


def _answer(server: Server, said: bytes) -> bytes:
    """Return what a server answers to a client that says this and hangs up."""

    async def talk() -> bytes:
        near, far = trio.testing.memory_stream_pair()
        answer = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve_stream, far)
            await near.send_all(said)
            await trio.sleep(1)  # a watch goes on for as long as its client stays
            await near.send_stream.aclose()
            try:
                while data := await near.receive_some():
                    answer += data
            except trio.BrokenResourceError:
                pass
        return bytes(answer)

    return in_trio(talk)


def _resources(said: bytes) -> bytes:
    node = FakeNode(pod_named("web"))
    return _answer(pod_resources_server(node, node.meter), said)


def _pods(said: bytes) -> bytes:
    node = Node(api_pod("web"))
    return _answer(pods_api_server(lambda: node.store.pods.value, node.watches), said)


_GET = bytes(GetPodResourcesRequest(pod_name="web", pod_namespace="ns"))
_RESOURCES = [
    _request("/v1.PodResourcesLister/List", b"", 1),
    _request("/v1.PodResourcesLister/Get", _GET, 3),
    _request("/v1.PodResourcesLister/GetAllocatableResources", b"", 5),
    _request("/v1alpha1.PodResourcesLister/List", b"", 7),
]
_PODS = [
    _request("/v1alpha1.Pods/ListPods", b"", 1),
    _request("/v1alpha1.Pods/GetPod", bytes(GetPodRequest(pod_uid="web-uid")), 3),
    _request("/v1alpha1.Pods/WatchPods", b"", 5),
]
_START = _PREFACE + raw_peer.settings()

TARGETS = [
    Target(
        f"a client of the {name}",
        run,
        [_START + b"".join(requests)],
        st.one_of(frames(requests, _START), edited(st.just(_START + b"".join(requests)))),
    )
    for name, run, requests in (
        ("pod resources API", _resources, _RESOURCES),
        ("Pods API", _pods, _PODS),
    )
]
