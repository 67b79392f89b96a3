"""The Pods API over its socket, with this project's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.grpc import GRPCError, Status, open_channel
from kubelet_trio.grpc._call import ClientStream
from kubelet_trio.server.pods_api.encode import encode_deleted, encode_pod
from kubelet_trio.server.pods_api.generated.v1alpha1 import (
    EventType,
    GetPodRequest,
    ListPodsRequest,
    WatchPodsEvent,
    WatchPodsRequest,
)
from kubelet_trio.server.pods_api.generated.v1alpha1.client import PodsStub
from kubelet_trio.server.pods_api.service import MAX_WATCHES
from kubelet_trio.server.pods_api.watches import QUEUE
from tests.server.pods_api.pods import Node, pod_named

WEB, DB = pod_named("web"), pod_named("db")


@asynccontextmanager
async def asking(node: Node, directory: Path) -> AsyncIterator[PodsStub]:
    async with node.served(directory) as socket, open_channel(str(socket)) as channel:
        yield PodsStub(channel)


def event(kind: EventType, pod: Pod | None = None) -> WatchPodsEvent:
    if pod is None:
        return WatchPodsEvent(type=kind)
    data = encode_deleted(pod) if kind is EventType.DELETED else encode_pod(pod)
    return WatchPodsEvent(type=kind, pod=data)


async def read_all(call: ClientStream[WatchPodsRequest, WatchPodsEvent]) -> None:
    while await call.recv_message() is not None:
        pass


async def test_pods_are_listed_by_uid_with_their_newest_status(short_path: Path) -> None:
    node = Node(WEB, DB)
    async with asking(node, short_path) as stub:
        assert (await stub.list_pods(ListPodsRequest())).pods == [encode_pod(DB), encode_pod(WEB)]
        running = pod_named("web", "Running")
        node.put(running)
        node.forget(DB)
        assert (await stub.list_pods(ListPodsRequest())).pods == [encode_pod(running)]


async def test_a_pod_is_got_by_its_uid(short_path: Path) -> None:
    async with asking(Node(WEB), short_path) as stub:
        assert (await stub.get_pod(GetPodRequest(pod_uid="web-uid"))).pod == encode_pod(WEB)
        with pytest.raises(GRPCError) as refused:
            await stub.get_pod(GetPodRequest(pod_uid="none"))
        assert refused.value.status is Status.NOT_FOUND
        assert refused.value.message == "pod with UID none not found"


async def test_a_watch_begins_with_all_pods_and_goes_on_with_changes(short_path: Path) -> None:
    node = Node(WEB, DB)
    async with asking(node, short_path) as stub:
        async with stub.watch_pods.open() as call:
            await call.send_message(WatchPodsRequest(), end=True)
            for expected in (
                event(EventType.ADDED, DB),
                event(EventType.ADDED, WEB),
                event(EventType.INITIAL_SYNC_COMPLETE),
            ):
                assert await call.recv_message() == expected
            running, late = pod_named("web", "Running"), pod_named("late")
            node.put(running)
            node.put(late)
            node.finish(running)
            for expected in (
                event(EventType.MODIFIED, running),
                event(EventType.ADDED, late),
                event(EventType.DELETED, running),
            ):
                assert await call.recv_message() == expected
        # A watch whose client has gone is closed.
        with trio.fail_after(60):
            while node.watches._open:
                await trio.lowlevel.checkpoint()


async def test_a_watch_of_an_empty_node_is_in_sync_at_once(short_path: Path) -> None:
    async with asking(Node(), short_path) as stub, stub.watch_pods.open() as call:
        await call.send_message(WatchPodsRequest(), end=True)
        assert await call.recv_message() == event(EventType.INITIAL_SYNC_COMPLETE)


@pytest.mark.parametrize("silence", [0, 60])
async def test_a_client_that_does_not_read_loses_its_watch_and_nothing_else(
    silence: float, short_path: Path, autojump_clock: MockClock
) -> None:
    node = Node()
    async with asking(node, short_path) as stub:
        async with stub.watch_pods.open() as call:
            await call.send_message(WatchPodsRequest(), end=True)
            assert await call.recv_message() == event(EventType.INITIAL_SYNC_COMPLETE)
            with capture_logs() as logged:
                for number in range(QUEUE * 4):
                    # More than the windows of the client hold, so that the server has to wait.
                    big = pod_named("web", f"{number}" + "x" * 100_000)
                    node.put(big)
                    await wait_all_tasks_blocked()
                assert node.dropped == 1
                await trio.sleep(silence)
                with pytest.raises(GRPCError) as lost:
                    await read_all(call)
            ended = [line for line in logged if line["event"] == "pods_api.watch_ended"]
            assert [line["reason"] for line in ended] == ["the client does not read fast enough"]
            if silence:
                # After 30 s the server stops in the middle of a message.
                assert lost.value.status is Status.INTERNAL
            else:
                assert lost.value.status is Status.RESOURCE_EXHAUSTED
                assert lost.value.message == "watch client channel closed"
        assert (await stub.list_pods(ListPodsRequest())).pods == [encode_pod(big)]


async def test_watches_are_limited_in_number(short_path: Path) -> None:
    node = Node()
    async with node.served(short_path) as socket, AsyncExitStack() as stack:
        stubs = []
        for _ in range(MAX_WATCHES // 32 + 1):  # 32 calls a connection
            channel = await stack.enter_async_context(open_channel(str(socket)))
            stubs.append(PodsStub(channel))
        for number in range(MAX_WATCHES):
            opened = stubs[number // 32].watch_pods.open()
            call = await stack.enter_async_context(opened)
            await call.send_message(WatchPodsRequest(), end=True)
            assert await call.recv_message() is not None
        with pytest.raises(GRPCError) as refused:
            await stubs[-1].watch_pods(WatchPodsRequest())
        assert refused.value.status is Status.RESOURCE_EXHAUSTED
        assert refused.value.message == f"more than {MAX_WATCHES} watches of pods are open"


async def test_only_lists_and_gets_are_counted_against_the_rate(
    short_path: Path, autojump_clock: MockClock
) -> None:
    async with asking(Node(WEB), short_path) as stub:
        for _ in range(10):
            await stub.list_pods(ListPodsRequest())
        with pytest.raises(GRPCError) as refused:
            await stub.get_pod(GetPodRequest(pod_uid="web-uid"))
        assert str(refused.value) == "RESOURCE_EXHAUSTED: rejected by rate limit"
        async with stub.watch_pods.open() as call:
            await call.send_message(WatchPodsRequest(), end=True)
            assert await call.recv_message() == event(EventType.ADDED, WEB)
