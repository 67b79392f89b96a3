"""The drawing of a machine: what stands where, in every width, with and without colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.managers import Cpu, Machine, NumaNode
from kubelet_trio.managers.topology import (
    ContainerHoldings,
    MachineDevice,
    MachineHoldings,
    MemoryHolding,
    draw_machine,
    read_machine,
)
from kubelet_trio.model import parse_cpus
from tests.managers.topology.trees import names, plant

MI, GI = 1 << 20, 1 << 30
DOCUMENT = Path(__file__).parents[3] / "docs" / "topology.md"


def machine_of(nodes: int = 2, cores: int = 8, threads: int = 2, caches: int = 1) -> Machine:
    """Return a machine with a socket for each node; threads are numbered as on most machines."""
    whole = nodes * cores
    cpus = tuple(
        Cpu(
            thread * whole + core,
            core=core,
            cache=core * caches // cores,
            node=core // cores,
            package=core // cores,
            die=core // cores,
        )
        for thread in range(threads)
        for core in range(whole)
    )
    return Machine(
        cpus,
        tuple(
            NumaNode(
                node,
                frozenset(cpu.id for cpu in cpus if cpu.node == node),
                64 * GI,
                {2 * MI: 2048, GI: 0},
                tuple(10 if node == other else 21 for other in range(nodes)),
            )
            for node in range(nodes)
        ),
    )


HOLDINGS = MachineHoldings(
    reserved=parse_cpus("0,16"),
    shared=parse_cpus("0-1,14-17,30-31"),
    containers=(
        ContainerHoldings(
            "shop",
            "db-0",
            "postgres",
            parse_cpus("2-7,18-23"),
            (MemoryHolding("memory", 0b01, 24 * GI), MemoryHolding("hugepages-2Mi", 0b01, 2 * GI)),
        ),
        ContainerHoldings(
            "ml",
            "train-x7k2p",
            "trainer",
            parse_cpus("8-13,24-29"),
            (MemoryHolding("memory", 0b11, 40 * GI),),
            {"nvidia.com/gpu": ("GPU-2", "GPU-3")},
        ),
        ContainerHoldings("ml", "notebook", "jupyter", devices={"nvidia.com/gpu": ("GPU-0",)}),
    ),
    devices=(
        MachineDevice("nvidia.com/gpu", "GPU-0", 0b01),
        MachineDevice("nvidia.com/gpu", "GPU-1", 0b01, healthy=False),
        MachineDevice("nvidia.com/gpu", "GPU-2", 0b10),
        MachineDevice("nvidia.com/gpu", "GPU-3", 0b10),
        *(MachineDevice("smarter-devices/fuse", f"fuse{n}") for n in range(100)),
    ),
    reserved_memory=(MemoryHolding("memory", 0b01, 2 * GI), MemoryHolding("memory", 0b10, GI)),
    policies={"cpu": "static", "memory": "Static", "topology": "restricted"},
)


def test_the_document_shows_what_is_drawn() -> None:
    shown = re.findall(r"```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert draw_machine(machine_of(), HOLDINGS, width=80) in shown


def test_in_ascii_with_caches_of_some_cores() -> None:
    drawn = draw_machine(
        machine_of(1, 4, 1, caches=2),
        MachineHoldings(
            frozenset({0}), frozenset({1}), (ContainerHoldings("a", "b", "c", frozenset({2, 3})),)
        ),
        width=44,
        unicode=False,
    )
    assert (
        drawn
        == """\
1 socket - 1 NUMA node - 4 cores - 4 CPUs -
64Gi

+- NUMA node 0 ----------------------------+
| cache 0  cache 1                         |
| #0 .1    A2 A3                           |
|                                          |
| memory    64Gi                           |
| huge 2Mi  4Gi                            |
+------------------------------------------+

  .  shared        CPUs 1
  #  reserved      CPUs 0

  A  a/b c  CPUs 2-3
