"""Who goes first, and what is said of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import EphemeralContainer, Pod, ResourceRequirements

from kubelet_trio.model import PodUid, spec
from kubelet_trio.pressure import (
    Amount,
    DiskUsage,
    Observation,
    Threshold,
    parse_thresholds,
)
from kubelet_trio.pressure.ranking import (
    ContainerUsage,
    PodUsage,
    disk_parts,
    eviction_verdict,
    rank_for_eviction,
    reclaimers,
)
from kubelet_trio.pressure.thresholds import binary_quantity
from tests.pressure.make import pod

MI = 1 << 20


def memory(amount: int) -> PodUsage:
    return PodUsage({"main": ContainerUsage(memory=amount * MI)})


def disk(rootfs: int = 0, logs: int = 0, volumes: int = 0, inodes: int = 0) -> PodUsage:
    main = ContainerUsage(rootfs=DiskUsage(rootfs * MI, inodes), logs=DiskUsage(logs * MI))
    return PodUsage({"main": main}, {"data": DiskUsage(volumes * MI)})


def ranked(
    entries: Sequence[tuple[tuple[PodUid, Pod], PodUsage | None]],
    resource: str,
    parts: tuple[str, ...] = ("rootfs", "logs", "volumes"),
) -> list[str]:
    pods = [entry for entry, _ in entries]
    random.Random(7).shuffle(pods)
    usages = {entry[0]: usage for entry, usage in entries if usage is not None}
    return [uid for uid, _ in rank_for_eviction(pods, usages, resource, parts)]


def requests(amount: int, resource: str = "memory") -> dict[str, str]:
    return {resource: f"{amount}Mi"}


def test_memory_those_above_their_request_by_priority_then_by_how_much() -> None:
    """The example of the documentation on node-pressure eviction, and of upstream's own test."""
    entries = [
        (pod("low-below", priority=1, requests=requests(900)), memory(200)),
        (pod("low-above", priority=1, requests=requests(100)), memory(900)),
        (pod("high-below", priority=10, requests=requests(900)), memory(200)),
        (pod("high-above", priority=10, requests=requests(100)), memory(900)),
    ]
    assert ranked(entries, "memory") == ["low-above", "high-above", "low-below", "high-below"]


def test_memory_best_effort_and_burstable_of_one_priority() -> None:
    entries = [
        (pod("best-effort-high"), memory(500)),
        (pod("best-effort-low"), memory(300)),
        (pod("burstable-high", requests=requests(100)), memory(800)),
        (pod("burstable-low", requests=requests(100)), memory(300)),
        (pod("guaranteed-high", requests=requests(1024), limits=requests(1024)), memory(800)),
        (pod("guaranteed-low", requests=requests(1024), limits=requests(1024)), memory(200)),
    ]
    assert ranked(entries, "memory") == [
        "burstable-high",
        "best-effort-high",
        "best-effort-low",
        "burstable-low",
        "guaranteed-high",
        "guaranteed-low",
    ]


def test_a_pod_that_nobody_knows_the_usage_of_goes_before_all_others() -> None:
    entries = [(pod("known"), memory(500)), (pod("unknown", priority=100), None)]
    assert ranked(entries, "memory") == ["unknown", "known"]


def test_disk_counts_what_is_on_the_file_system_that_runs_short() -> None:
    entries = [
        (pod("writes", requests=requests(10, "ephemeral-storage")), disk(rootfs=100)),
        (pod("logs", requests=requests(10, "ephemeral-storage")), disk(logs=60)),
        (pod("stores", requests=requests(90, "ephemeral-storage")), disk(volumes=80)),
    ]
    assert ranked(entries, "ephemeral-storage") == ["writes", "logs", "stores"]
    assert ranked(entries, "ephemeral-storage", ("logs", "volumes"))[0] == "logs"
    assert ranked(entries, "ephemeral-storage", ("rootfs",))[0] == "writes"


