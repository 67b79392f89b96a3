"""Pods of an API server that change size while they run, as the kernel sees it (KEP-1287).

Each change is recorded: a reader in a process of its own looks at the limits of the pod and its
containers as often as it can, and no container may ever have a larger limit than its pod.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.containerd.resizing import (
    BURSTABLE,
    GROWN,
    GUARANTEED,
    IN_PROGRESS,
    KEPT,
    MIXED,
    PENDING,
    SHRUNK,
    SIX,
    SIX_MIXED,
    Inside,
    Resources,
    amount,
    container_limits,
    has_error,
    in_use,
    inside,
    is_resized,
    node_cpu,
    patch_of,
    pod_limits,
    pod_of,
    problems_of,
    recorded,
    res,
    resize_conditions,
    resized,
    sized,
    told,
    wanted_of,
)
from tests.harness import CriClient, container_status, eventually, is_ready, live_containers, pod
from tests.harness.api_node import ApiNode
from tests.harness.cgroups import V1, Limits, Recorder, milli

MI = 1 << 20


# Containers' resources before a change, and the change

CHANGES = {
    "guaranteed up": (GUARANTEED, GROWN),
    "guaranteed down": (GROWN, GUARANTEED),
    "guaranteed mixed": (GUARANTEED, MIXED),
    "burstable up": (BURSTABLE, [res("60m/200m", "48Mi/96Mi")] * 3),
    "burstable down": (BURSTABLE, [res("20m/50m", "16Mi/32Mi")] * 3),
    "burstable cpu alone": (BURSTABLE, [*[res("20m/40m", "32Mi/64Mi")] * 2, res("70m/300m")]),
    "burstable memory alone": (BURSTABLE, [res("50m/100m", "16Mi/32Mi"), *BURSTABLE[:2]]),
    "burstable cpu up and memory down": (BURSTABLE, [res("80m/200m", "16Mi/32Mi")] * 3),
    "burstable requests alone": (BURSTABLE, [res("20m/100m", "48Mi/64Mi")] * 3),
    "burstable limits alone": (BURSTABLE, [res("50m/60m", "32Mi/128Mi")] * 3),
    "six containers": (SIX, SIX_MIXED),
    "limits added": (
        [res("50m", "16Mi"), res("50m/100m", "16Mi/32Mi"), {}],
        [res("50m/80m", "16Mi/64Mi"), res("60m/100m", "16Mi/32Mi"), res("10m/20m", "8Mi/16Mi")],
    ),
    "one limit added of three": (
        [res("50m"), res("50m"), res("50m")],
        [res("50m/100m", "8Mi/32Mi"), res("50m"), res("20m")],
    ),
}


def merged(before: Resources, change: Resources) -> Resources:
    """Return what a patch makes of resources: it adds and replaces, and removes nothing."""
    kinds = {**before, **change}
    return {k: {**before.get(k, {}), **change.get(k, {})} for k in kinds}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.replace(" ", "-"))
def test_a_pod_changes_size_while_it_runs(node: ApiNode, cri: CriClient, change: str) -> None:
    before, patch = CHANGES[change]
    after = [merged(*both) for both in zip(before, patch, strict=True)]
    name = "size-" + change.replace(" ", "-")
    with node.running(pod_of(name, *before)) as made:
        assert inside(cri, name).differences(wanted_of(*before)) == {}
        assert problems_of(made) == []
        with recorded(cri, name) as recorder:
            done = resized(node, cri, name, patch_of(*patch), wanted_of(*after))
        assert [s["restartCount"] for s in done["status"]["containerStatuses"]] == [0] * len(after)
        assert done["status"]["qosClass"] == made["status"]["qosClass"]
        assert no_swap(inside(cri, name), after)
        assert recorder.out_of_order() == []
        if all(map(has_same_limits, before, after)):  # a limit cannot be removed
            with recorded(cri, name):
                resized(node, cri, name, patch_of(*before), wanted_of(*before))


def has_same_limits(before: Resources, after: Resources) -> bool:
    """Whether limits of the same resources are set."""
    return set(before.get("limits", {})) == set(after.get("limits", {}))


def no_swap(now: Inside, resources: Sequence[Resources]) -> bool:
    """Whether a container with a memory limit may not swap, also after a change of the limit."""
    limited = [f"c{n}" for n, one in enumerate(resources) if amount(one, "limits", "memory")]
    return all(now.cgroups[name].swap() == 0 for name in limited)


def test_amounts_that_the_kernel_cannot_tell_apart_are_shown_as_asked(
    node: ApiNode, cri: CriClient
) -> None:
    # A container hardly starts with so little.
    with node.running(pod_of("least", res("50m/100m"))), recorded(cri, "least"):
        for least in (res("2m/10m"), res("1m/5m"), res("2m/10m")):
            resized(
                node, cri, "least", patch_of(least), {"c0": Limits(2, 1000), "": Limits(2, 1000)}
            )
        resized(node, cri, "least", patch_of(res("50m/100m")), wanted_of(res("50m/100m")))


def test_a_best_effort_pod_keeps_its_class_and_its_cgroup(node: ApiNode, cri: CriClient) -> None:
    from kubelet_trio.kube import KubeError

    with node.running(pod_of("besteffort", {})) as made:
        assert made["status"]["qosClass"] == "BestEffort"
        with recorded(cri, "besteffort"), pytest.raises(KubeError, match="QOS"):
            node.resize("besteffort", patch_of(res("10m/20m")))
        assert inside(cri, "besteffort").differences({"": Limits(2), "c0": Limits(2)}) == {}
        assert told(node, "besteffort") == []


def test_a_sidecar_changes_size_with_the_containers(node: ApiNode, cri: CriClient) -> None:
    proxy = sized("proxy", res("50m/100m", "16Mi/32Mi"), restartPolicy="Always")
    with node.running(pod("sidecar", sized("c0", BURSTABLE[0]), initContainers=[proxy])):
        larger, smaller = res("80m/200m", "32Mi/64Mi"), res("20m/60m", "16Mi/24Mi")
        patch = {"initContainers": [{"name": "proxy", "resources": larger}], **patch_of(smaller)}
        wanted = {
            "proxy": container_limits(larger),
            "c0": container_limits(smaller),
            "": pod_limits([larger, smaller]),
        }
        with recorded(cri, "sidecar"):
            done = resized(node, cri, "sidecar", patch, wanted)
        assert container_status(done, "proxy")["restartCount"] == 0


def test_an_init_container_changes_size_while_it_runs(node: ApiNode, cri: CriClient) -> None:
    waits = "until [ -e /go ]; do sleep 0.1; done"
    init = sized("init", res("50m/100m", "16Mi/32Mi"), script=waits)
    node.create(pod("init", sized("c0", res("20m/50m", "8Mi/16Mi")), initContainers=[init]))
    node.wait("init", lambda p: "running" in container_status(p, "init").get("state", {}))
    larger = res("150m/300m", "32Mi/64Mi")
    with recorded(cri, "init"):
        node.resize("init", {"initContainers": [{"name": "init", "resources": larger}]})
        limits = container_limits(larger)
        # Of the phases of a pod the largest counts: here the one that runs.
        eventually(
            lambda: inside(cri, "init").differences({"init": limits, "": limits}) == {},
            what="the init container has its limits",
        )
        resources = node.wait(
            "init",
            lambda p: container_status(p, "init")["resources"] == larger,
            what="the status shows it",
        )
        assert container_status(resources, "init")["restartCount"] == 0
    cri.run(live_containers(cri, "init")["init"], "touch", "/go")
    node.wait("init", is_resized, what="ready, and resized")
    small = container_limits(res("20m/50m", "8Mi/16Mi"))
    assert inside(cri, "init").differences({"c0": small, "": limits}) == {}
    node.delete("init")


def from_pod(own: Resources) -> Limits:
    """Return the limits of a container without requests and limits in a pod that has limits."""
    return container_limits({"limits": own["limits"]})


def test_a_pods_own_resources_change_and_containers_without_limit_follow(
    node: ApiNode, cri: CriClient
) -> None:
    own = res("200m/400m", "64Mi/128Mi")
    body = pod("level", sized("c0", {}), sized("c1", res("50m/100m", "16Mi/32Mi")), resources=own)
    with node.running(body) as made:
        assert made["status"]["qosClass"] == "Burstable"
        c1 = container_limits(res("50m/100m", "16Mi/32Mi"))
        whole = container_limits(own)
        inherits = from_pod(own)
        assert inside(cri, "level").differences({"": whole, "c0": inherits, "c1": c1}) == {}
        for larger in (res("300m/600m", "96Mi/192Mi"), res("100m/200m", "48Mi/64Mi")):
            generation = node.resize("level", {"resources": larger})["metadata"]["generation"]
            done = node.wait("level", is_resized, what="resized")
            whole = container_limits(larger)
            inherits = from_pod(larger)
            assert inside(cri, "level").differences({"": whole, "c0": inherits, "c1": c1}) == {}
            assert done["status"]["resources"]["limits"] == larger["limits"]
            assert done["status"]["allocatedResources"] == larger["requests"]
            assert done["status"]["observedGeneration"] == generation
        assert [s["restartCount"] for s in done["status"]["containerStatuses"]] == [0, 0]


RESTART = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]


def test_a_policy_restarts_that_container_alone(node: ApiNode, cri: CriClient) -> None:
    body = pod(
        "policy",
        sized("c0", BURSTABLE[0], resizePolicy=RESTART),
        sized("c1", BURSTABLE[0]),
        sized("c2", BURSTABLE[0], resizePolicy=RESTART),
    )
    after = [
        res("50m/100m", "48Mi/96Mi"),
        res("50m/100m", "16Mi/48Mi"),
        res("70m/80m", "32Mi/64Mi"),
    ]
    with node.running(body):
        # c2 has a policy for memory, and only its CPU changes.
        with recorded(cri, "policy", restarts=["c0"]):
            done = resized(node, cri, "policy", patch_of(*after), wanted_of(*after))
        assert [s["restartCount"] for s in done["status"]["containerStatuses"]] == [1, 0, 0]
        killed = [e for e in node.events("policy") if e["reason"] == "Killing"]
        assert [e["message"] for e in killed] == ["Container c0 resize requires restart"]
        with recorded(cri, "policy", restarts=["c0"]):
            done = resized(node, cri, "policy", patch_of(*BURSTABLE), wanted_of(*BURSTABLE))
        assert [s["restartCount"] for s in done["status"]["containerStatuses"]] == [2, 0, 0]


BELOW = re.compile(
    r"cannot decrease memory limits: .*attempting to set container \"c0\" memory limit "
    rf"\({24 * MI}\) below current usage \((\d+)\)"
)


def test_a_memory_limit_below_usage_is_refused_until_the_memory_is_free(
    node: ApiNode, cri: CriClient
) -> None:
    in_use("used", node)
    with recorded(cri, "used"):
        generation = node.resize("used", patch_of(*SHRUNK))["metadata"]["generation"]
        refused = node.wait("used", has_error, what="refused")
        reason, message, observed = resize_conditions(refused)[IN_PROGRESS]
        assert (reason, observed) == ("Error", generation)
        found = BELOW.search(message)
        assert found is not None, message
        assert int(found[1]) >= 40 * MI
        assert PENDING not in resize_conditions(refused)  # it was granted
        now = inside(cri, "used").differences(wanted_of(*KEPT))
        assert set(now) <= {"", "c1"}, now  # the container in use keeps what it has
        shown = container_status(refused, "c0")
        assert shown["resources"]["limits"]["memory"] == "96Mi"
        assert shown["allocatedResources"]["memory"] == "16Mi"
        eventually(lambda: ("ResizeError", generation) in told(node, "used"), what="ResizeError")

        cri.run(live_containers(cri, "used")["c0"], "rm", "/m/f")
        node.wait("used", lambda p: not resize_conditions(p), what="resized")
    assert inside(cri, "used").differences(wanted_of(*SHRUNK)) == {}
    assert problems_of(node.find("used") or {}) == []
    reasons = list(dict.fromkeys(reason for reason, _ in told(node, "used")))
    assert reasons == ["ResizeStarted", "ResizeError", "ResizeCompleted"]
    node.delete("used")


def test_a_refused_memory_limit_may_be_raised_again(node: ApiNode, cri: CriClient) -> None:
    in_use("raised", node)
    with recorded(cri, "raised"):
        node.resize("raised", patch_of(*SHRUNK))
        node.wait("raised", has_error, what="refused")
        raised = [res("50m/200m", "32Mi/80Mi"), res("50m/200m", "32Mi/96Mi")]
        resized(node, cri, "raised", patch_of(*raised), wanted_of(*raised))
    node.delete("raised")


def test_more_than_the_node_has_is_infeasible(node: ApiNode, cri: CriClient) -> None:
    with node.running(pod_of("huge", res("50m"))):
        with recorded(cri, "huge"):
            generation = node.resize("huge", patch_of(res("900")))["metadata"]["generation"]
            pending = node.wait("huge", lambda p: PENDING in resize_conditions(p), what="pending")
            reason, message, observed = resize_conditions(pending)[PENDING]
            assert (reason, observed) == ("Infeasible", generation)
            assert message.startswith("Node didn't have enough capacity: cpu, requested: 900000, ")
            assert IN_PROGRESS not in resize_conditions(pending)
            status = container_status(pending, "c0")
            assert status["allocatedResources"] == status["resources"]["requests"] == {"cpu": "50m"}
        eventually(lambda: told(node, "huge") == [("ResizeInfeasible", generation)])
        assert inside(cri, "huge").differences(wanted_of(res("50m"))) == {}
        # What is asked instead is granted.
        resized(node, cri, "huge", patch_of(res("60m")), wanted_of(res("60m")))


def test_a_deferred_resize_is_granted_when_there_is_room(node: ApiNode, cri: CriClient) -> None:
    cores = int(milli(node_cpu(node)) * 0.4)
    half = f"{cores}m"
    with node.running(pod_of("first", res(half))), node.running(pod_of("second", res(half))):
        wanted = f"{int(cores * 1.6)}m"
        generation = node.resize("first", patch_of(res(wanted)))["metadata"]["generation"]
        pending = node.wait("first", lambda p: PENDING in resize_conditions(p), what="pending")
        reason, message, observed = resize_conditions(pending)[PENDING]
        assert (reason, observed) == ("Deferred", generation)
        assert message.startswith("Node didn't have enough resource: cpu, requested: ")
        assert pending["status"]["observedGeneration"] == generation
        assert inside(cri, "first").differences(wanted_of(res(half))) == {}
        # Another pod that becomes smaller makes room.
        node.resize("second", patch_of(res("50m")))
        done = node.wait("first", is_resized, what="resized")
        assert inside(cri, "first").differences(wanted_of(res(wanted))) == {}
        assert problems_of(done) == []
        eventually(
            lambda: (
                told(node, "first")
                == [(f"Resize{what}", generation) for what in ("Deferred", "Started", "Completed")]
            ),
            what=f"its events in order: {told(node, 'first')}",
        )


def test_a_deferred_resize_is_granted_when_another_pod_is_gone(
    node: ApiNode, cri: CriClient
) -> None:
    cores = int(milli(node_cpu(node)) * 0.4)
    with node.running(pod_of("stays", res(f"{cores}m"))):
        node.create(pod_of("goes", res(f"{cores}m")))
        node.wait("goes", is_ready, what="Ready")
        wanted = f"{int(cores * 1.6)}m"
        node.resize("stays", patch_of(res(wanted)))
        node.wait("stays", lambda p: PENDING in resize_conditions(p), what="pending")
        node.delete("goes")
        node.wait("stays", is_resized, what="resized")
        assert inside(cri, "stays").differences(wanted_of(res(wanted))) == {}


def test_the_status_shows_each_state_in_order(node: ApiNode, cri: CriClient) -> None:
    with node.running(pod_of("order", *SIX)):
        node.history.pop("order", None)
        node.resize("order", patch_of(*SIX_MIXED))
        node.wait_seen(node.wait("order", is_resized, what="resized"))
        states = [tuple(resize_conditions(p)) for p in node.history["order"]]
        distinct = [s for n, s in enumerate(states) if n == 0 or s != states[n - 1]]
        assert distinct in ([(), (IN_PROGRESS,), ()], [(IN_PROGRESS,), ()], [()])
        for seen in node.history["order"]:
            # Whatever is reported without a condition is complete.
            if is_resized(seen):
                assert problems_of(seen) == []


def test_the_recorder_sees_a_limit_above_the_pods(node: ApiNode, cri: CriClient) -> None:
    with node.running(pod_of("recorder", BURSTABLE[0])):
        whole = inside(cri, "recorder").pod
        file = whole.memory / ("memory.limit_in_bytes" if V1 else "memory.max")
        with Recorder(whole) as recorder:
            file.write_text(str(63 * MI))
            file.write_text(str(64 * MI))
        # Whether it saw that moment or not, it has seen no other state.
        assert {sample.after[1] for sample in recorder.samples} <= {63 * MI, 64 * MI}
        with Recorder(whole) as recorder:
            file.write_text(str(63 * MI))
        assert recorder.above()
        assert all(f"{64 * MI} above" in problem for problem in recorder.above())
        file.write_text(str(64 * MI))
