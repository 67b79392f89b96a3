"""The managers of CPUs and memory under each policy of the topology manager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.managers import Cpu, Machine, NumaNode
from kubelet_trio.managers import cpus as cpu_room
from kubelet_trio.managers import memory as memory_room
from kubelet_trio.managers.affinity import Affinity, Verdict
from kubelet_trio.managers.cpus import CpuManager, CpuState
from kubelet_trio.managers.memory import MemoryManager, MemoryState
from kubelet_trio.managers.settings import TopologyOptions
from kubelet_trio.model import PodUid, pod_containers, pod_uid
from tests.managers.pods import pod

GI = 1 << 30
POLICIES = ["none", "best-effort", "restricted", "single-numa-node"]
PODS = ["a", "b", "c", "d"]
RESERVED = frozenset({0})

States = tuple[CpuState, MemoryState]


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with its managers."""

    cpus: CpuManager
    memory: MemoryManager

    @property
    def empty(self) -> States:
        return self.cpus.initial(), self.memory.empty()

    def admit(self, states: States, new: Pod, policy: str, scope: str) -> Verdict:
        rules = Affinity(policy, scope, TopologyOptions(), self.memory.machine)
        return rules.admit_pod(new, (self.cpus, self.memory), states)

    def release(self, states: States, uid: PodUid) -> States:
        return self.cpus.release(states[0], uid), self.memory.release(states[1], uid)

    def restarted(self, states: States) -> States:
        """Return the states that another start reads from the checkpoints."""
        cpus = cpu_room.restore(cpu_room.encode_checkpoint(states[0]), self.cpus, "cpu")
        written = memory_room.encode_checkpoint(states[1])
        return cpus, memory_room.restore_state(self.memory, written, "memory")


@st.composite
def machines(draw: st.DrawFn) -> Node:
    """Up to four NUMA nodes with up to six CPUs and four GiB each; CPU 0 is the system's."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=4))
    cpus: list[Cpu] = []
    nodes = []
    for node, (count, memory) in enumerate(sizes):
        ids = range(len(cpus), len(cpus) + count)
        cpus += [Cpu(id_, id_, node, node, node) for id_ in ids]
        nodes.append(NumaNode(node, frozenset(ids), memory * GI + 1))
    machine = Machine(tuple(cpus), tuple(nodes))
    return Node(CpuManager(machine, RESERVED), MemoryManager(machine, {0: {"memory": 1}}))


def wanting(name: str, cpus: int, memory: int) -> Container:
    amounts = {"cpu": str(cpus), "memory": f"{memory}Gi"}
    return Container(name, resources=ResourceRequirements(requests=amounts, limits=dict(amounts)))


sizes = st.tuples(st.integers(1, 4), st.integers(1, 5))


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    main = draw(st.lists(sizes, min_size=1, max_size=2))
    init = draw(st.lists(sizes, max_size=2))
    return pod(
        *(wanting(f"main{n}", *size) for n, size in enumerate(main)),
        init=[wanting(f"init{n}", *size) for n, size in enumerate(init)],
        uid=draw(st.sampled_from(PODS)),
    )


policies = st.sampled_from(POLICIES)
scopes = st.sampled_from(["container", "pod"])
lives = st.lists(pods() | st.sampled_from(PODS), max_size=8)


def lived(
    node: Node, life: list[Pod | str], policy: str, scope: str
) -> Iterator[tuple[States, dict[PodUid, Pod]]]:
    """Yield the states of a node on which pods come and go, and the admitted pods."""
    states, there = node.empty, dict[PodUid, Pod]()
    yield states, there
    for step in life:
        if isinstance(step, str):
            states = node.release(states, PodUid(step))
            there = {uid: old for uid, old in there.items() if uid != step}
        elif pod_uid(step) not in there:
            verdict = node.admit(states, step, policy, scope)
            if verdict.refusal is not None:
                assert verdict.states == states
                continue
            cpus, memory = verdict.states
            states, there = (cpus, memory), {**there, pod_uid(step): step}
        yield states, there


def nodes_of_cpus(node: Node, cpus: int) -> int:
    """Return the mask of the NUMA nodes of a mask of CPUs."""
    return sum({1 << cpu.node for cpu in node.memory.machine.cpus if cpus >> cpu.id & 1})


@given(machines(), lives, policies, scopes)
def test_no_cpu_is_given_twice_and_all_get_what_they_ask_for(
    node: Node, life: list[Pod | str], policy: str, scope: str
) -> None:
    for (cpus, memory), there in lived(node, life, policy, scope):
        given_ = [cpus.given_to(uid) for uid in there]
        assert sum(mask.bit_count() for mask in given_) == cpus.given.bit_count()
        assert not cpus.given & cpus.shared
        assert not any(cpus.given >> id_ & 1 for id_ in RESERVED)
        for uid, admitted in there.items():
            for _, container in pod_containers(admitted):
                assert container.resources is not None
                asked = (container.resources.requests or {})["cpu"]
                assert (cpus.own(uid, container.name) or 0).bit_count() == int(asked)
                assert memory_room.container_blocks(memory, uid, container.name)


@given(machines(), lives, scopes)
def test_single_numa_node_keeps_cpus_and_memory_together(
    node: Node, life: list[Pod | str], scope: str
) -> None:
    for (cpus, memory), there in lived(node, life, "single-numa-node", scope):
        for uid, admitted in there.items():
            used = set()
            for _, container in pod_containers(admitted):
                mask = nodes_of_cpus(node, cpus.own(uid, container.name) or 0)
                assert mask.bit_count() == 1
                assert memory_room.memory_nodes(memory, uid, container.name) == mask
                used.add(mask)
            assert len(used) == 1 or scope == "container"


@given(machines(), lives, policies, sizes)
def test_single_numa_node_admits_whenever_some_node_has_enough_of_both(
    node: Node, life: list[Pod | str], before: str, size: tuple[int, int]
) -> None:
    *_, (states, _) = lived(node, life, before, "container")
    cpus, memory = states
    blocks = [b for held in memory.blocks.values() for bs in held.values() for b in bs]
    free_cpus = node.cpus.available(cpus)
    room = node.memory.empty().nodes
    fits = False
    for numa in node.memory.machine.nodes:
        mine = 1 << numa.id
        idle = sum(free_cpus >> id_ & 1 for id_ in numa.cpus)
        left = room[numa.id].tables["memory"].allocatable
        left -= sum(block.size for block in blocks if block.nodes == mine)
        grouped = any(b.nodes & mine and b.nodes != mine for b in blocks)
        fits = fits or (idle >= size[0] and left >= size[1] * GI and not grouped)
    new = pod(wanting("main", *size), uid="new")
    for scope in ("container", "pod"):
        assert (node.admit(states, new, "single-numa-node", scope).refusal is None) == fits


@given(machines(), lives, policies, scopes, pods())
def test_the_answer_after_a_restart_is_the_same(
    node: Node, life: list[Pod | str], policy: str, scope: str, new: Pod
) -> None:
    *_, (states, there) = lived(node, life, policy, scope)
    again = node.restarted(states)
    assert again == states
    if pod_uid(new) not in there:
        assert node.admit(again, new, policy, scope) == node.admit(states, new, policy, scope)


@given(machines(), lives, policies, scopes)
def test_all_is_given_back(node: Node, life: list[Pod | str], policy: str, scope: str) -> None:
    *_, (states, there) = lived(node, life, policy, scope)
    for uid in there:
        states = node.release(states, uid)
    assert states == node.empty