def test_a_runtime_class_overhead_is_no_request_of_the_pod() -> None:
    """GetResourceRequestQuantity adds it to a request, and makes none of it."""
    hopes, asks = pod("hopes"), pod("asks", requests=requests(100))
    for _, made in (hopes, asks):
        assert made.spec is not None
        made.spec.overhead = {"memory": "200Mi"}
    assert ranked([(asks, memory(250)), (hopes, memory(150))], "memory") == ["hopes", "asks"]
    assert ranked([(asks, memory(310)), (hopes, memory(5))], "memory") == ["asks", "hopes"]


def test_what_a_pod_keeps_in_memory_volumes_is_its_own() -> None:
    keeps = PodUsage({"main": ContainerUsage(memory=10 * MI)}, pod_memory=500 * MI)
    entries = [(pod("light"), memory(100)), (pod("keeps"), keeps)]
    assert ranked(entries, "memory") == ["keeps", "light"]


def test_inodes_those_that_have_any_and_most() -> None:
    entries = [
        (pod("few"), disk(inodes=5)),
        (pod("many"), disk(inodes=500)),
        (pod("none", priority=-1), disk()),
    ]
    assert ranked(entries, "inodes") == ["many", "few", "none"]


def test_processes_go_by_priority_first() -> None:
    entries = [
        (pod("high-many", priority=10), PodUsage(processes=900)),
        (pod("low-few", priority=1), PodUsage(processes=3)),
        (pod("low-many", priority=1), PodUsage(processes=30)),
    ]
    assert ranked(entries, "pids") == ["low-many", "low-few", "high-many"]


@pytest.mark.parametrize(
    ("dedicated", "split", "node", "image", "container"),
    [
        (False, False, "containers images", "containers images", "containers images"),
        (True, False, "", "containers images", "containers images"),
        (True, True, "containers", "images", "containers"),
    ],
)
def test_what_gives_room_back(
    dedicated: bool, split: bool, node: str, image: str, container: str
) -> None:
    for name, expected in (("nodefs", node), ("imagefs", image), ("containerfs", container)):
        for suffix in ("available", "inodesFree"):
            found = reclaimers(f"{name}.{suffix}", dedicated=dedicated, split=split)
            assert " ".join(found) == expected
    assert reclaimers("memory.available", dedicated=dedicated, split=split) == ()


def test_what_of_a_pod_is_on_which_file_system() -> None:
    every = ("rootfs", "logs", "volumes")
    assert disk_parts("nodefs.available", dedicated=False, split=False) == every
    assert disk_parts("nodefs.available", dedicated=True, split=False) == ("logs", "volumes")
    assert disk_parts("imagefs.inodesFree", dedicated=True, split=False) == ("rootfs",)
    assert disk_parts("containerfs.available", dedicated=True, split=False) == ("rootfs",)
    assert disk_parts("nodefs.available", dedicated=True, split=True) == every
    assert disk_parts("imagefs.available", dedicated=True, split=True) == ()


def test_the_message_is_upstreams() -> None:
    _, evicted = pod("a", requests=requests(10))
    threshold = Threshold("memory.available", Amount(100 * MI))
    verdict = eviction_verdict(
        evicted,
        memory(150),
        "memory",
        [threshold],
        {"memory.available": Observation(50 * MI + 1, 1000 * MI)},
    )
    assert verdict.message == (
        "The node was low on resource: memory. "
        "Threshold quantity: 100Mi, available: 52428801. "
        "Container main was using 150Mi, request is 10Mi, has larger consumption of memory. "
    )
    assert verdict.annotations == {
        "offending_containers": "main",
        "offending_containers_usage": "150Mi",
        "starved_resource": "memory",
    }


