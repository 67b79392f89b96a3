"""The size of a pod of which only the runtime knows what it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod, ResourceRequirements

from kubelet_trio.containers import NodeSettings, as_found
from kubelet_trio.containers.resources.amounts import pod_qos
from kubelet_trio.containers.resources.container import container_resources
from kubelet_trio.model import ConfiguredResources, pod_containers, spec
from tests.containers.make import NODE, container, pod, sized
from tests.containers.resources.test_update import NODES, had_of

WEB = ConfiguredResources(1024, 200_000, 100_000, 1 << 30)
ASKED = {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
EQUAL = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}


@pytest.mark.parametrize(
    ("asked", "found", "expected"),
    [
        pytest.param(ASKED, {"cpu_shares": 512}, {"requests": {"cpu": "500m"}}, id="request"),
        pytest.param(ASKED, {"cpu_quota": 50_000}, {"limits": {"cpu": "500m"}}, id="limit"),
        pytest.param(ASKED, {"cpu_quota": -1}, {"limits": {"cpu": None}}, id="no limit"),
        pytest.param(
            ASKED, {"memory_limit": 2 << 30}, {"limits": {"memory": str(2 << 30)}}, id="memory"
        ),
        pytest.param(
            EQUAL,
            {"memory_limit": 2 << 30},
            {"requests": {"memory": str(2 << 30)}, "limits": {"memory": str(2 << 30)}},
            id="a guaranteed pod asked for what it was limited to",
        ),
        pytest.param(
            {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            {"cpu_shares": 2, "cpu_quota": 0, "memory_limit": 0},
            {"limits": {"memory": None}},
            id="a burstable pod without a limit",
        ),
    ],
)
def test_amounts_are_those_of_the_running_container(
    asked: dict[str, Any], found: dict[str, int], expected: dict[str, dict[str, str | None]]
) -> None:
    desired = pod(sized(**asked))
    as_asked = _configured(desired, NODE)
    running = {"main": replace(as_asked["main"], **found)}
    resources = spec(as_found(desired, NODE, running)).containers[0].resources
    assert resources is not None
    for kind, amounts in expected.items():
        before = {**asked[kind], **amounts}
        assert getattr(resources, kind) == ({n: q for n, q in before.items() if q} or None)


def test_a_container_that_does_not_run_has_what_is_asked() -> None:
    desired = pod(sized(limits=ASKED["limits"]), container("other"))
    assert as_found(desired, NODE, {}) is desired
    assert as_found(desired, NODE, {"gone": WEB}) is desired


def test_a_best_effort_pod_stays_one() -> None:
    # Something else has written these: a resize never gives a pod its first amounts.
    desired = pod(container("web"))
    assert as_found(desired, NODE, {"web": WEB}) is desired


CPU = st.sampled_from(["2m", "100m", "1", "2500m"])
MEMORY = st.sampled_from(["8Mi", "64Mi", "1Gi", "2Gi"])


@st.composite
def guaranteed(draw: st.DrawFn) -> ResourceRequirements:
    amounts = {"cpu": draw(CPU), "memory": draw(MEMORY)}
    return ResourceRequirements(requests=amounts, limits=amounts)


@st.composite
def burstable(draw: st.DrawFn) -> ResourceRequirements:
    limits = draw(st.fixed_dictionaries({}, optional={"memory": MEMORY, "cpu": CPU}))
    return ResourceRequirements(requests={"cpu": "1m", "memory": "4Mi"}, limits=limits or None)


@given(
    sizes=st.lists(st.tuples(guaranteed(), guaranteed()), min_size=1, max_size=3)
    | st.lists(st.tuples(burstable(), burstable()), min_size=1, max_size=3),
    node=st.sampled_from(sorted(NODES)),
)
def test_a_pod_has_what_its_containers_were_made_with(
    sizes: list[tuple[ResourceRequirements, ResourceRequirements]], node: str
) -> None:
    def of(which: int) -> Pod:
        return pod(*(container(f"c{i}", resources=s[which]) for i, s in enumerate(sizes)))

    had, wanted, settings = of(0), of(1), NODES[node]
    made = _configured(had, settings)
    found = as_found(wanted, settings, made)
    assert _configured(found, settings) == made
    assert pod_qos(found) == pod_qos(wanted)
    assert as_found(had, settings, made) is had


def _configured(of: Pod, node: NodeSettings) -> dict[str, ConfiguredResources]:
    return {c.spec.name: had_of(container_resources(of, c, node)) for c in pod_containers(of)}
