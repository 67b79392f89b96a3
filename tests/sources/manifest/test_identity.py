"""The UID of a static pod: which changes of a manifest make another pod."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_qos
from kubelet_trio.model import PodUid, pod_uid, spec
from kubelet_trio.sources import load_manifest
from tests.sources.make import NODE, container, encoded, load, manifest, problems

Lists = dict[str, dict[str, str]]


def resources(
    requests: dict[str, str] | None = None, limits: dict[str, str] | None = None
) -> Lists:
    both = {"requests": requests, "limits": limits}
    return {which: amounts for which, amounts in both.items() if amounts is not None}


BURSTABLE = resources({"cpu": "100m", "memory": "64Mi"}, {"memory": "128Mi"})


def pod(main: Lists | None = None, **fields: Any) -> dict[str, Any]:
    own: dict[str, Any] = {} if main is None else {"resources": main}
    return manifest(containers=[container(**own)], **fields)


def uid(document: dict[str, Any]) -> PodUid:
    return pod_uid(load(document)[0])


def earlier_uid(document: dict[str, Any]) -> PodUid:
    """Return the UID by the rule of earlier agents: that rule is used if its UID is known."""
    args = encoded(document), "/m/web.yaml"
    return pod_uid(load_manifest(*args, node_name=NODE, is_known=lambda _: True).pods[0])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BURSTABLE, resources({"cpu": "2", "memory": "64Mi"}, {"memory": "1Gi"})),
        (BURSTABLE, resources({"cpu": "0.1", "memory": "67108864"}, {"memory": "128Mi"})),
        # Guaranteed in both.
        (
            resources({}, {"cpu": "1", "memory": "1Gi"}),
            resources({}, {"cpu": "2", "memory": "2Gi"}),
        ),
        # The API sets a request that is not given to the limit.
        (
            resources(None, {"cpu": "1", "memory": "1Gi"}),
            resources({"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}),
        ),
        (resources(None, {"cpu": "2"}), resources({"cpu": "1"}, {"cpu": "2"})),
    ],
)
def test_a_pod_whose_amounts_change_is_the_same_pod(before: Lists, after: Lists) -> None:
    assert uid(pod(before)) == uid(pod(after))
    init = container("init")
    for field in ("containers", "initContainers"):
        both: list[dict[str, Any]] = [
            {"containers": [container("other")], field: [container(resources=each), init]}
            for each in (before, after)
        ]
        assert len({uid(manifest(**each)) for each in both}) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Set or not.
        (BURSTABLE, resources({"memory": "64Mi"}, {"memory": "128Mi"})),
        (BURSTABLE, resources({"cpu": "100m", "memory": "64Mi"}, {"memory": "1Gi", "cpu": "1"})),
        (BURSTABLE, resources({"cpu": "100m", "memory": "64Mi"})),
        (BURSTABLE, None),
        # The QoS class.
        (
            resources({}, {"cpu": "1", "memory": "1Gi"}),
            resources({"cpu": "500m"}, {"cpu": "1", "memory": "1Gi"}),
        ),
        (resources({"cpu": "0"}), resources({"cpu": "1"})),
        # Resources that cannot be resized.
        (
            resources({"cpu": "1", "ephemeral-storage": "1Gi"}),
            resources({"cpu": "1", "ephemeral-storage": "2Gi"}),
        ),
        (
            resources({"cpu": "1"}, {"hugepages-2Mi": "2Mi"}),
            resources({"cpu": "1"}, {"hugepages-2Mi": "4Mi"}),
        ),
    ],
)
def test_any_other_change_of_resources_makes_another_pod(
    before: Lists, after: Lists | None
) -> None:
    assert uid(pod(before)) != uid(pod(after))


def test_the_amounts_of_the_pod_as_a_whole_do_not_matter_either() -> None:
    def whole(requests: str, limits: str, main: Lists | None = None) -> dict[str, Any]:
        return pod(main, resources=resources({"cpu": requests}, {"cpu": limits}))

    assert uid(whole("1", "2")) == uid(whole("2", "4"))
    assert uid(whole("1", "2", BURSTABLE)) != uid(whole("1", "2"))
    assert uid(whole("1", "2")) != uid(pod(BURSTABLE))
    # A request of the pod that is not given is the sum of its containers'.
    summed = pod(BURSTABLE, resources=resources(None, {"cpu": "1"}))
    given_one = pod(BURSTABLE, resources=resources({"memory": "64Mi"}, {"cpu": "1"}))
    assert uid(summed) == uid(given_one)


def test_where_amounts_are_set_and_all_other_fields_matter() -> None:
    first, second = container("a", resources=BURSTABLE), container("b")
    base = manifest(containers=[first, second])
    others = [
        manifest(containers=[container("a"), container("b", resources=BURSTABLE)]),
        manifest(containers=[second, first]),
        manifest(containers=[first, second], hostNetwork=True),
        manifest(containers=[{**first, "image": "busybox:2"}, second]),
        manifest(
            containers=[
                {
                    **first,
                    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                },
                second,
            ]
        ),
        manifest("other", containers=[first, second]),
    ]
    assert len({uid(base), *(uid(each) for each in others)}) == 1 + len(others)
    assert uid(base) != pod_uid(load(base, origin="/m/other.yaml")[0])


@pytest.mark.parametrize(
    ("document", "known"),
    [
        (pod(), "f5e9d5f159e651ac4cadebac41518708"),
        (pod(resources({}, {})), "027fbfb9c5e87151e35e7a27871571db"),
        (pod(resources(None, {"ephemeral-storage": "1Gi"})), "393f8668fe1e28e1a0354feb452c93bc"),
    ],
)
def test_a_manifest_without_amounts_has_the_uid_that_earlier_agents_gave_it(
    document: dict[str, Any], known: str
) -> None:
    assert uid(document) == earlier_uid(document) == known


def test_a_pod_of_an_earlier_agent_keeps_its_uid_until_its_manifest_changes() -> None:
    known = "86440dbea94eb0b28ead181d640fc7d6"
    assert earlier_uid(pod(BURSTABLE)) == known
    assert uid(pod(BURSTABLE)) == "46b18cb35a5c2a212971759acd6ae154" != known
    more = copy.deepcopy(BURSTABLE)
    more["limits"]["memory"] = "1Gi"

    def uid_after(document: dict[str, Any]) -> PodUid:
        args = encoded(document), "/m/web.yaml"
        (found,) = load_manifest(*args, node_name=NODE, is_known=lambda uid: uid == known).pods
        return pod_uid(found)

    assert uid_after(pod(BURSTABLE)) == known
    assert uid_after(pod(more)) == uid(pod(BURSTABLE))


amounts = st.sampled_from(["0", "50m", "100m", "1", "2"])
lists = st.fixed_dictionaries({}, optional={"cpu": amounts, "memory": amounts})
bodies = st.builds(resources, st.none() | lists, st.none() | lists)


def shape(each: Pod) -> tuple[object, ...]:
    """Return what no resize changes: which amounts are set, and the QoS class."""
    own = spec(each)
    given_ones = [own.resources, *(c.resources for c in own.containers)]
    names = [
        None if r is None else (frozenset(r.requests or ()), frozenset(r.limits or ()))
        for r in given_ones
    ]
    return tuple(names), pod_qos(each)


@given(bodies, bodies, st.none() | bodies, st.none() | bodies)
def test_pods_have_one_uid_exactly_if_a_resize_leads_from_one_to_the_other(
    first: Lists, second: Lists, whole: Lists | None, other_whole: Lists | None
) -> None:
    before = pod(first, **({} if whole is None else {"resources": whole}))
    after = pod(second, **({} if other_whole is None else {"resources": other_whole}))
    assume(not problems(before) and not problems(after))
    (old,), (new,) = load(before), load(after)
    # Without any amounts the documents themselves are compared.
    assume(any(any(names or ()) for names in shape(old)[0]))  # type: ignore[attr-defined]
    assert (pod_uid(old) == pod_uid(new)) == (shape(old) == shape(new))
