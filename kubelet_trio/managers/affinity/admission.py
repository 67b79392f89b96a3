"""Admits pods by the topology manager's policy and scope: hints, merge, then allocation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.affinity.merge import NOWHERE, NodeSets, merge, offers
from kubelet_trio.managers.settings import (
    BEST_EFFORT,
    NONE,
    RESTRICTED,
    SINGLE_NUMA_NODE,
    TopologyOptions,
)
from kubelet_trio.managers.types import Hint, Hints, Machine, Manager, Refusal

UNALIGNED = Refusal("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
# Not preferred: with a preferred hint the memory manager would insist on the best nodes
# (Allocate in pkg/kubelet/cm/memorymanager/policy_static.go; nonePolicy.Merge gives this one).
_UNDECIDED = NOWHERE
_POLICIES = (NONE, BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)
_SCOPES = ("container", "pod")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one pod.

    Attributes:
        states: the managers' states with the pod's shares; as they were if it is refused.
        refusal: why the pod is not admitted; None: it is.
        affinities: the nodes that each container was to be given, by name.
        aligned: how many containers (scope pod: pods) got all from one NUMA node for certain
            (container_aligned_compute_resources_count).
        misaligned: whether a container or pod found no such node
            (container_aligned_compute_resources_failure_count).
        is_error: whether the refusal counts in topology_manager_admission_errors_total.
    """

    states: tuple[Any, ...]
    refusal: Refusal | None = None
    affinities: Mapping[str, Hint] = field(default_factory=dict)
    aligned: int = 0
    misaligned: bool = False
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Affinity:
    """The topology manager's rules.

    Raises ValueError, on construction, for an unknown policy or scope, and for a machine that the
    options do not allow.
    """

    policy: str
    scope: str
    options: TopologyOptions
    machine: Machine
    _sets: NodeSets = field(init=False)

    def __post_init__(self) -> None:
        for name, value, known in (
            ("topologyManagerPolicy", self.policy, _POLICIES),
            ("topologyManagerScope", self.scope, _SCOPES),
        ):
            if value not in known:
                raise ValueError(f"{name}: {value!r} is none of {', '.join(known)}")
        count, most = len(self.machine.nodes), self.options.max_nodes
        closest = self.policy != NONE and self.options.prefer_closest
        sets = NodeSets.of(self.machine, prefer_closest=closest)
        if self.policy != NONE and count > most:
            raise ValueError(
                f"topologyManagerPolicy {self.policy} is not supported on machines with more "
                f"than {most} NUMA nodes, and this one has {count}: set the policy to none, or "
                f"max-allowable-numa-nodes in topologyManagerPolicyOptions to {count}"
            )
        if self.policy == SINGLE_NUMA_NODE:
            sets = NodeSets(sets.all)  # as upstream: the lowest node, whatever its own distance
        object.__setattr__(self, "_sets", sets)

    def merge(self, hints: Sequence[Hints]) -> tuple[Hint, bool]:
        """Return the best hint for what all managers offer, and whether the policy admits it."""
        if self.policy == NONE:
            return _UNDECIDED, True
        resources = offers(hints)
        if self.policy != SINGLE_NUMA_NODE:
            best = merge(resources, self._sets)
            return best, best.preferred or self.policy == BEST_EFFORT
        best = merge([list(filter(_is_single, each)) for each in resources], self._sets)
        if best.nodes == self._sets.all:
            best = Hint(None, best.preferred)
        return best, best.preferred

    def admit_pod(
        self, pod: Pod, managers: Sequence[Manager[Any]], states: tuple[Any, ...]
    ) -> Verdict:
        """Return the managers' states with a pod's shares, or why it gets none.

        Args:
            pod: the pod.
            managers: in the order in which they allocate: devices, CPUs, memory.
            states: the state of each of them. They are not changed: a refusal takes nothing.
        """
        if self.policy == NONE:
            return self._allocate_all(pod, managers, states, _UNDECIDED)
        if self.scope == "container":
            return self._admit_containers(pod, managers, states)
        hints = [
            manager.pod_hints(state, pod) for manager, state in zip(managers, states, strict=True)
        ]
        best, admits = self.merge(hints)
        if not admits:
            return self._unaligned(states, 0)
        return self._allocate_all(pod, managers, states, best)

    @property
    def _aligns(self) -> bool:
        """Whether the policy guarantees one NUMA node to whatever it admits."""
        return self.policy == SINGLE_NUMA_NODE

    def _admit_containers(
        self, pod: Pod, managers: Sequence[Manager[Any]], given: tuple[Any, ...]
    ) -> Verdict:
        states, affinities, aligned = given, dict[str, Hint](), 0
        for container in _containers(pod):
            hints = [
                manager.hints(state, pod, container)
                for manager, state in zip(managers, states, strict=True)
            ]
            best, admits = self.merge(hints)
            if not admits:
                return self._unaligned(given, aligned)
            taken = _allocate(pod, container, managers, states, best)
            if isinstance(taken, Refusal):
                return Verdict(given, taken, aligned=aligned, is_error=True)
            states = taken
            affinities[container.name] = best
            aligned += self._aligns
        return Verdict(states, affinities=affinities, aligned=aligned)

    def _allocate_all(
        self, pod: Pod, managers: Sequence[Manager[Any]], given: tuple[Any, ...], affinity: Hint
    ) -> Verdict:
        states = given
        for container in _containers(pod):
            taken = _allocate(pod, container, managers, states, affinity)
            if isinstance(taken, Refusal):
                return Verdict(given, taken, is_error=self.policy != NONE)
            states = taken
        affinities = {container.name: affinity for container in _containers(pod)}
        return Verdict(states, affinities=affinities, aligned=int(self._aligns))

    def _unaligned(self, given: tuple[Any, ...], aligned: int) -> Verdict:
        return Verdict(given, UNALIGNED, aligned=aligned, misaligned=self._aligns, is_error=True)


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)


def _containers(pod: Pod) -> Iterator[Container]:
    """Yield the containers in upstream's order: init containers lend theirs to the others."""
    if pod.spec is not None:
        yield from pod.spec.initContainers or ()
        yield from pod.spec.containers


def _allocate(
    pod: Pod,
    container: Container,
    managers: Sequence[Manager[Any]],
    states: tuple[Any, ...],
    affinity: Hint,
) -> tuple[Any, ...] | Refusal:
    taken = []
    for manager, state in zip(managers, states, strict=True):
        after = manager.allocate(state, pod, container, affinity)
        if isinstance(after, Refusal):
            return after
        taken.append(after)
    return tuple(taken)
