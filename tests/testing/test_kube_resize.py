"""What the fake API server does with a resize of a pod: accepted, refused, and by whom."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.containers import pod_qos
from kubelet_trio.kube import KubeError, PatchKind, from_json, to_json
from tests.testing.resizing import (
    BURSTABLE,
    CPU,
    FEATURES,
    GUARANTEED,
    TPU,
    Json,
    container,
    of,
    of_init,
    pod,
    refusal,
    resize,
    server_with,
    sidecar,
    stored,
)


@pytest.mark.parametrize(
    ("body", "patch", "resources"),
    [
        # a lower memory limit as well: the node decides
        (
            pod(container(resources=BURSTABLE)),
            of(limits={"cpu": "300m", "memory": "64Mi"}),
            {"requests": BURSTABLE["requests"], "limits": {"cpu": "300m", "memory": "64Mi"}},
        ),
        (
            pod(container(resources=GUARANTEED)),
            of(limits={"cpu": "1500m"}, requests={"cpu": "1.5"}),
            {
                "requests": {"cpu": "1500m", "memory": "1Gi"},
                "limits": {"cpu": "1500m", "memory": "1Gi"},
            },
        ),
        # added
        (
            pod(container(resources={"requests": {"cpu": "100m"}})),
            of(requests={"memory": "64Mi"}, limits={"cpu": "1"}),
            {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1"}},
        ),
        # a limit is also the request, where there is none: added, or removed
        (
            pod(container(resources={"requests": {"cpu": "100m"}})),
            of(limits={"memory": "64Mi"}),
            {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
        ),
        (
            pod(container(resources=BURSTABLE)),
            of(requests={"cpu": None}),
            {"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": BURSTABLE["limits"]},
        ),
        # other resources stay
        (
            pod(container(resources={**BURSTABLE, "limits": {TPU: "1", "memory": "1Gi"}})),
            of(requests={"cpu": "50m"}),
            {
                "requests": {"cpu": "50m", "memory": "64Mi", TPU: "1"},
                "limits": {TPU: "1", "memory": "1Gi"},
            },
        ),
    ],
)
def test_a_containers_cpu_and_memory_may_change(body: Json, patch: Json, resources: Json) -> None:
    kube = server_with(body)
    assert resize(kube, patch)["containers"][0]["resources"] == resources
    assert stored(kube)["metadata"]["generation"] == 2


@pytest.mark.parametrize("restart", [None, "Always", "Never"])
def test_an_init_containers_cpu_and_memory_may_change(restart: str | None) -> None:
    init = container("i", BURSTABLE, restartPolicy=restart)
    kube = server_with(pod(container(), init=[init], nodeName="n1"))
    spec = resize(kube, of_init(limits={"cpu": "1"}, requests={"memory": "1Mi"}))
    assert spec["initContainers"][0]["resources"] == {
        "requests": {"cpu": "100m", "memory": "1Mi"},
        "limits": {"cpu": "1", "memory": "128Mi"},
    }


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        (
            {"limits": {"cpu": "1", "memory": "1Gi"}},
            {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}},
            {
                "requests": {"cpu": "500m", "memory": "64Mi"},
                "limits": {"cpu": "2", "memory": "1Gi"},
            },
        ),
        # where there are limits, the containers' sum is the default of a request
        (
            None,
            {"limits": {"cpu": "1"}},
            {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1"}},
        ),
        (
            {"requests": {"cpu": "1"}},
            {"limits": {"memory": "1Gi"}},
            {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        ),
        (None, {"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}}),
    ],
)
def test_a_pods_own_cpu_and_memory_may_change(
    before: Json | None, patch: Json, after: Json
) -> None:
    body = pod(container(resources={"requests": BURSTABLE["requests"]}), nodeName="n1")
    body["spec"]["resources"] = before
    assert resize(server_with(body), {"resources": patch})["resources"] == after


def test_a_change_of_anything_else_is_ignored() -> None:
    kube = server_with(pod(container(resources=BURSTABLE), nodeName="n1"))
    before = stored(kube)
    patch = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e/f"]},
        "spec": {
            "activeDeadlineSeconds": 5,
            "containers": [
                {"name": "c", "image": "other", "resources": {"limits": {"cpu": "1000m"}}}
            ],
        },
        "status": {"phase": "Running"},
    }
    kube.change(Pod, "web", patch, subresource="resize")
    before["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    for field in ("generation", "resourceVersion"):
        before["metadata"][field] = stored(kube)["metadata"][field]
    assert stored(kube) == before
    assert before["metadata"]["generation"] == 2


def test_the_same_amounts_in_another_spelling_change_nothing() -> None:
    kube = server_with(pod(container(resources=GUARANTEED)))
    before = stored(kube)
    resize(kube, of(limits={"cpu": "1000m", "memory": "1024Mi"}))
    assert stored(kube) == before


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        (PatchKind.STRATEGIC, {"spec": CPU}),
        (
            PatchKind.MERGE,
            {
                "spec": {
                    "containers": [
                        container(resources={**BURSTABLE, "limits": {"cpu": "1", "memory": "1Gi"}})
                    ]
                }
            },
        ),
        (
            PatchKind.JSON,
            [
                {
                    "op": "replace",
                    "path": "/spec/containers/0/resources/limits/cpu",
                    "value": "1000m",
                }
            ],
        ),
        (None, None),
    ],
)
async def test_each_kind_of_change_resizes(
    kind: PatchKind | None, patch: Any, autojump_clock: MockClock
) -> None:
    kube = server_with(pod(container(resources=BURSTABLE)))
    if kind is None:
        body = stored(kube)
        body["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
        done = await kube.update(from_json(body, Pod), subresource="resize")
    else:
        done = await kube.patch(
            Pod, "web", patch, namespace="default", subresource="resize", kind=kind
        )
    resized: Json = to_json(done)
    assert resized["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1"
    assert resized["metadata"]["generation"] == 2
    assert kube.requests[-1].resource == "pods/resize"


def test_an_update_of_an_old_version_is_a_conflict() -> None:
    kube = server_with(pod(container(resources=BURSTABLE)))
    patch = {"metadata": {"resourceVersion": "1"}, "spec": CPU}
    with pytest.raises(KubeError) as refused:
        kube.change(Pod, "web", patch, subresource="resize")
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")


def amounts_of(*texts: str) -> st.SearchStrategy[Json]:
    names = st.sampled_from([*["cpu", "memory"] * 9, "ephemeral-storage"])
    return st.dictionaries(names, st.sampled_from([None, *texts * 6]), max_size=2)


# Mostly valid, so that many are accepted: requests below limits, of containers below the pod's.
resources = st.builds(
    lambda requests, limits: {"requests": requests, "limits": limits},
    amounts_of("100m", "200m", "1"),
    amounts_of("1", "2"),
)
of_pods: st.SearchStrategy[Json] = st.just({}) | st.builds(
    lambda requests, limits: {"requests": requests, "limits": limits},
    amounts_of("2", "3"),
    amounts_of("3", "4"),
)
three = st.tuples(resources, resources, of_pods)


def without_nulls(chosen: Json) -> Json:
    return {
        field: {name: text for name, text in values.items() if text is not None}
        for field, values in chosen.items()
    }


def stripped(spec: Json) -> Json:
    """Return a spec without what a resize may change."""
    fixed = copy.deepcopy(spec)
    for holder in (fixed, *fixed["containers"], *fixed["initContainers"]):
        own = holder.get("resources") or {}
        kept = {
            field: {k: v for k, v in (own.get(field) or {}).items() if k not in ("cpu", "memory")}
            for field in ("requests", "limits")
        }
        holder["resources"] = kept if any(kept.values()) else {}
    return fixed


@given(three, three)
def test_a_resize_is_refused_or_changes_only_what_it_may(
    old: tuple[Json, Json, Json], new: tuple[Json, Json, Json]
) -> None:
    main, init, own = map(without_nulls, old)
    main.setdefault("requests", {}).setdefault("cpu", "100m")
    body = pod(container(resources=main), init=[container("i", init)], nodeName="n1")
    if own.get("requests") or own.get("limits"):
        body["spec"]["resources"] = own
    kube = server_with(body)
    before = stored(kube)
    patch = {**of(**new[0]), **of_init(**new[1])}
    if any(new[2].values()):
        patch["resources"] = new[2]
    try:
        resize(kube, patch)
    except KubeError:
        assert stored(kube) == before
        return
    after = stored(kube)
    assert stripped(after["spec"]) == stripped(before["spec"])
    assert pod_qos(from_json(after, Pod)) == before["status"]["qosClass"]
    changed = after["spec"] != before["spec"]
    assert after["metadata"]["generation"] == 1 + changed
    for one, other in zip(holders(before), holders(after), strict=True):
        for field in ("requests", "limits"):
            assert (one.get(field) or {}).keys() <= (other.get(field) or {}).keys()


def holders(body: Json) -> list[Json]:
    spec = body["spec"]
    return [h.get("resources") or {} for h in (spec, *spec["containers"], *spec["initContainers"])]


OWN = {"resources": {"requests": {"cpu": "2"}}}
INIT = {"initContainers": [{"name": "i", "resources": {"limits": {"cpu": "2"}}}]}


@pytest.mark.parametrize(
    ("features", "patch", "lacking"),
    [
        (FEATURES[1:], OWN, FEATURES[0]),
        (FEATURES[:1], INIT, FEATURES[1]),
        ([], {**OWN, **INIT}, ", ".join(FEATURES)),
        ([], CPU, ""),
        (FEATURES[:1], OWN, ""),
        (FEATURES[1:], INIT, ""),
    ],
)
def test_some_resizes_need_a_feature_of_the_node(
    features: list[str], patch: Json, lacking: str
) -> None:
    own = {"requests": {"cpu": "1"}}
    body = pod(
        container(resources=BURSTABLE), init=[container("i", BURSTABLE)], resources=own,
        nodeName="n1",
    )  # fmt: skip
    kube = server_with(body, features)
    if lacking:
        text = f'pod update requires features {lacking} which are not available on node "n1"'
        assert refusal(kube, patch) == text
    else:
        resize(kube, patch)
    # A pod without a node can be resized: the scheduler reads the spec.
    unbound = server_with({**body, "spec": {**body["spec"], "nodeName": None}}, [])
    resize(unbound, patch)


def test_a_sidecar_needs_no_feature_but_a_node_that_exists() -> None:
    kube = server_with(pod(container(), init=sidecar(), nodeName="n1"), [])
    resize(kube, INIT)
    body = pod(container(), init=[container("i", BURSTABLE)], nodeName="gone")
    assert refusal(server_with(body), INIT) == 'node "gone" not found'


@pytest.mark.parametrize("verb", ["patch", "update"])
async def test_a_node_may_resize_no_pod(verb: str, autojump_clock: MockClock) -> None:
    kube = server_with(pod(container(resources=BURSTABLE), nodeName="n1"))
    node, found = kube.node("n1"), from_json(stored(kube), Pod)
    where: Json = {"namespace": "default", "subresource": "resize"}
    with pytest.raises(KubeError) as refused:
        await (
            node.patch(Pod, "web", {"spec": CPU}, **where)
            if verb == "patch"
            else node.update(found, **where)
        )
    assert refused.value.code == 403
    assert refused.value.message == (
        f'pods "web" is forbidden: User "system:node:n1" cannot {verb} resource '
        '"pods/resize" in API group "" in the namespace "default"'
    )


STATUS: Json = {
    "observedGeneration": 2,
    "conditions": [
        {
            "type": "PodResizePending",
            "status": "True",
            "reason": "Deferred",
            "message": "Node didn't have enough resource: cpu",
            "observedGeneration": 2,
        },
        {"type": "PodResizeInProgress", "status": "True", "observedGeneration": 1},
    ],
    "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
    "allocatedResources": {"cpu": "1"},
    "containerStatuses": [
        {
            "name": "c",
            "image": "i",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "resources": BURSTABLE,
            "allocatedResources": BURSTABLE["requests"],
        }
    ],
}


async def test_a_node_reports_a_resize(autojump_clock: MockClock) -> None:
    kube = server_with(pod(container(resources=BURSTABLE), nodeName="n1"))
    where: Json = {"namespace": "default", "subresource": "status"}
    await kube.node("n1").patch(Pod, "web", {"status": STATUS}, **where)
    reported = stored(kube)["status"]
    assert {field: reported[field] for field in STATUS} == STATUS
    # What is done is removed.
    over = {
        "conditions": [{"$patch": "delete", "type": c["type"]} for c in STATUS["conditions"]],
        "resources": None,
        "allocatedResources": None,
    }
    await kube.node("n1").patch(Pod, "web", {"status": over}, **where)
    assert not stored(kube)["status"].keys() & {"resources", "allocatedResources"}
    assert not stored(kube)["status"].get("conditions")


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        (
            {"allocatedResources": {"cpu": "x"}},
            "quantities must match the regular expression",
        ),
        (
            {"resources": {"limits": {"cpu": "1MM"}}},
            "unable to parse quantity's suffix",
        ),
        (
            {
                "containerStatuses": [
                    {**STATUS["containerStatuses"][0], "resources": {"requests": {"cpu": "1..5"}}}
                ]
            },
            "quantities must match the regular expression",
        ),
        (
            {"conditions": [{"type": "PodResizePending", "observedGeneration": -1}]},
            "status.conditions[0].observedGeneration: Invalid value: -1: must be a non-negative",
        ),
        (
            {"observedGeneration": -1},
            "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
        ),
        ({"qosClass": "Guaranteed"}, "status.qosClass: Invalid value"),
    ],
)
def test_a_report_that_cannot_be_is_refused(patch: Json, problem: str) -> None:
    kube = server_with(pod(container(resources=BURSTABLE), nodeName="n1"))
    kube.change(Pod, "web", {"status": STATUS}, subresource="status")
    before = stored(kube)
    with pytest.raises(KubeError) as refused:
        kube.change(Pod, "web", {"status": patch}, subresource="status")
    assert refused.value.code == 422
    assert problem in refused.value.message
    assert stored(kube) == before


def test_an_observed_generation_is_not_cleared() -> None:
    kube = server_with(pod(container(resources=BURSTABLE), nodeName="n1"))
    kube.change(Pod, "web", {"status": STATUS}, subresource="status")
    cleared = {
        "observedGeneration": None,
        "conditions": [
            {"type": "PodResizePending", "reason": "Infeasible", "observedGeneration": None},
            {"type": "PodResizeInProgress", "observedGeneration": 3},
            {"type": "Ready", "status": "True"},
        ],
    }
    kube.change(Pod, "web", {"status": cleared}, subresource="status")
    status = stored(kube)["status"]
    assert status["observedGeneration"] == 2
    found = {c["type"]: c.get("observedGeneration") for c in status["conditions"]}
    assert found == {"PodResizePending": 2, "PodResizeInProgress": 3, "Ready": None}
