from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import (
    LocalVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    Pod,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.agent.pages import stats_pages
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.model import pod_uid
from kubelet_trio.objects import ApiObject
from kubelet_trio.server import HttpError, Request, Response
from kubelet_trio.stats import Filesystem
from tests.agent.node import Node, make_pod, ready


def is_ready(pod: Pod | None) -> bool:
    return pod is not None and pod.status is not None and ready(pod.status)


def has_restarted(pod: Pod) -> bool:
    assert pod.status is not None
    return ready(pod.status) and (pod.status.containerStatuses or [])[0].restartCount == 1


async def test_the_summary_tells_of_what_runs(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, pod = Node(tmp_path), make_pod()
    async with node.running(pod) as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        provider = await agent.stats.provider()
        answer = msgspec.json.decode(await provider.summary())
    (found,) = answer["pods"]
    assert found["podRef"] == {"name": "web-node", "namespace": "default", "uid": pod_uid(pod)}
    assert [c["name"] for c in found["containers"]] == ["web"]
    assert found["containers"][0]["logs"]["inodesUsed"] == 1  # the log, without its directory
    assert answer["node"]["nodeName"] == "node"


async def test_a_pod_that_has_not_changed_is_the_same_subject(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, pod = Node(tmp_path), make_pod()
    async with node.running(pod) as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        (before,) = agent.stats.subjects.now()
        assert agent.stats.subjects.now()[0] is before
        (container,) = node.runtime.alive()
        node.runtime.kill(container.id)
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: has_restarted(pods[pod_uid(pod)]))
        (after,) = agent.stats.subjects.now()
        assert [c.id for c in after.containers] == [c.id for c in node.runtime.alive()]
        assert after.containers != before.containers


async def test_logs_are_rotated_while_pods_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, pod = Node(tmp_path), make_pod()
    async with node.running(pod) as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        (container,) = node.runtime.alive()
        log = Path(container.log_path)
        log.write_bytes(b"x" * (10 << 20))
        await trio.sleep(25)
        assert log.stat().st_size == 0
        assert len(list(log.parent.iterdir())) == 2


@pytest.mark.parametrize(
    ("request_", "is_short"),
    [
        (Request("GET", "/stats/summary"), False),
        (Request("GET", "/stats/summary", (("only_cpu_and_memory", "true"),)), True),
        (Request("GET", "/stats/summary", (("only_cpu_and_memory", "1"),)), False),
        (
            Request(
                "POST",
                "/stats/summary",
                headers={"content-type": "application/x-www-form-urlencoded"},
                body=b"only_cpu_and_memory=true",
            ),
            True,
        ),
    ],
)
async def test_the_page_of_the_summary(
    tmp_path: Path, autojump_clock: MockClock, request_: Request, is_short: bool
) -> None:
    async with Node(tmp_path).running() as agent:
        pages = stats_pages(agent.stats, agent.metrics)
        response = await pages["/stats/summary"](request_)
    assert response.content_type == "application/json"
    assert ("fs" not in msgspec.json.decode(response.body)["node"]) is is_short


async def test_a_form_that_is_none_is_no_summary(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with Node(tmp_path).running() as agent:
        page = stats_pages(agent.stats, agent.metrics)["/stats/summary"]
        odd = {"content-type": "invalid/content/type"}
        with pytest.raises(HttpError) as caught:
            await page(Request("POST", "/stats/summary", headers=odd))
        assert caught.value.status == 500
        assert str(caught.value).startswith("Internal Error: parse form failed: mime: ")
        assert (await page(Request("GET", "/stats/summary", headers=odd))).status == 200
        json = {"content-type": "application/json; charset=utf-8"}
        assert (await page(Request("POST", "/stats/summary", headers=json))).status == 200


async def whole(response: Response) -> bytes:
    body = bytearray(response.body)

    async def send(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        body.extend(data)

    if response.stream is not None:
        await response.stream(send)
    return bytes(body)


async def test_every_page_answers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with Node(tmp_path).running() as agent:
        for path, page in stats_pages(agent.stats, agent.metrics).items():
            response = await page(Request("GET", path))
            assert response.status == 200
            # Nothing has been probed, and no health been asked for.
            assert await whole(response) or path in ("/metrics/probes", "/metrics/slis")


async def test_a_scraper_that_does_not_read_is_given_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def stuck(_data: bytes) -> None:
        await trio.sleep_forever()

    async with Node(tmp_path).running() as agent:
        page = stats_pages(agent.stats, agent.metrics)["/metrics/cadvisor"]
        response = await page(Request("GET", "/metrics/cadvisor"))
        assert response.stream is not None
        began = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await response.stream(stuck)
        assert trio.current_time() - began == 30


async def test_a_claims_use_is_told_though_its_volume_has_another_name_on_disk(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    (tmp_path / "data").mkdir()
    node = Node(tmp_path)
    pod = make_pod(
        containers="- {name: web, image: web, volumeMounts: [{name: store, mountPath: /store}]}",
        spec=["volumes: [{name: store, persistentVolumeClaim: {claimName: web-data}}]"],
    )
    objects: list[ApiObject] = [
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="web-data", namespace="default"),
            spec=PersistentVolumeClaimSpec(volumeName="pv-7"),
        ),
        PersistentVolume(
            metadata=ObjectMeta(name="pv-7"),
            spec=PersistentVolumeSpec(local=LocalVolumeSource(str(tmp_path / "data"))),
        ),
    ]
    async with node.running(pod, objects=objects) as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        claimed = await agent.stats.claimed_volumes()
        listed = msgspec.json.decode(await agent.volume_page.page())["items"]
    assert [(namespace, claim) for namespace, claim, _ in claimed] == [("default", "web-data")]
    (row,) = listed
    assert row["use"].pop("capacity_bytes") > 0
    assert row == {
        "state": "Mounted",
        "kind": "local",
        "path": f"{tmp_path}/root/pods/{pod_uid(pod)}/volumes/kubernetes.io~local-volume/pv-7",
        "namespace": "default",
        "pod": "web-node",
        "uid": pod_uid(pod),
        "volume": "store",
        "claim": "web-data",
        "persistent_volume": "pv-7",
        "fs_type": "ext4",
        "use": row["use"],
    }


@pytest.mark.parametrize("gate", [True, False])
async def test_an_abnormal_volume_is_told_if_the_gate_is_on(
    tmp_path: Path, autojump_clock: MockClock, gate: bool
) -> None:
    class Drivers:
        measuring = frozenset({"d"})

        async def volume_stats(self, driver: str, handle: str, path: str) -> Filesystem:
            await trio.lowlevel.checkpoint()
            return Filesystem(0.0, capacity=10, abnormal=True, message="the disk is read-only")

    node, pod = Node(tmp_path), make_pod(spec=["volumes: [{name: data, emptyDir: {}}]"])
    async with node.running(pod, volume_health=gate) as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        directory = tmp_path / f"root/pods/{pod_uid(pod)}/volumes/kubernetes.io~csi/data"
        (directory / "mount").mkdir(parents=True)
        (directory / "vol_data.json").write_text('{"driverName":"d","volumeHandle":"h"}')
        parts = agent.parts
        stats = AgentStats(
            agent.settings,
            agent.seams,
            agent.runtime,
            parts.runtime.pleg,
            parts.reports.statuses,
            parts.volume_names,
            agent.events_recorder,
            Drivers,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(stats.run)
            summary = msgspec.json.decode(await stats.summary())
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        told = [(e.reason, e.message) for e in agent.events.events(0, kind="Pod")]
    (volume,) = summary["pods"][0]["volume"]
    assert volume["capacityBytes"] == 10
    assert volume.get("volumeHealthStats") == ({"abnormal": True} if gate else None)
    event = ("VolumeConditionAbnormal", "Volume data: the disk is read-only")
    assert (event in told) is gate
