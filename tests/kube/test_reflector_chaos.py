"""Whatever happens to server and connection, the reflector ends with what the server has."""

from __future__ import annotations

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import ConfigMap
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.kube import KubeError, Reflector, to_json
from kubelet_trio.testing import FakeKube, KubeFaultKind

_EVENTS = (
    "add", "change", "remove", "anew", "cut", "compact", "down", "up", "hang", "lost", "busy",
    "sleep", "long sleep",
)  # fmt: skip


async def happen(kube: FakeKube, event: str, name: str, number: int) -> None:
    there = kube.find(ConfigMap, name) is not None
    data = {"n": str(number)}
    if event == "add" and not there:
        kube.add(ConfigMap(metadata=ObjectMeta(name=name), data=data))
    elif event == "change" and there:
        kube.change(ConfigMap, name, {"data": data})
    elif event in ("remove", "anew") and there:
        kube.remove(ConfigMap, name)
        if event == "anew":
            kube.add(ConfigMap(metadata=ObjectMeta(name=name), data=data))
    elif event == "cut":
        kube.cut()
    elif event == "compact":
        kube.compact()
    elif event == "down":
        kube.go_down()
    elif event == "up":
        kube.come_back()
    elif event == "hang":
        kube.hang()
    elif event == "lost":
        kube.faults.add(KubeFaultKind.LOST_REPLY)
    elif event == "busy":
        busy = KubeError(429, "TooManyRequests", "busy", retry_after=3.0)
        kube.faults.add(KubeFaultKind.ERROR, error=busy)
    elif event == "sleep":
        await trio.sleep(0.5)
    elif event == "long sleep":
        await trio.sleep(400)


async def scenario(events: list[tuple[str, str]], *, streaming: bool) -> None:
    kube = FakeKube()
    kube.streaming_lists = streaming
    reflector = Reflector(kube, ConfigMap, namespace="default")
    seen: dict[tuple[str, str], object] = {}

    async def consume() -> None:
        """Follow the deliveries by their changes alone, as a consumer may."""
        while True:
            delivery = await reflector.wait_delivery()
            for key in delivery.changed:
                seen.pop(key, None)
                if key in delivery.objects:
                    seen[key] = delivery.objects[key]

    async with trio.open_nursery() as nursery:
        await nursery.start(reflector.run)
        nursery.start_soon(consume)
        for number, (event, name) in enumerate(events):
            await happen(kube, event, name, number)
        kube.faults.clear()
        kube.come_back()
        await trio.sleep(1000)
        expected = {("default", str(to_json(obj)["metadata"]["name"])): obj
                    for obj in kube.all(ConfigMap, "default")}  # fmt: skip
        assert dict(reflector.objects) == expected
        assert seen == expected
        assert reflector.connected.value
        nursery.cancel_scope.cancel()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(_EVENTS), st.sampled_from("abc")), max_size=30),
    st.booleans(),
)
def test_it_ends_with_what_the_server_has(events: list[tuple[str, str]], streaming: bool) -> None:
    async def run() -> None:
        await scenario(events, streaming=streaming)

    trio.run(run, clock=MockClock(autojump_threshold=0))