@pytest.mark.parametrize(
    ("signal", "resource", "threshold", "available", "shown"),
    [
        ("memory.available", "memory", "500M", 1 << 20, "500M, available: 1Mi"),
        ("memory.available", "memory", "0.5Gi", 1000, "512Mi, available: 1k"),
        ("nodefs.available", "ephemeral-storage", "10%", 3 << 20, "104857601, available: 3Mi"),
        ("nodefs.inodesFree", "inodes", "5%", 2048, "50Mi, available: 2048"),
        ("imagefs.inodesFree", "inodes", "200k", 123000, "200k, available: 123k"),
        ("pid.available", "pids", "4096", 3000, "4096, available: 3k"),
    ],
)
def test_amounts_are_written_as_configured_and_counts_are_decimal(
    signal: str, resource: str, threshold: str, available: int, shown: str
) -> None:
    """makeSignalObservations: bytes are binary, inodes and process ids decimal."""
    _, evicted = pod("a")
    found = {signal: Observation(available, 1000 * MI)}
    verdict = eviction_verdict(
        evicted, None, resource, parse_thresholds({signal: threshold}), found
    )
    assert verdict.message == (
        f"The node was low on resource: {resource}. Threshold quantity: {shown}. "
    )


def test_a_pod_with_resources_of_its_own_is_named_with_its_request() -> None:
    """evictionMessage, with the gate PodLevelResources; only for memory, and whatever it uses."""
    _, evicted = pod("a", requests=requests(10))
    own = ResourceRequirements(requests={"memory": "200Mi", "ephemeral-storage": "1Gi"})
    body = msgspec.structs.replace(spec(evicted), resources=own)
    evicted = msgspec.structs.replace(evicted, spec=body)
    usage = replace(memory(150), pod_memory=160 * MI)
    verdict = eviction_verdict(evicted, usage, "memory", [], {})
    assert verdict.message == (
        "The node was low on resource: memory. "
        "Pod a was using 160Mi, request is 200Mi, has larger consumption of memory. "
        "Container main was using 150Mi, request is 10Mi, has larger consumption of memory. "
    )
    assert verdict.annotations == {
        "offending_pod": "a",
        "offending_pod_usage": "160Mi",
        "offending_containers": "main",
        "offending_containers_usage": "150Mi",
        "starved_resource": "memory",
    }
    storage = eviction_verdict(evicted, usage, "ephemeral-storage", [], {})
    assert storage.message == "The node was low on resource: ephemeral-storage. "


def test_ephemeral_containers_are_not_blamed() -> None:
    """They cannot request anything."""
    _, evicted = pod("a", requests=requests(10))
    debugger = EphemeralContainer(name="debugger")
    body = msgspec.structs.replace(spec(evicted), ephemeralContainers=[debugger])
    evicted = msgspec.structs.replace(evicted, spec=body)
    usage = PodUsage({"debugger": ContainerUsage(memory=300 * MI)})
    verdict = eviction_verdict(evicted, usage, "memory", [], {})
    assert verdict.message == "The node was low on resource: memory. "


def test_a_pod_below_its_request_is_not_blamed() -> None:
    _, evicted = pod("a", requests=requests(200))
    verdict = eviction_verdict(evicted, memory(150), "memory", [], {})
    assert verdict.message == "The node was low on resource: memory. "


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1, "1"), (1000, "1k"), (1024, "1Ki"), (1536, "1536"), (3 << 30, "3Gi")],
)
def test_bytes_are_written_as_the_api_does(count: int, text: str) -> None:
    assert binary_quantity(count) == text


entries = st.lists(
    st.tuples(st.integers(-5, 5), st.integers(0, 50), st.none() | st.integers(0, 100)), max_size=8
)


@given(entries, st.sampled_from(("memory", "ephemeral-storage", "inodes", "pids")))
def test_an_order_of_all_pods_that_spares_those_within_their_requests(
    drawn: list[tuple[int, int, int | None]], resource: str
) -> None:
    pods, usages = [], {}
    for number, (priority, requested, used) in enumerate(drawn):
        uid, made = pod(str(number), priority=priority, requests=requests(requested))
        pods.append((uid, made))
        if used is not None:
            usages[uid] = memory(used)
    found = [uid for uid, _ in rank_for_eviction(pods, usages, resource)]
    assert sorted(found) == sorted(uid for uid, _ in pods)
    if resource == "memory":
        within = [u for u in found if u in usages and drawn[int(u)][2] <= drawn[int(u)][1]]  # type: ignore[operator]
        assert found[len(found) - len(within) :] == within
