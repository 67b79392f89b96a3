"""Pods are admitted container by container or as a whole, and a refusal takes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kubelet_trio.managers import Hints, Refusal
from kubelet_trio.managers.affinity import Affinity, Verdict
from kubelet_trio.managers.settings import TopologyOptions
from tests.managers.affinity.make import Book, hint, hints, machine, pod

FULL = Refusal("UnexpectedAdmissionError", "Allocate failed due to no CPUs, which is unexpected")
UNALIGNED = Refusal("TopologyAffinityError", "Resources cannot be allocated with Topology locality")

POD = pod("main", "beside", init=["first"])


def one(text: str) -> Hints:
    return {"r": hints(text)}


def admit(
    policy: str,
    scope: str = "container",
    *,
    devices: Mapping[str, Any] | None = None,
    cpus: Mapping[str, Any] | None = None,
) -> Verdict:
    rules = Affinity(policy, scope, TopologyOptions(), machine([0, 1]))
    books = (Book("devices", **(devices or {})), Book("cpus", **(cpus or {})))
    return rules.admit_pod(POD, books, (("old",), ()))


def test_init_containers_come_first_and_each_has_its_own_nodes() -> None:
    verdict = admit(
        "best-effort",
        devices={"offered": {"main": one("1")}},
        cpus={"offered": {"main": one("0 1"), "first": one("0")}},
    )
    given = ("first@1", "main@10", "beside@11")
    assert verdict.states == (("old", *given), given)
    assert verdict.affinities == {"first": hint("0"), "main": hint("1"), "beside": hint("0,1")}
    assert verdict.refusal is None
    assert not verdict.aligned


def test_with_the_pod_scope_all_containers_have_the_nodes_of_the_pod() -> None:
    offered = {"offered": {"main": one("0")}, "whole": one("1")}
    verdict = admit("single-numa-node", "pod", cpus=offered)
    assert verdict.states[1] == ("first@10", "main@10", "beside@10")
    assert verdict.affinities == dict.fromkeys(["first", "main", "beside"], hint("1"))
    assert verdict.aligned == 1


def test_with_the_none_policy_nobody_is_asked_for_hints() -> None:
    verdict = admit("none", "pod", cpus={"whole": one("1"), "offered": {"main": one("1")}})
    assert verdict.states[1] == ("first@*?", "main@*?", "beside@*?")
    assert verdict.refusal is None


def test_without_hints_a_single_node_is_as_good_as_any() -> None:
    verdict = admit("single-numa-node")
    assert verdict.states[1] == ("first@*", "main@*", "beside@*")
    assert verdict.aligned == 3


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_hints_without_common_nodes_are_refused_and_nothing_is_taken(
    policy: str, scope: str
) -> None:
    verdict = admit(
        policy,
        scope,
        devices={"offered": {"main": one("0")}, "whole": one("0")},
        cpus={"offered": {"main": one("1")}, "whole": one("1")},
    )
    assert verdict.refusal == UNALIGNED
    assert verdict.states == (("old",), ())
    assert verdict.is_error
    # Only single-numa-node promises one node to each.
    assert verdict.misaligned == (policy == "single-numa-node")
    # `first` was aligned before `main` was refused, and upstream has counted it by then.
    assert verdict.aligned == (policy == "single-numa-node" and scope == "container")


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_best_effort_admits_without_common_nodes(scope: str) -> None:
    offered = {"offered": {"main": one("0")}, "whole": one("0")}
    against = {"offered": {"main": one("1")}, "whole": one("1")}
    verdict = admit("best-effort", scope, devices=offered, cpus=against)
    assert verdict.refusal is None
    assert verdict.affinities["main"] == hint("0,1?")


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_refusal_of_a_manager_is_passed_on_and_nothing_is_taken(policy: str, scope: str) -> None:
    verdict = admit(policy, scope, cpus={"refuses": {"main": FULL}})
    assert verdict.refusal == FULL
    assert verdict.states == (("old",), ())
    assert verdict.affinities == {}
    assert not verdict.misaligned
    # As upstream: with the none policy the errors of managers are not the topology manager's.
    assert verdict.is_error == (policy != "none")


def test_managers_allocate_in_their_order() -> None:
    late = Refusal("UnexpectedAdmissionError", "late")
    verdict = admit("none", devices={"refuses": {"main": FULL}}, cpus={"refuses": {"main": late}})
    assert verdict.refusal == FULL
