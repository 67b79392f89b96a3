"""What holds of every state, against an oracle that tries all sets of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers import Hint, Machine, Manager, NumaNode, Refusal, mask_of, nodes_of
from kubelet_trio.managers.memory import (
    Block,
    MemoryManager,
    MemoryState,
    encode_checkpoint,
    release_container,
    restore_state,
)
from kubelet_trio.model import PodUid
from tests.managers.memory.shapes import HUGE, MI, NO_AFFINITY, tried, uid, wanting
from tests.managers.pods import pod

GI = 1 << 30
PODS = [f"pod{n}" for n in range(4)]

amounts = st.integers(0, 4)
affinities = st.builds(Hint, st.none() | st.integers(1, 15), st.booleans())


@st.composite
def machines(draw: st.DrawFn) -> MemoryManager:
    """A machine of up to four nodes, some without memory, in units of 1 GiB."""
    ids = sorted(draw(st.sets(st.integers(0, 3), min_size=1)))
    nodes = []
    for node in ids:
        memory, huge = draw(amounts), draw(amounts)
        nodes.append(NumaNode(node, frozenset(), (memory + huge) * GI + MI, {GI: huge}))
    return MemoryManager(Machine((), tuple(nodes)), {ids[0]: {"memory": MI}})


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    def containers(kind: str, *, least: int, most: int, sidecars: bool) -> list[Container]:
        sizes = draw(
            st.lists(st.tuples(amounts, amounts, st.booleans()), min_size=least, max_size=most)
        )
        return [
            wanting(
                f"{kind}{n}",
                max(memory, 1) * GI,
                huge * GI if huge else None,
                restart="Always" if sidecars and always else "",
            )
            for n, (memory, huge, always) in enumerate(sizes)
        ]

    return pod(
        *containers("main", least=1, most=2, sidecars=False),
        init=containers("init", least=0, most=3, sidecars=True),
        uid=draw(st.sampled_from(PODS)),
    )


steps = st.lists(
    st.tuples(pods(), affinities) | st.sampled_from(PODS) | st.tuples(st.sampled_from(PODS)),
    max_size=8,
)


def lived(rules: MemoryManager, life: list[object]) -> Iterator[MemoryState]:
    """Yield the states of a node on which pods come and go."""
    state = rules.empty()
    yield state
    for step in life:
        match step:
            case str():
                state = rules.release(state, uid(step))
            case (str() as name,):
                state = release_container(state, uid(name), "init0")
            case (Pod() as new, Hint() as affinity):
                if (new.metadata and new.metadata.uid) in state.blocks:
                    continue
                found = tried(rules, state, new, affinity)
                state = state if isinstance(found, Refusal) else found
        yield state


def all_blocks(state: MemoryState) -> list[Block]:
    return [b for held in state.blocks.values() for blocks in held.values() for b in blocks]


@given(machines(), steps)
def test_nodes_never_give_more_than_they_have_and_groups_never_overlap(
    rules: MemoryManager, life: list[object]
) -> None:
    for state in lived(rules, life):
        blocks = all_blocks(state)
        for node, memory in state.nodes.items():
            assert {b.nodes for b in blocks if b.nodes >> node & 1} <= {memory.cells}
            assert memory.assignments == sum(b.nodes >> node & 1 for b in blocks)
            assert memory.assignments or memory.cells == 1 << node
            for name, table in memory.tables.items():
                assert table.free >= 0
                assert table.reserved >= 0
                assert table.free + table.reserved == table.allocatable
                own = [state.nodes[n].tables[name].reserved for n in nodes_of(memory.cells)]
                given_ = [b.size for b in blocks if b.nodes == memory.cells and b.type == name]
                assert sum(own) == sum(given_)


@given(machines(), steps)
def test_a_restart_changes_nothing(rules: MemoryManager, life: list[object]) -> None:
    probe = wanting("probe", 2 * GI, GI)
    for state in lived(rules, life):
        written = encode_checkpoint(state)
        again = restore_state(rules, written, "file")
        assert again == state
        assert encode_checkpoint(again) == written
        new = pod(probe, uid="probe")
        assert rules.hints(again, new, probe) == rules.hints(state, new, probe)
        assert tried(rules, again, new) == tried(rules, state, new)


@given(machines(), steps)
def test_all_pods_released_leave_an_empty_node(rules: MemoryManager, life: list[object]) -> None:
    for state in lived(rules, life):
        for name in PODS:
            state = rules.release(state, PodUid(name))
        assert state == rules.empty()


def oracle(rules: MemoryManager, state: MemoryState, wanted: dict[str, int]) -> list[Hint]:
    """Try all sets of nodes, by the blocks alone."""
    tables = {node: memory.tables for node, memory in rules.empty().nodes.items()}
    sets = [mask_of(c) for n in range(1, 5) for c in combinations(tables, n)]
    room = {
        mask: {name: sum(tables[n][name].allocatable for n in nodes_of(mask)) for name in wanted}
        for mask in sets
    }
    large = [m for m in sets if all(room[m][name] >= size for name, size in wanted.items())]
    fewest = min((m.bit_count() for m in large), default=len(tables))
    blocks = all_blocks(state)
    hints = []
    for mask in large:
        if any(b.nodes & mask and b.nodes != mask for b in blocks):
            continue
        used = {
            name: sum(b.size for b in blocks if b.nodes == mask and b.type == name)
            for name in wanted
        }
        if all(room[mask][name] - used[name] >= size for name, size in wanted.items()):
            hints.append(Hint(mask, preferred=mask.bit_count() == fewest))
    return hints


@given(machines(), steps, st.integers(1, 9), st.none() | st.integers(1, 6))
def test_hints_are_all_sets_that_fit_and_the_best_is_taken(
    rules: MemoryManager, life: list[object], memory: int, huge: int | None
) -> None:
    *_, state = lived(rules, life)
    wanted = {"memory": memory * GI} | ({HUGE: huge * GI} if huge else {})
    main = wanting("main", memory * GI, huge * GI if huge else None)
    new = pod(main, uid="new")
    expected = oracle(rules, state, wanted)
    assert rules.hints(state, new, main) == (
        dict.fromkeys(wanted, tuple(expected)) if expected else {}
    )
    assert rules.pod_hints(state, new) == rules.hints(state, new, main)
    found = rules.allocate(state, new, main, NO_AFFINITY)
    if not expected:
        assert isinstance(found, Refusal)
        return
    best = min(expected, key=lambda h: (h.nodes or 0).bit_count())
    assert isinstance(found, MemoryState)
    assert {b.nodes for b in found.blocks[uid("new")]["main"]} == {best.nodes}


@given(machines(), steps, st.integers(1, 9), affinities)
def test_an_affinity_is_kept_or_extended_as_little_as_possible(
    rules: MemoryManager, life: list[object], memory: int, affinity: Hint
) -> None:
    *_, state = lived(rules, life)
    main = wanting("main", memory * GI)
    new = pod(main, uid="new")
    found = rules.allocate(state, new, main, affinity)
    if isinstance(found, Refusal):
        return
    (taken,) = found.blocks[uid("new")]["main"]
    asked = affinity.nodes or 0
    assert taken.nodes & asked == asked
    assert taken.size == memory * GI
    fits = [
        h for h in oracle(rules, state, {"memory": memory * GI}) if (h.nodes or 0) & asked == asked
    ]
    if taken.nodes != affinity.nodes:
        assert taken.nodes.bit_count() == min((h.nodes or 0).bit_count() for h in fits)


def test_it_is_a_manager() -> None:
    rules: Manager[MemoryState] = MemoryManager(Machine((), ()), {})
    assert rules
