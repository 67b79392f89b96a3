"""grpcio as the independent client of the Pods API, in real time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import trio

from tests.harness.node_stubs import stubs
from tests.server.pods_api.pods import Node, pod_named


async def test_grpcio_reads_and_watches_pods(short_path: Path) -> None:
    node = Node(pod_named("web"), pod_named("db"))
    pods = stubs("pod")[0]
    with trio.fail_after(60):
        async with node.served(short_path) as socket:
            token = trio.lowlevel.current_trio_token()

            def change() -> None:
                node.put(pod_named("web", "Running"))
                node.finish(pod_named("db"))

            def ask() -> tuple[Any, ...]:
                return _ask_all(f"unix:{socket}", lambda: token.run_sync_soon(change))

            listed, got, code, events = await trio.to_thread.run_sync(ask)
    names = [pods.Pod.FromString(data).metadata.name for data in listed.pods]
    assert names == ["db", "web"]
    web = pods.Pod.FromString(got.pod)
    assert web.metadata.uid == "web-uid"
    assert web.spec.containers[0].image == "i"
    assert web.status.phase == "Pending"
    assert code is grpc.StatusCode.NOT_FOUND
    told = [(e.type, pods.Pod.FromString(e.pod)) for e in events]
    assert [(kind, pod.metadata.name, pod.status.phase) for kind, pod in told] == [
        (1, "db", "Pending"),
        (1, "web", "Pending"),
        (4, "", ""),
        (2, "web", "Running"),
        (3, "db", ""),
    ]


def _ask_all(target: str, change: Any) -> tuple[Any, ...]:
    messages, services = stubs("pods")
    with grpc.insecure_channel(target) as channel:
        stub = services.PodsStub(channel)
        code = None
        try:
            stub.GetPod(messages.GetPodRequest(podUID="none"))
        except grpc.RpcError as exc:
            code = exc.code()
        listed = stub.ListPods(messages.ListPodsRequest())
        got = stub.GetPod(messages.GetPodRequest(podUID="web-uid"))
        watch = stub.WatchPods(messages.WatchPodsRequest())
        events = [next(watch) for _ in range(3)]
        change()
        events += [next(watch) for _ in range(2)]
        watch.cancel()
        return listed, got, code, events
