"""Pods of an embedded kubelet that change size while they run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod, PodCondition, PodStatus, ResourceRequirements
from trio.testing import MockClock

from kubelet_trio import (
    Kubelet,
    KubeletConfig,
    ManifestError,
    PodEndedError,
    PodResizeError,
    RunningPod,
    open_kubelet,
)
from kubelet_trio.embed.intake import read_pod
from kubelet_trio.embed.resize import (
    is_replaced,
    is_resized,
    resized_pod,
    why_infeasible,
    why_not_resized,
    with_spec_of,
)
from kubelet_trio.model import NANO, metadata, pod_uid, spec
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.embedded import fake_world
from tests.embed.programs import Machine, pod
from tests.embed.test_forms import client_model

BURSTABLE = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
GUARANTEED = {"limits": {"cpu": "1", "memory": "1Gi"}}


def sized(main: Any = BURSTABLE, name: str = "web", **fields: Any) -> dict[str, object]:
    """Return a pod with an init container `init`, and these resources of `main`."""
    given = pod(name, **fields)
    body: Any = given["spec"]
    body["containers"][0]["resources"] = main
    body["initContainers"] = [
        {"name": "init", "image": "exit-0", "imagePullPolicy": "IfNotPresent"}
    ]
    return given


def read(given: Any) -> Pod:
    return read_pod(given, node_name="node", instance="i")[0]


def of_main(pod: Pod) -> dict[str, Any]:
    resources: dict[str, Any] = msgspec.to_builtins(spec(pod).containers[0].resources)
    return {which: amounts for which, amounts in resources.items() if amounts}


@pytest.mark.parametrize(
    "given",
    [
        {"requests": {"cpu": "200m"}, "limits": {"memory": "1Gi"}},
        {"requests": {"cpu": 0.2}, "limits": {"memory": "1Gi"}},
        ResourceRequirements(requests={"cpu": "200m"}, limits={"memory": "1Gi"}),
        client_model(requests={"cpu": "200m"}, limits={"memory": "1Gi"}, claims=None),
    ],
    ids=["mapping", "numbers", "model", "client model"],
)
def test_amounts_are_merged_into_the_pod_as_its_next_generation(given: Any) -> None:
    before = read(sized())
    after = resized_pod(before, {"main": given})
    assert of_main(after)["requests"] == {"cpu": "200m", "memory": "64Mi"}
    assert after == resized_pod(
        before, {"main": {"requests": {"cpu": "0.2"}, "limits": {"memory": "1024Mi"}}}
    )
    assert pod_uid(after) == pod_uid(before)
    assert [metadata(each).generation for each in (before, after)] == [None, 2]
    assert metadata(resized_pod(after, {"main": {"requests": {"cpu": "1"}}})).generation == 3
    assert resized_pod(before, {"main": {"requests": {"cpu": "0.1"}}}) is before


def test_nothing_else_of_a_pod_changes() -> None:
    rich: dict[str, Any] = {
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "p", "hostPath": {"path": "/"}}],
        "tolerations": [{"operator": "Exists"}],
        "hostNetwork": True,
    }
    before = read(sized(**rich))
    after = resized_pod(before, {"main": {"requests": {"cpu": "200m"}}}, {"requests": {"cpu": "2"}})
    main = spec(after).containers[0]
    undone = msgspec.structs.replace(main, resources=spec(before).containers[0].resources)
    body = msgspec.structs.replace(
        spec(after), containers=[undone], resources=spec(before).resources
    )
    assert body == spec(before)
    assert of_main(after)["requests"]["cpu"] == "200m"
    assert msgspec.to_builtins(spec(after).resources)["requests"]["cpu"] == "2"


def test_an_amount_may_be_added() -> None:
    after = resized_pod(read(sized()), {"main": {"limits": {"cpu": "1"}}})
    assert of_main(after)["limits"] == {"cpu": "1", "memory": "128Mi"}


@pytest.mark.parametrize(
    ("main", "containers", "own", "message"),
    [
        (BURSTABLE, {"x": {}}, None, "spec.containers[x]: Not found: the pod has: init, main"),
        (
            BURSTABLE,
            {"main": {"limits": {"memory": "1Gb"}}},
            None,
            "spec.containers[main].resources.limits",
        ),
        (
            BURSTABLE,
            {"main": {"requests": {"memory": "1Gi"}}},
            None,
            'spec.containers[main].resources.requests: Invalid value: "1Gi": '
            "must be less than or equal to memory limit of 128Mi",
        ),
        (
            BURSTABLE,
            {"init": {"limit": {"cpu": "1"}}},
            None,
            "spec.initContainers[init].resources.limit: unknown field",
        ),
        (
            BURSTABLE,
            {"main": {"requests": "1"}},
            None,
            "spec.containers[main].resources.requests: ",
        ),
        (
            BURSTABLE,
            {"main": {"requests": {"ephemeral-storage": "1Gi"}}},
            None,
            "spec.containers[main].resources.requests[ephemeral-storage]: Forbidden: "
            "only cpu and memory can be resized",
        ),
        (
            BURSTABLE,
            {"main": {"limits": {"memory": None}}},
            None,
            "spec.containers[main].resources.limits[memory]: Forbidden: "
            "a resize cannot remove an amount",
        ),
        (
            BURSTABLE,
            {},
            {"limits": {"cpu": "1"}},
            "spec.resources: Forbidden: the pod has no resources of its own",
        ),
    ],
)
def test_a_change_that_is_no_resize_is_refused_with_container_and_field(
    main: Any, containers: Any, own: Any, message: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        resized_pod(read(sized(main)), containers, own)
    assert message in str(caught.value)


def test_the_qos_class_stays() -> None:
    given = sized(GUARANTEED)
    del given["spec"]["initContainers"]  # type: ignore[attr-defined]
    with pytest.raises(ManifestError, match="QoS class would change from Guaranteed to Burstable"):
        resized_pod(read(given), {"main": {"limits": {"cpu": "2"}}})
    both = {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
    assert of_main(resized_pod(read(given), {"main": both}))["limits"]["cpu"] == "2"


def test_a_text_is_no_resources() -> None:
    with pytest.raises(TypeError, match="str is no resources: expected a mapping such as"):
        resized_pod(read(sized()), {"main": "cpu=1"})


BEFORE = read(sized())
WANTED = resized_pod(BEFORE, {"main": {"requests": {"cpu": "200m"}}})
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"


def shown(pod: Pod, of: Pod, *conditions: tuple[str, str, Pod]) -> Pod:
    """Return a pod as the kubelet shows it: its resources, the newest spec, conditions."""
    generation = metadata(of).generation
    found = [
        PodCondition(
            type=kind,
            status="True",
            reason=reason,
            message=f"why {reason}",
            observedGeneration=metadata(since).generation,
        )
        for kind, reason, since in conditions
    ]
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(metadata(pod), generation=generation),
        status=PodStatus(phase="Running", conditions=found, observedGeneration=generation),
    )


LATER = resized_pod(WANTED, {"main": {"requests": {"cpu": "300m"}}})


@pytest.mark.parametrize(
    ("pod", "resized", "infeasible", "replaced", "why"),
    [
        (shown(BEFORE, BEFORE), False, "", False, ""),
        # Of an earlier resize: this one has not been seen yet.
        (
            shown(BEFORE, BEFORE, (PENDING, "Infeasible", BEFORE)),
            False,
            "",
            False,
            "Infeasible: why Infeasible",
        ),
        (
            shown(BEFORE, WANTED, (PENDING, "Infeasible", BEFORE)),
            False,
            "",
            False,
            "Infeasible: why Infeasible",
        ),
        (shown(BEFORE, WANTED), False, "", False, ""),
        (
            shown(BEFORE, WANTED, (PENDING, "Deferred", WANTED)),
            False,
            "",
            False,
            "Deferred: why Deferred",
        ),
        (
            shown(BEFORE, WANTED, (PENDING, "Infeasible", WANTED)),
            False,
            "why Infeasible",
            False,
            "Infeasible: why Infeasible",
        ),
        (
            shown(WANTED, WANTED, (IN_PROGRESS, "Error", WANTED)),
            False,
            "",
            False,
            "Error: why Error",
        ),
        (shown(WANTED, WANTED), True, "", False, ""),
        (
            shown(WANTED, LATER, (PENDING, "Deferred", LATER)),
            False,
            "",
            True,
            "Deferred: why Deferred",
        ),
    ],
)
def test_how_far_a_resize_has_come(
    pod: Pod, resized: bool, infeasible: str, replaced: bool, why: str
) -> None:
    assert is_resized(pod, WANTED) == resized
    assert why_infeasible(pod, WANTED) == infeasible
    assert is_replaced(pod, WANTED) == replaced
    assert why_not_resized(pod) == why


def test_the_same_amounts_are_the_same_generation() -> None:
    other = resized_pod(BEFORE, {"main": {"requests": {"cpu": "1"}}})
    back = with_spec_of(other, BEFORE)
    assert [metadata(p).generation for p in (other, back)] == [2, 3]
    assert with_spec_of(back, BEFORE) is back


async def test_an_applied_pod_whose_amounts_changed_is_the_same_pod(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    (old,) = await kubelet.apply(sized())
    await old.wait_ready()
    before = [c.id for c in fake_runtime.alive()]
    more = {"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    (same,) = await kubelet.apply(sized(more))
    assert same is old
    await kubelet.pods.wait_value(lambda pods: of_main(pods[old.uid]) == more)
    assert [c.id for c in fake_runtime.alive()] == before
    added = {**more, "limits": {"memory": "256Mi", "cpu": "1"}}
    (new,) = await kubelet.apply(sized(added))
    await new.wait_ready()
    assert old.is_gone
    await new.delete()


async def test_a_kept_pod_of_an_earlier_version_is_not_replaced_until_it_changes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine(tmp_path)
    async with machine.opened() as kubelet:
        instance = kubelet.instance
    (loaded, _) = read_pod(sized(), node_name="node", instance=instance, is_known=lambda _: True)
    kept = tmp_path / "a" / "kept.json"
    kept.write_bytes(msgspec.json.encode([{"pod": loaded}]))
    assert pod_uid(loaded) != pod_uid(read_pod(sized(), node_name="node", instance=instance)[0])
    async with machine.opened() as kubelet:
        (running,) = await kubelet.apply(sized())
        assert running.uid == pod_uid(loaded)
        await running.wait_ready()
        (other,) = await kubelet.apply(sized({**BURSTABLE, "limits": {"memory": "1Gi"}}))
        assert other.uid != running.uid
        await running.wait_gone()
        assert json.loads(kept.read_bytes())["pods"][0]["pod"]["metadata"]["uid"] == other.uid
        await other.delete()


@asynccontextmanager
async def small_node(runtime: FakeRuntime, base: Path) -> AsyncIterator[Kubelet]:
    """A kubelet on a node with two CPUs, and a time limit for what never ends."""
    config = KubeletConfig(root_dir=base, runtime=runtime, node_name="node")
    world = fake_world(runtime, config)
    room = {"cpu": 2 * NANO, "memory": 2**30 * NANO, "pods": 10 * NANO}
    node = replace(world.node, allocatable=room)
    with trio.fail_after(3600):
        async with open_kubelet(config, world=replace(world, node=node)) as kubelet:
            yield kubelet


async def test_a_resize_that_never_fits_is_an_error_and_withdrawn(
    autojump_clock: MockClock, fake_runtime: FakeRuntime, tmp_path: Path
) -> None:
    async with small_node(fake_runtime, tmp_path) as kubelet, kubelet.run_pod(sized()) as running:
        await running.wait_ready()
        with pytest.raises(PodResizeError, match=r"^pod default/web cannot be resized: .*cpu"):
            await running.resize({"main": {"requests": {"cpu": "3"}}})
        await running.wait_resized()
        assert running.why_not_resized == ""
        assert of_main(running.pod) == of_main(read(sized()))


async def test_a_later_resize_replaces_one_that_is_deferred(
    autojump_clock: MockClock, fake_runtime: FakeRuntime, tmp_path: Path
) -> None:
    half = {**BURSTABLE, "requests": {"cpu": "1", "memory": "64Mi"}}
    failures: list[str] = []

    async def grow(running: RunningPod) -> None:
        try:
            await running.resize({"main": {"requests": {"cpu": "1500m"}}})
        except PodResizeError as exc:
            failures.append(str(exc))

    async with (
        small_node(fake_runtime, tmp_path) as kubelet,
        kubelet.run_pod(sized(half, "a")) as running,
        kubelet.run_pod(sized(half, "b")) as other,
    ):
        await running.wait_ready()
        await other.wait_ready()
        with trio.move_on_after(600) as limit:
            await running.resize({"main": {"requests": {"cpu": "1500m"}}})
        assert limit.cancelled_caught
        assert running.why_not_resized.startswith("Deferred: ")
        assert of_main(running.pod)["requests"]["cpu"] == "1"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(grow, running)
            await trio.sleep(60)
            await running.resize({"main": {"requests": {"cpu": "1"}}})
        assert failures == ["pod default/a: a later resize has replaced this one"]


async def test_a_pod_is_resized_while_it_runs(
    kubelet: Kubelet, autojump_clock: MockClock, fake_runtime: FakeRuntime
) -> None:
    async with kubelet.run_pod(sized()) as running:
        await running.wait_ready()
        (before,) = fake_runtime.alive()
        with trio.fail_after(600):
            await running.resize(
                {"main": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}}
            )
        (after,) = fake_runtime.alive()
        assert after.id == before.id
        assert (after.resources.cpu_shares, after.resources.memory_limit_in_bytes) == (512, 2**30)
        assert of_main(running.pod)["requests"] == {"cpu": "500m", "memory": "64Mi"}
        assert running.why_not_resized == ""


async def test_a_deferred_resize_waits_for_room(
    autojump_clock: MockClock, fake_runtime: FakeRuntime, tmp_path: Path
) -> None:
    half = {**BURSTABLE, "requests": {"cpu": "1", "memory": "64Mi"}}
    async with small_node(fake_runtime, tmp_path) as kubelet:
        async with kubelet.run_pod(sized(half, "a")) as running:
            async with kubelet.run_pod(sized(half, "b")) as other:
                await running.wait_ready()
                await other.wait_ready()
                with trio.move_on_after(60):
                    await running.resize({"main": {"requests": {"cpu": "1500m"}}})
                assert running.why_not_resized.startswith("Deferred: ")
            await running.wait_resized()
            (container,) = fake_runtime.alive()
            assert container.resources.cpu_shares == 1536


async def test_a_pod_that_is_gone_cannot_be_resized(
    kubelet: Kubelet, autojump_clock: MockClock
) -> None:
    async with kubelet.run_pod(sized()) as running:
        with pytest.raises(ManifestError, match=r"spec\.containers\[other\]: Not found"):
            await running.resize({"other": {"limits": {"cpu": "1"}}})
    with pytest.raises(PodEndedError, match="was removed"):
        await running.resize({"main": {"requests": {"cpu": "1"}}})


async def test_a_pod_of_a_manifest_is_resized_by_its_manifest(
    tmp_path: Path, fake_runtime: FakeRuntime
) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "pod.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **sized()}))
    config = KubeletConfig(
        root_dir=tmp_path / "a", runtime=fake_runtime, node_name="node", manifests=manifests
    )
    # Real time: the directory is watched by inotify, which no virtual clock sees.
    with trio.fail_after(10):
        async with open_kubelet(config, world=fake_world(fake_runtime, config)) as kubelet:
            await kubelet.pods.wait_value(lambda pods: len(pods) == 1)
            with pytest.raises(PodResizeError, match="edit its manifest"):
                await kubelet.get("web").resize({"main": {"requests": {"cpu": "1"}}})
            await kubelet.get("web").wait_resized()