"""
    )


def test_a_machine_alone_is_drawn_without_holders() -> None:
    drawn = draw_machine(machine_of(1, 2, 1), None)
    assert "·0 ·1" in drawn
    assert "shared" not in drawn


def test_each_cpu_has_the_sign_of_its_state() -> None:
    machine = Machine(
        machine_of(1, 8, 1).cpus,
        machine_of(1, 8, 1).nodes,
        isolated=frozenset({2, 4}),
        offline=frozenset({8, 9}),
    )
    holdings = MachineHoldings(
        frozenset({0}),
        frozenset({0, 1, 2, 5}),
        (ContainerHoldings("a", "b", "c", frozenset({3, 4})),),
    )
    drawn = draw_machine(machine, holdings)
    for cell in ("▒0 ", "·1 ", "○2 ", "A3 ", "A4 ", "·5 ", "?6 ", "?7 ", "✗8 ", "✗9 "):
        assert cell in drawn
    for line in (
        "·  shared        CPUs 1, 5",
        "○  isolated      CPUs 2",
        "?  unassigned    CPUs 6-7",
    ):
        assert line in drawn


def test_of_two_holders_of_a_cpu_the_later_is_drawn() -> None:
    init = ContainerHoldings("a", "b", "init", frozenset({1}))
    main = ContainerHoldings("a", "b", "main", frozenset({1, 2}))
    drawn = draw_machine(machine_of(1, 4, 1), MachineHoldings(containers=(init, main)))
    assert "B1 B2" in drawn
    assert "A  a/b init  CPUs 1" in drawn


def test_sockets_of_one_node_are_drawn_in_it() -> None:
    cpus = tuple(Cpu(n, n, cache=n, node=0, package=n, die=n) for n in range(3))
    machine = Machine(cpus, (NumaNode(0, frozenset({0, 1, 2}), GI),))
    drawn = draw_machine(machine, None)
    assert "socket 0  socket 1  socket 2" in drawn
    assert "Socket" not in drawn
    assert "cache" not in drawn


def test_a_node_without_cpus_stands_beside_the_sockets() -> None:
    machine = machine_of()
    far = NumaNode(2, frozenset(), 512 * GI)
    drawn = draw_machine(Machine(machine.cpus, (*machine.nodes, far)), None)
    assert "NUMA node 2" in drawn
    assert "no CPUs" in drawn


def test_a_machine_too_large_for_numbers_has_those_of_its_rows() -> None:
    drawn = draw_machine(machine_of(8, 32), None)
    assert "│ 224 · · · ·" in drawn
    assert "·224" not in drawn
    assert "A column is a core" in drawn


def test_more_containers_than_letters_have_two() -> None:
    containers = tuple(
        ContainerHoldings("a", f"p{n}", "c", frozenset({n}), (MemoryHolding("memory", 1, GI),))
        for n in range(60)
    )
    drawn = draw_machine(machine_of(1, 60, 1), MachineHoldings(containers=containers))
    assert "AA0 " in drawn
    assert "CH59" in drawn


def test_devices_that_do_not_fit_are_counted() -> None:
    holdings = MachineHoldings(
        containers=(ContainerHoldings("a", "b", "c", devices={"d/e": ("7",)}),),
        devices=tuple(MachineDevice("d/e", str(n), 1, healthy=n != 3) for n in range(90)),
    )
    assert "d/e       ·x88 !x1 Ax1" in draw_machine(machine_of(1), holdings)


def test_what_plugins_call_their_devices_cannot_steer_the_terminal() -> None:
    name = "\x1b[2Jd\x07/e"
    holdings = MachineHoldings(
        containers=(ContainerHoldings("a", "b", "c", devices={name: ("\x1b[31m",)}),),
        devices=(MachineDevice(name, "\x1b[31m"),),
        policies={"cpu": "\x1b[2J"},
    )
    drawn = draw_machine(machine_of(1), holdings)
    assert "\x1b" not in drawn
    assert "\x07" not in drawn


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_recorded_machine_fits_the_terminal(name: str, width: int, tmp_path: Path) -> None:
    machine = read_machine(plant(name, tmp_path))
    drawn = draw_machine(machine, None, width=width)
    assert max(map(len, drawn.splitlines())) <= width
    if "A column is a core" not in drawn:
        for cpu in machine.cpus:
            assert re.search(rf"·{cpu.id}\b", drawn)


machines = st.builds(
    machine_of,
    nodes=st.integers(1, 9),
    cores=st.integers(1, 40),
    threads=st.integers(1, 4),
    caches=st.integers(1, 9),
)
texts = st.text(max_size=20)
cpu_sets = st.frozensets(st.integers(0, 300), max_size=20)
memories = st.lists(
    st.builds(
        MemoryHolding,
        st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi", "cpu"]),
        st.integers(1, 0x7FF),
        st.integers(0, 1 << 60),
    ),
    max_size=4,
).map(tuple)
holdings = st.builds(
    MachineHoldings,
    cpu_sets,
    cpu_sets,
    st.lists(
        st.builds(
            ContainerHoldings,
            texts,
            texts,
            texts,
            cpu_sets,
            memories,
            st.dictionaries(texts, st.lists(texts, max_size=3).map(tuple), max_size=2),
        ),
        max_size=70,
    ).map(tuple),
    st.lists(
        st.builds(
            MachineDevice,
            st.sampled_from(["gpu", "a.example/b"]) | texts,
            texts,
            st.none() | st.integers(0, 0x7FF),
            st.booleans(),
        ),
        max_size=40,
    ).map(tuple),
    memories,
    st.dictionaries(texts, texts, max_size=3),
)


@given(
    machine=machines, held=st.none() | holdings, width=st.integers(0, 240), unicode=st.booleans()
)
def test_a_drawing_fits_and_colours_change_no_character(
    machine: Machine, held: MachineHoldings | None, width: int, unicode: bool
) -> None:
    drawn = draw_machine(machine, held, width=width, unicode=unicode)
    lines = drawn.split("\n")
    assert max(map(len, lines)) <= max(width, 40)
    assert drawn.replace("\n", "").isprintable()
    assert unicode or drawn.isascii()
    coloured = draw_machine(machine, held, width=width, unicode=unicode, colour=True)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.split("\n")] == lines
