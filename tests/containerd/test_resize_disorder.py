"""Resizes while the agent ends, the runtime is away, containers end, and pods ask for more."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest

from tests.containerd.resizing import (
    GROWN,
    GUARANTEED,
    IN_PROGRESS,
    PENDING,
    SHRUNK,
    SIX,
    SIX_MIXED,
    has_error,
    in_use,
    inside,
    is_resized,
    node_cpu,
    patch_of,
    pod_of,
    problems_of,
    recorded,
    res,
    resize_conditions,
    told,
    wanted_of,
)
from tests.harness import (
    Containerd,
    CriClient,
    container_status,
    eventually,
    is_ready,
    live_containers,
)
from tests.harness.api_node import ApiNode
from tests.harness.cgroups import milli


@pytest.mark.parametrize("steps", [0, 1, 3, 5, 7])
def test_an_agent_that_dies_in_the_middle_is_continued_by_the_next(
    node: ApiNode, cri: CriClient, steps: int
) -> None:
    name = f"dies-{steps}"
    with node.running(pod_of(name, *SIX)):
        with recorded(cri, name):
            wanted = wanted_of(*SIX_MIXED)
            all_of_them = len(inside(cri, name).differences(wanted))
            now = inside(cri, name)
            node.resize(name, patch_of(*SIX_MIXED))
            eventually(
                lambda: len(now.differences(wanted)) <= max(all_of_them - steps, 0),
                what=f"{steps} of {all_of_them} cgroups have their limits",
                every=0.001,
            )
            node.kill()
            node.start()
            done = node.wait(name, is_resized, what="resized")
            assert inside(cri, name).differences(wanted) == {}
            assert problems_of(done) == []
        assert [s["restartCount"] for s in done["status"]["containerStatuses"]] == [0] * 6


def test_a_resize_waits_for_a_runtime_that_is_away(
    node: ApiNode, cri: CriClient, containerd: Containerd
) -> None:
    with node.running(pod_of("away", *GUARANTEED)):
        now = inside(cri, "away")
        containerd.stop()
        try:
            node.resize("away", patch_of(*GROWN))
            node.wait("away", lambda p: IN_PROGRESS in resize_conditions(p), what="in progress")
            assert set(now.differences(wanted_of(*GUARANTEED))) <= {""}
        finally:
            containerd.start()
        done = node.wait("away", is_resized, within=120, what="resized")
        assert now.differences(wanted_of(*GROWN)) == {}
        assert problems_of(done) == []


def test_a_refusal_outlives_the_agent(node: ApiNode, cri: CriClient) -> None:
    in_use("refused", node)
    generation = node.resize("refused", patch_of(*SHRUNK))["metadata"]["generation"]
    node.wait("refused", has_error, what="refused")
    with recorded(cri, "refused"):
        node.kill()
        node.history.pop("refused")
        node.start()
        again = node.wait("refused", has_error, what="refused still")
        assert resize_conditions(again)[IN_PROGRESS][2] == generation
        assert not any(is_resized(seen) for seen in node.history.get("refused", ()))
        cri.run(live_containers(cri, "refused")["c0"], "rm", "/m/f")
        node.wait("refused", lambda p: not resize_conditions(p), what="resized")
    assert inside(cri, "refused").differences(wanted_of(*SHRUNK)) == {}
    node.delete("refused")


def test_a_deferred_resize_outlives_the_agent(node: ApiNode, cri: CriClient) -> None:
    cores = int(milli(node_cpu(node)) * 0.4)
    with node.running(pod_of("waits", res(f"{cores}m"))):
        node.create(pod_of("holds", res(f"{cores}m")))
        node.wait("holds", is_ready, what="Ready")
        wanted = res(f"{int(cores * 1.6)}m")
        generation = node.resize("waits", patch_of(wanted))["metadata"]["generation"]
        pending = node.wait("waits", lambda p: PENDING in resize_conditions(p), what="pending")
        node.kill()
        node.history.pop("waits")
        node.start()
        node.delete("holds")
        node.wait("waits", is_resized, what="resized")
        shown = [resize_conditions(seen).get(PENDING) for seen in node.history["waits"]]
        assert {one for one in shown if one is not None} <= {resize_conditions(pending)[PENDING]}
        assert inside(cri, "waits").differences(wanted_of(wanted)) == {}
        assert told(node, "waits")[-1] == ("ResizeCompleted", generation)


def test_the_last_of_many_resizes_is_what_remains(node: ApiNode, cri: CriClient) -> None:
    seed = 5
    choose = random.Random(seed)
    sizes = [SIX, SIX_MIXED, [res(f"{n}5m/{n}50m", f"{8 * n}Mi/{24 * n}Mi") for n in range(2, 8)]]
    with node.running(pod_of("often", *SIX)):
        wanted = SIX
        with recorded(cri, "often"):
            for _ in range(30):
                wanted = choose.choice([size for size in sizes if size is not wanted])
                node.resize("often", patch_of(*wanted))
                time.sleep(choose.random() * 0.3)
            done = node.wait("often", is_resized, what=f"resized (seed {seed})")
        assert inside(cri, "often").differences(wanted_of(*wanted)) == {}
        assert problems_of(done) == []


@pytest.mark.parametrize("steps", [0, 2, 5])
def test_a_container_that_ends_in_the_middle_starts_with_the_new_size(
    node: ApiNode, cri: CriClient, steps: int
) -> None:
    name = f"ends-{steps}"
    with node.running(pod_of(name, *SIX)):
        wanted, now = wanted_of(*SIX_MIXED), inside(cri, name)
        left = len(now.differences(wanted)) - steps
        with recorded(cri, name, restarts=["c3"]):
            node.resize(name, patch_of(*SIX_MIXED))
            eventually(lambda: len(now.differences(wanted)) <= left, every=0.001)
            cri.kill(live_containers(cri, name)["c3"])
            node.wait(name, lambda p: container_status(p, "c3")["restartCount"] == 1)
            done = node.wait(name, is_resized, what="resized")
        assert inside(cri, name).differences(wanted) == {}
        assert problems_of(done) == []
        counts = [s["restartCount"] for s in done["status"]["containerStatuses"]]
        assert counts == [0, 0, 0, 1, 0, 0]


def is_gone(directory: Path) -> bool:
    return not directory.exists()


def test_a_pod_that_is_deleted_in_the_middle_leaves_nothing(node: ApiNode, cri: CriClient) -> None:
    for number in range(5):
        name = f"deleted-{number}"
        with node.running(pod_of(name, *SIX)):
            whole = inside(cri, name).pod
            node.resize(name, patch_of(*SIX_MIXED))
            time.sleep(number * 0.1)
        eventually(partial(is_gone, whole.cpu), what=f"the cgroup of {name} is gone")


def test_a_runtime_that_restarts_in_the_middle_is_waited_for(
    node: ApiNode, cri: CriClient, containerd: Containerd
) -> None:
    with node.running(pod_of("restarted", *SIX)):
        wanted, now = wanted_of(*SIX_MIXED), inside(cri, "restarted")
        left = len(now.differences(wanted)) - 3
        with recorded(cri, "restarted"):
            node.resize("restarted", patch_of(*SIX_MIXED))
            eventually(lambda: len(now.differences(wanted)) <= left, every=0.001)
            containerd.stop()
            containerd.start()
            done = node.wait("restarted", is_resized, within=120, what="resized")
        assert now.differences(wanted) == {}
        assert problems_of(done) == []
