"""Node selectors, required affinity, and taints."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.models.core_v1 import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Taint,
    Toleration,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.pods.admission.affinity import matches_node, untolerated

LABELS = {"zone": "a", "cores": "8", "empty": ""}


def pod(*terms: NodeSelectorTerm, **fields: Any) -> Pod:
    affinity = None
    if terms:
        affinity = Affinity(
            nodeAffinity=NodeAffinity(
                requiredDuringSchedulingIgnoredDuringExecution=NodeSelector(list(terms))
            )
        )
    return Pod(
        metadata=ObjectMeta(name="p"), spec=PodSpec(containers=[], affinity=affinity, **fields)
    )


def expression(key: str, operator: str, *values: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(matchExpressions=[NodeSelectorRequirement(key, operator, list(values))])


def of_name(operator: str, *values: str) -> NodeSelectorTerm:
    requirement = NodeSelectorRequirement("metadata.name", operator, list(values))
    return NodeSelectorTerm(matchFields=[requirement])


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (pod(), True),
        (pod(nodeSelector={"zone": "a", "empty": ""}), True),
        (pod(nodeSelector={"zone": "b"}), False),
        (pod(nodeSelector={"none": ""}), False),
        (pod(expression("zone", "In", "b", "a")), True),
        (pod(expression("zone", "NotIn", "a")), False),
        (pod(expression("none", "NotIn", "a")), True),
        (pod(expression("empty", "Exists")), True),
        (pod(expression("none", "DoesNotExist")), True),
        (pod(expression("cores", "Gt", "7")), True),
        (pod(expression("cores", "Lt", "8")), False),
        (pod(expression("zone", "Gt", "1")), False),
        (pod(expression("zone", "Like", "a")), False),
        (pod(NodeSelectorTerm()), False),
        (pod(expression("zone", "In", "b"), expression("cores", "Exists")), True),
        (pod(of_name("In", "node")), True),
        (pod(of_name("NotIn", "node")), False),
        (pod(of_name("In", "node", "other")), False),
        (pod(expression("cores", "Exists"), nodeSelector={"zone": "b"}), False),
    ],
)
def test_a_pod_is_for_the_nodes_it_names(of: Pod, expected: bool) -> None:
    assert matches_node(of, "node", LABELS) is expected


@pytest.mark.parametrize(
    ("value", "is_number"),
    [
        *(("9", True), ("+9", True), ("009", True), ("9223372036854775807", True)),
        *(("1_0", False), (" 9", False), ("9\n", False), ("\u0669", False), ("", False)),
        *(("9.0", False), ("0x9", False), ("9223372036854775808", False)),
    ],
)
def test_numbers_are_read_as_go_reads_them(value: str, is_number: bool) -> None:
    """Source: strconv.ParseInt, base 10, 64 bits; what it refuses matches nothing."""
    more = pod(expression("cores", "Gt", "-1"))
    assert matches_node(more, "node", {"cores": value}) is is_number
    less = pod(expression("cores", "Lt", value))
    assert matches_node(less, "node", {"cores": "-1"}) is is_number


OUT = Taint(effect="NoExecute", key="gone", value="yes")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (None, OUT),
        (Toleration(operator="Exists"), None),
        (Toleration(key="gone", operator="Exists", effect="NoExecute"), None),
        (Toleration(key="gone", value="yes"), None),
        (Toleration(key="gone", operator="Equal", value="no"), OUT),
        (Toleration(key="gone", operator="Exists", effect="NoSchedule"), OUT),
        (Toleration(key="other", operator="Exists"), OUT),
        (Toleration(key="gone", operator="Gt", value="yes"), OUT),
    ],
)
def test_a_taint_must_be_tolerated(toleration: Toleration | None, expected: Taint | None) -> None:
    taints = [Taint(effect="NoSchedule", key="busy"), OUT]
    given = [toleration] if toleration is not None else []
    assert untolerated(taints, given, "NoExecute") == expected
