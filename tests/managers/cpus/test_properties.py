"""On small machines of any shape: no CPU twice, never more than asked, and the best fit."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers import ANYWHERE, Cpu, Hint, Machine, Refusal, nodes_of
from kubelet_trio.managers.cpus import (
    CpuManager,
    CpuOptions,
    CpuState,
    cpu_ids,
    encode_checkpoint,
    exclusive_cpus,
    restore,
)
from kubelet_trio.model import PodUid
from tests.managers.cpus.machines import machine_of, regular
from tests.managers.pods import container, pod, sidecar

_OPTIONS = st.sampled_from(
    [
        CpuOptions(),
        CpuOptions(full_cores=True),
        CpuOptions(full_cores=True, by_cache=True),
        CpuOptions(by_cache=True),
        CpuOptions(across_nodes=True),
        CpuOptions(across_nodes=True, full_cores=True),
        CpuOptions(across_cores=True),
        CpuOptions(by_socket=True),
        CpuOptions(strict_reservation=True),
        CpuOptions(strict_reservation=True, by_cache=True, full_cores=True),
    ]
)
_REGULAR = st.builds(
    lambda nodes, per_node, threads, packages, caches: regular(
        nodes * per_node, threads, nodes=nodes, packages=packages, caches=caches * packages
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
)


@st.composite
def _irregular(draw: st.DrawFn) -> Machine:
    """A machine whose parts do not fit into each other: cores of several sizes, CPUs off."""
    count = draw(st.integers(1, 14))
    part = st.integers(0, 3)
    cpus = []
    for number in sorted(draw(st.sets(st.integers(0, 20), min_size=count, max_size=count))):
        core = draw(st.integers(0, count))
        cpus.append(Cpu(number, core, draw(part), core % 3, draw(part)))
    return machine_of(cpus)


_MACHINES = _REGULAR | _irregular()
_CPUS = st.sampled_from(("1", "2", "3", "4", "6", "500m"))


@st.composite
def _rules(draw: st.DrawFn) -> CpuManager:
    machine = draw(_MACHINES)
    known = [cpu.id for cpu in machine.cpus]
    reserved = draw(st.sets(st.sampled_from(known), max_size=3))
    return CpuManager(machine, frozenset(reserved), draw(_OPTIONS))


@st.composite
def _pods(draw: st.DrawFn, uid: str) -> Pod:
    init = [
        (sidecar if draw(st.booleans()) else container)(f"i{at}", draw(_CPUS))
        for at in range(draw(st.integers(0, 2)))
    ]
    main = [container(f"c{at}", draw(_CPUS)) for at in range(draw(st.integers(1, 2)))]
    return pod(*main, uid=uid, init=init)


_LOAD = st.integers(1, 8).flatmap(
    lambda count: st.tuples(*(_pods(str(number)) for number in range(count)))
)


def _containers(wanted: Pod) -> list[Container]:
    assert wanted.spec is not None
    return [*(wanted.spec.initContainers or ()), *wanted.spec.containers]


def _admit(rules: CpuManager, state: CpuState, wanted: Pod, affinity: Hint) -> CpuState | Refusal:
    for one in _containers(wanted):
        after = rules.allocate(state, wanted, one, affinity)
        if isinstance(after, Refusal):
            return after
        state = after
    return state


def _check(rules: CpuManager, state: CpuState, admitted: dict[str, Pod]) -> None:
    seen = state.shared
    for uid, own in state.exclusive.items():
        wanted = admitted[uid]
        names = {one.name: one for one in _containers(wanted)}
        for name, cpus in own.items():
            assert cpus.bit_count() == exclusive_cpus(wanted, names[name])
            assert not cpus & rules.reserved
        assert not state.given_to(uid) & seen, "a CPU is given twice"
        seen |= state.given_to(uid)
        assert wanted.spec is not None
        staying = [c.name for c in wanted.spec.initContainers or () if c.restartPolicy == "Always"]
        staying += [c.name for c in wanted.spec.containers]
        masks = [own[name] for name in staying if name in own]
        for one, other in combinations(masks, 2):
            assert not one & other, "containers that run at once share a CPU"
    assert seen == rules.known


@settings(max_examples=150)
@given(_rules(), _LOAD, st.data())
def test_no_cpu_is_given_twice_and_reserved_ones_never(
    rules: CpuManager, load: tuple[Pod, ...], data: st.DataObject
) -> None:
    state = rules.initial()
    admitted: dict[str, Pod] = {}
    for number, wanted in enumerate(load):
        nodes = data.draw(st.none() | st.integers(1, (1 << 4) - 1))
        after = _admit(rules, state, wanted, Hint(nodes, preferred=True))
        if isinstance(after, CpuState):
            state, admitted[str(number)] = after, wanted
        ends = st.none() | st.sampled_from(sorted(admitted)) if admitted else st.none()
        gone = data.draw(ends)
        if gone is not None:
            state = rules.release(state, PodUid(gone))
            del admitted[gone]
        _check(rules, state, admitted)
    for uid in admitted:
        state = rules.release(state, PodUid(uid))
    assert state == rules.initial()


@settings(max_examples=150)
@given(_rules(), st.data())
def test_as_many_cpus_are_taken_as_are_asked_for_and_only_free_ones(
    rules: CpuManager, data: st.DataObject
) -> None:
    free = data.draw(st.integers(0, rules.layout.all)) & rules.layout.all
    count = data.draw(st.integers(0, free.bit_count()))
    taken = rules.take(free, count)
    assert taken.bit_count() == count
    assert not taken & ~free


@settings(max_examples=150)
@given(_rules(), _LOAD, _pods("last"))
def test_a_restart_gives_the_same_answers(
    rules: CpuManager, load: tuple[Pod, ...], last: Pod
) -> None:
    state = rules.initial()
    for wanted in load:
        after = _admit(rules, state, wanted, ANYWHERE)
        state = after if isinstance(after, CpuState) else state
    for one in _containers(last):
        again = restore(encode_checkpoint(state), rules)
        assert again == state
        assert rules.hints(again, last, one) == rules.hints(state, last, one)
        assert rules.pod_hints(again, last) == rules.pod_hints(state, last)
        after = rules.allocate(state, last, one, ANYWHERE)
        assert rules.allocate(again, last, one, ANYWHERE) == after
        if isinstance(after, Refusal):
            return
        state = after


def _oracle(machine: Machine, free: frozenset[int], count: int) -> tuple[set[int], int]:
    """Return all masks of nodes with enough free CPUs, and how many it takes if all are free."""
    nodes = sorted({cpu.node for cpu in machine.cpus})
    fits, fewest = set(), len(nodes)
    for size in range(1, len(nodes) + 1):
        for chosen in combinations(nodes, size):
            there = [cpu.id for cpu in machine.cpus if cpu.node in chosen]
            if len(there) >= count:
                fewest = min(fewest, size)
            if sum(cpu in free for cpu in there) >= count:
                fits.add(sum(1 << node for node in chosen))
    return fits, fewest


@settings(max_examples=150)
@given(_MACHINES, st.data())
def test_all_fits_are_found_and_a_container_gets_cpus_of_the_one_that_is_chosen(
    machine: Machine, data: st.DataObject
) -> None:
    options = data.draw(_OPTIONS.filter(lambda o: not (o.by_socket or o.full_cores)))
    rules = CpuManager(machine, frozenset(), options)
    known = sorted(cpu.id for cpu in machine.cpus)
    free = data.draw(st.sets(st.sampled_from(known), min_size=1))
    count = data.draw(st.integers(1, len(free)))
    state = CpuState(sum(1 << cpu for cpu in free))
    wanted = container("main", str(count))
    hints = rules.hints(state, pod(wanted), wanted)["cpu"]
    fits, fewest = _oracle(machine, frozenset(free), count)
    assert hints is not None
    assert {hint.nodes for hint in hints} == fits
    for hint in hints:
        assert hint.nodes is not None
        assert hint.preferred == (hint.nodes.bit_count() == fewest)
    chosen = data.draw(st.sampled_from(hints))
    assert chosen.nodes is not None
    after = rules.allocate(state, pod(wanted), wanted, chosen)
    assert isinstance(after, CpuState)
    given_cpus = cpu_ids(after.given)
    assert {cpu.node for cpu in machine.cpus if cpu.id in given_cpus} <= set(nodes_of(chosen.nodes))


@settings(max_examples=150)
@given(_REGULAR, st.data())
def test_with_whole_cores_only_no_two_containers_share_a_core(
    machine: Machine, data: st.DataObject
) -> None:
    rules = CpuManager(machine, frozenset({0}), CpuOptions(full_cores=True))
    state = rules.initial()
    for number in range(6):
        wanted = container("main", str(data.draw(st.integers(1, 6))))
        after = rules.allocate(state, pod(wanted, uid=str(number)), wanted, ANYWHERE)
        state = after if isinstance(after, CpuState) else state
    for core in rules.layout.cores.values():
        users = [uid for uid in state.exclusive if state.given_to(uid) & core]
        assert len(users) <= 1
        assert not users or not core & (state.shared | rules.reserved)
