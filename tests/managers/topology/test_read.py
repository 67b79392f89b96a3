"""The machine as it is read from /sys and /proc, on recorded machines and on broken ones."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.managers import Cpu, Machine
from kubelet_trio.managers.topology import TopologyError, read_machine
from kubelet_trio.model import format_cpus, parse_cpus
from tests.managers.topology.trees import names, plant, record, write

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
MI, GI = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Shape:
    """What a recorded machine must give."""

    cpus: int
    cores: int
    packages: set[int]
    caches: set[int]
    nodes: dict[int, str]  # ID to CPUs
    dies: int = 1
    memory: tuple[int, ...] = ()  # Mi of each node; (): none is known
    first: tuple[int, ...] = ()  # distances of the first node
    offline: str = ""


SHAPES = {
    "xeon-2-sockets": Shape(
        32,
        16,
        {0, 1},
        {0, 1},
        {0: "0-7,16-23", 1: "8-15,24-31"},
        dies=2,
        memory=(46802, 48359),
        first=(10, 21),
    ),
    "xeon-sub-numa": Shape(
        80,
        40,
        {0, 1},
        {0, 1},
        {node: ",".join(str(cpu) for cpu in range(node, 80, 4)) for node in range(4)},
        dies=2,
        memory=(379387, 381019, 381019, 381018),
        first=(10, 21, 11, 21),
    ),
    "epyc-8-nodes": Shape(
        96,
        48,
        {0, 1},
        set(range(16)),
        {n: f"{6 * n}-{6 * n + 5},{6 * n + 48}-{6 * n + 53}" for n in range(8)},
        dies=2,
    ),
    "epyc-vm": Shape(2, 2, {0}, {0}, {0: "0-1"}, memory=(7642,), first=(10,)),
    # Without an ID the L3 of a node is not known: the cache has the number of the package.
    "arm-128": Shape(
        128,
        128,
        {36, 8442},
        {36, 8442},
        {n: f"{32 * n}-{32 * n + 31}" for n in range(4)},
        dies=2,
        memory=(128645, 129021, 129021, 127990),
        first=(10, 16, 32, 33),
    ),
    "arm-phone": Shape(8, 8, {0, 1, 2}, {0, 1, 2}, {0: "0-7"}, dies=3),
    "grace": Shape(20, 20, {36}, {36}, {0: "0-19"}, memory=(122566,), first=(10,)),
    "hybrid": Shape(20, 14, {0}, {0}, {0: "0-19"}, memory=(31728,), first=(10,)),
    "offline": Shape(
        12,
        7,
        {0, 1, 2, 3},
        {0, 1, 2, 3},
        {0: "0-1,3-4,6-12,15"},
        dies=4,
        memory=(16379,),
        first=(10,),
        offline="2,5,13-14",
    ),
    # Its distances are also to node 0, which is off.
    "offline-node": Shape(
        8, 8, {1}, {1}, {1: "5,7,9,11,13,15,17,19"}, memory=(65536,), offline="0-3,21-23"
    ),
    "power-8-nodes": Shape(
        256,
        64,
        {-1},
        {-1},
        {n: f"{32 * at}-{32 * at + 31}" for at, n in enumerate((0, 1, 4, 5, 8, 9, 12, 13))},
        memory=(57088, 64768, 65280, 65536, 65280, 65536, 65280, 55552),
        first=(10, 20, 40, 40, 40, 40, 40, 40),
    ),
    "power-gpu-memory": Shape(
        32,
        8,
        {0, 8},
        {0, 8},
        {0: "0-15", 8: "88-103", **dict.fromkeys(range(250, 256), "")},
        dies=2,
        memory=(126796, 130812, *[15360] * 6),
        first=(10, 40, *[80] * 6),
    ),
    "dies": Shape(
        64,
        32,
        {0, 1, 2, 3},
        set(range(8)),
        {n: f"{4 * n}-{4 * n + 3}" for n in range(16)},
        dies=8,
        memory=(250, *[251] * 6, 227, 251, 251, 251, 187, 251, 251, 251, 250),
        first=(10, *[20] * 15),
    ),
    "opteron-sparse": Shape(
        48,
        48,
        {0, 1, 2, 3},
        {0, 1, 2, 3},
        {n: f"{6 * at}-{6 * at + 5}" for at, n in enumerate((0, 1, 2, 33, 34, 45, 72, 73))},
        dies=4,
        memory=(8189, 16384, 8192, 16384, 8192, 16384, 8192, 16384),
        first=(10, 16, 16, 22, 16, 22, 16, 22),
    ),
    "memory-tiers": Shape(
        6,
        6,
        {0},
        {0},
        {0: "0-1", 1: "2-3", 2: "4-5", 4: "", 6: "", 8: "", 9: ""},
        memory=(2934, 978, 512, 512, 384, 384, 384),
        first=(10, *[20] * 6),
    ),
    "no-memory-no-cpu": Shape(
        8,
        4,
        {0, 1},
        {0, 1},
        {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7", **dict.fromkeys(range(4, 11), "")},
        dies=2,
        memory=(0, 0, 0, 0, 0, 95163, 96767, 759808, 95255, 96729, 761856),
        first=(10, 21, 13, 21, 12, 11, 14, 17, 21, 21, 28),
    ),
    "riscv-64": Shape(
        64,
        64,
        {0},
        {0},
        {0: "0-7,16-23", 1: "8-15,24-31", 2: "32-39,48-55", 3: "40-47,56-63"},
    ),
    "s390-drawers": Shape(8, 8, {2, 3}, {2, 3}, {0: "0-7"}, dies=2),
    "vmware": Shape(
        16,
        16,
        {0, 1},
        {0, 1},
        {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"},
        dies=2,
    ),
    "qemu": Shape(
        4,
        2,
        {0, 1},
        {0, 1},
        {0: "0-1", 1: "2-3"},
        dies=2,
        memory=(1913, 2014),
        first=(10, 21),
    ),
    "one-cpu": Shape(1, 1, {-1}, {-1}, {0: "0"}),
}


def test_every_recorded_machine_is_in_the_table() -> None:
    assert names() == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_recorded_machine_has_this_shape(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    machine = read_machine(plant(name, tmp_path))
    _check(machine)
    assert len(machine.cpus) == shape.cpus
    assert len({cpu.core for cpu in machine.cpus}) == shape.cores
    assert {cpu.package for cpu in machine.cpus} == shape.packages
    assert {cpu.cache for cpu in machine.cpus} == shape.caches
    assert {node.id: node.cpus for node in machine.nodes} == {
        node: parse_cpus(cpus) for node, cpus in shape.nodes.items()
    }
    assert len({cpu.die for cpu in machine.cpus}) == shape.dies
    memory = shape.memory or (0,) * len(machine.nodes)
    assert tuple(node.memory // MI for node in machine.nodes) == memory
    assert machine.nodes[0].distances == shape.first
    assert format_cpus(machine.offline) == shape.offline


@pytest.mark.parametrize("name", SHAPES)
def test_a_planted_machine_is_recorded_as_the_same_text(name: str, tmp_path: Path) -> None:
    again = tmp_path / "again"
    text = record(plant(name, tmp_path / "first"))
    for line in text.splitlines():
        assert ":" in line
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.txt").write_text(text)
    plant("x", again, tmp_path / "data")
    assert read_machine(again) == read_machine(tmp_path / "first")


def test_a_core_has_the_number_of_its_lowest_cpu(tmp_path: Path) -> None:
    machine = read_machine(plant("xeon-2-sockets", tmp_path))
    assert [cpu for cpu in machine.cpus if cpu.core == 3] == [
        Cpu(3, core=3, cache=0, node=0, package=0, die=0),
        Cpu(19, core=3, cache=0, node=0, package=0, die=0),
    ]


def test_huge_pages_are_counted_by_size(tmp_path: Path) -> None:
    machine = read_machine(plant("xeon-2-sockets", tmp_path))
    assert [dict(node.huge_pages) for node in machine.nodes] == [{2 * MI: 2048, GI: 0}] * 2


def test_each_node_has_its_own_huge_pages(tmp_path: Path) -> None:
    machine = read_machine(plant("qemu", tmp_path))
    assert [dict(node.huge_pages) for node in machine.nodes] == [{2 * MI: 0}, {2 * MI: 8}]


def test_two_sizes_of_huge_pages_are_told_apart(tmp_path: Path) -> None:
    root = plant("epyc-vm", tmp_path)
    write(root, f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages", "512")
    write(root, f"{NODE}/node0/hugepages/hugepages-1048576kB/nr_hugepages", "2")
    assert read_machine(root).nodes[0].huge_pages == {2 * MI: 512, GI: 2}


def test_isolated_cpus_are_known(tmp_path: Path) -> None:
    root = plant("hybrid", tmp_path)
    write(root, f"{CPU}/isolated", "2-3,8")
    assert read_machine(root).isolated == {2, 3, 8}


@pytest.mark.parametrize("text", ["", "(null)", "\0"])
def test_no_cpu_may_be_isolated(text: str, tmp_path: Path) -> None:
    root = plant("hybrid", tmp_path)
    write(root, f"{CPU}/isolated", text)
    assert read_machine(root).isolated == frozenset()


def test_a_list_of_cpus_may_end_with_a_nul(tmp_path: Path) -> None:
    """As some kernels of the recorded ARM server write it."""
    root = plant("epyc-vm", tmp_path)
    write(root, f"{NODE}/node0/cpulist", "0-1\n\0")
    assert len(read_machine(root).cpus) == 2


def test_a_node_without_memory_keeps_its_cpus(tmp_path: Path) -> None:
    root = plant("xeon-2-sockets", tmp_path)
    write(root, f"{NODE}/node1/meminfo", "Node 1 MemTotal:              0 kB")
    node = read_machine(root).nodes[1]
    assert (node.memory, len(node.cpus)) == (0, 16)


def test_a_cache_of_the_whole_node_is_no_uncore_cache(tmp_path: Path) -> None:
    """Its cores fall to the cache with the number of their package, as in the Go kubelet."""
    root = plant("xeon-2-sockets", tmp_path)
    write(root, f"{CPU}/cpu0/cache/index3/id", "7")  # shared with all of node 0
    assert read_machine(root).cpus[0].cache == 0


def test_a_cache_that_spans_nodes_is_an_uncore_cache(tmp_path: Path) -> None:
    root = plant("xeon-sub-numa", tmp_path)
    for cpu in range(0, 80, 2):
        write(root, f"{CPU}/cpu{cpu}/cache/index3/id", "5")
    assert {cpu.cache for cpu in read_machine(root).cpus if cpu.package == 0} == {5}


def test_the_search_for_caches_ends_at_the_first_that_cannot_be_read(tmp_path: Path) -> None:
    """As cAdvisor's does, in its order: cpu10 comes before cpu2."""
    root = plant("epyc-8-nodes", tmp_path)
    (root / f"{CPU}/cpu3/cache/index3/size").unlink()
    caches = {cpu.core: cpu.cache for cpu in read_machine(root).cpus if cpu.node == 0}
    assert caches == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}
    (root / f"{CPU}/cpu60/cache/index3/size").unlink()  # threads of a core: 12 and 60, 12 first
    caches = {cpu.core: cpu.cache for cpu in read_machine(root).cpus if cpu.node == 2}
    assert caches == {12: 4, 13: 4, 14: 4, 15: 5, 16: 5, 17: 5}


def test_two_cores_with_one_id_in_a_package_stay_two(tmp_path: Path) -> None:
    """ARM repeats core_id in each cluster; the kernel's list of threads tells them apart."""
    root = _flat(tmp_path, 4)
    for cpu in range(4):
        write(root, f"{CPU}/cpu{cpu}/topology/core_id", str(cpu % 2))
        write(root, f"{CPU}/cpu{cpu}/topology/thread_siblings_list", str(cpu))
    assert [cpu.core for cpu in read_machine(root).cpus] == [0, 1, 2, 3]


def test_without_a_list_of_threads_the_core_id_decides(tmp_path: Path) -> None:
    root = _flat(tmp_path, 4)
    for cpu in range(4):
        write(root, f"{CPU}/cpu{cpu}/topology/core_id", str(cpu % 2))
    assert [cpu.core for cpu in read_machine(root).cpus] == [0, 1, 0, 1]


def test_s390_has_one_id_for_all_caches(tmp_path: Path) -> None:
    root = plant("s390-drawers", tmp_path)
    for cpu in range(8):
        write(root, f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_map", "0f")
        write(root, f"{CPU}/cpu{cpu}/cache/index3/size", "65536K")
        write(root, f"{CPU}/cpu{cpu}/cache/index3/level", "3")
        write(root, f"{CPU}/cpu{cpu}/cache/index3/type", "Unified")
    machine = read_machine(root)
    found = {cpu.cache for cpu in machine.cpus if _has_cache(root, cpu.id)}
    assert found == {0}


def _has_cache(root: Path, cpu: int) -> bool:
    indexes = (root / f"{CPU}/cpu{cpu}/cache").iterdir()
    return all((each / "size").exists() for each in indexes)


def test_a_machine_without_nodes_has_the_memory_of_proc(tmp_path: Path) -> None:
    root = _flat(tmp_path, 2)
    write(root, f"{CPU}/cpu0/topology/core_id", "0")
    write(root, f"{CPU}/cpu1/topology/core_id", "0")
    write(root, "proc/meminfo", "MemTotal:        2048 kB\nMemFree: 1 kB")
    write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3")
    machine = read_machine(root)
    [node] = machine.nodes
    assert (node.id, node.cpus, node.memory) == (0, frozenset({0, 1}), 2 * MI)
    assert node.huge_pages == {2 * MI: 3}
    assert [cpu.core for cpu in machine.cpus] == [0, 0]


CPUINFO = """processor\t: 0
physical id\t: 0
core id\t\t: 4

processor\t: 1
physical id\t: 1
core id\t\t: 4

processor\t: 2
physical id\t: 0
core id\t\t: 4
"""


def test_a_container_without_sys_has_the_cores_of_cpuinfo(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", CPUINFO)
    cpus = read_machine(tmp_path).cpus
    assert [(cpu.id, cpu.core, cpu.package) for cpu in cpus] == [(0, 0, 0), (1, 1, 1), (2, 0, 0)]


def test_cpus_of_which_nothing_says_more_are_cores(tmp_path: Path) -> None:
    write(tmp_path, f"{CPU}/online", "0-2")
    machine = read_machine(tmp_path)
    assert [(cpu.core, cpu.package, cpu.node) for cpu in machine.cpus] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]


def test_a_cpu_without_a_core_is_left_out_beside_others(tmp_path: Path) -> None:
    """As cAdvisor leaves it out."""
    root = plant("epyc-vm", tmp_path)
    (root / f"{CPU}/cpu1/topology/core_id").unlink()
    machine = read_machine(root)
    assert [cpu.id for cpu in machine.cpus] == [0]
    assert machine.nodes[0].cpus == {0}


def test_without_a_list_of_online_cpus_all_are_online(tmp_path: Path) -> None:
    root = plant("offline", tmp_path)
    assert not (root / f"{CPU}/online").exists()
    write(root, f"{NODE}/node0/cpulist", "0-15")
    machine = read_machine(root)
    assert (len(machine.cpus), machine.offline) == (12, frozenset({2, 5, 13, 14}))


def test_without_a_list_of_its_cpus_a_node_has_those_of_its_directory(tmp_path: Path) -> None:
    root = plant("xeon-2-sockets", tmp_path)
    for node, cpus in ((0, range(8)), (1, range(8, 16))):
        (root / f"{NODE}/node{node}/cpulist").unlink()
        for cpu in cpus:
            (root / f"{NODE}/node{node}/cpu{cpu}").mkdir()
    assert [format_cpus(node.cpus) for node in read_machine(root).nodes] == ["0-7", "8-15"]


BROKEN = [
    (f"{CPU}/online", "0-", "expected a list of CPUs such as 0-3,8, found '0-'"),
    (f"{CPU}/isolated", "nohz", "expected a list of CPUs"),
    (f"{CPU}/cpu1/topology/core_id", "x", "expected a number, found 'x'"),
    (f"{CPU}/cpu1/topology/physical_package_id", "", "expected a number, found ''"),
    (f"{CPU}/cpu0/cache/index3/shared_cpu_map", "g", "expected a mask of CPUs, found 'g'"),
    (f"{NODE}/node0/cpulist", "a" * 100, f"found '{'a' * 40}...'"),
    (f"{NODE}/node0/cpulist", "0," * 40000, "it is larger than 65536 bytes"),
    (f"{NODE}/node0/meminfo", "none", "expected MemTotal with a number of kB, found 'none'"),
    (f"{NODE}/node0/distance", "10 far", "expected distances such as 10 21, found '10 far'"),
    (
        f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages",
        "-1",
        "expected a number of pages",
    ),
]


@pytest.mark.parametrize(("path", "content", "problem"), BROKEN)
def test_a_broken_file_is_named(path: str, content: str, problem: str, tmp_path: Path) -> None:
    root = plant("epyc-vm", tmp_path)
    write(root, path, content)
    with pytest.raises(TopologyError) as caught:
        read_machine(root)
    assert str(caught.value).startswith(f"cannot read the machine's topology: /{path}: ")
    assert problem in str(caught.value)


def test_a_cpu_of_two_nodes_is_an_error(tmp_path: Path) -> None:
    root = plant("xeon-2-sockets", tmp_path)
    write(root, f"{NODE}/node1/cpulist", "7-15,24-31")
    with pytest.raises(TopologyError, match="CPU 7 is in node 0 too"):
        read_machine(root)


def test_no_cpu_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="no CPU is online"):
        read_machine(tmp_path)


def test_a_directory_in_a_files_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / CPU / "online").mkdir(parents=True)
    with pytest.raises(TopologyError, match=r"cpu/online: Is a directory"):
        read_machine(tmp_path)


def test_a_node_beyond_all_machines_is_an_error(tmp_path: Path) -> None:
    root = plant("epyc-vm", tmp_path)
    (root / f"{NODE}/node1024").mkdir()
    with pytest.raises(TopologyError, match="no node is above 1023"):
        read_machine(root)


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    _check(machine)
    assert machine.cpus


PATHS = st.sampled_from(
    [
        f"{CPU}/online",
        f"{CPU}/present",
        f"{CPU}/isolated",
        *(f"{CPU}/cpu{cpu}/topology/{name}" for cpu in (0, 1) for name in ("core_id", "die_id")),
        f"{CPU}/cpu0/topology/physical_package_id",
        f"{CPU}/cpu0/topology/thread_siblings_list",
        f"{CPU}/cpu0/topology/book_id",
        *(f"{CPU}/cpu0/cache/index3/{name}" for name in ("id", "level", "size", "shared_cpu_map")),
        f"{NODE}/node0/cpulist",
        f"{NODE}/node3/cpulist",
        f"{NODE}/node0/meminfo",
        f"{NODE}/node0/distance",
        f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages",
        f"{NODE}/node0/hugepages/hugepages-kB/nr_hugepages",
        "proc/cpuinfo",
        "proc/meminfo",
    ]
)
CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"", b"0", b"-1", b"0-1", b"1", b"65535", b"0-65535", b"10 10", b"\0", b"f,f"]
    ),
    st.text(alphabet="0123456789-, K", max_size=12).map(str.encode),
)


@given(broken=st.dictionaries(PATHS, st.one_of(st.none(), CONTENTS), max_size=6))
def test_whatever_files_say_there_is_a_machine_or_a_named_error(
    broken: dict[str, bytes | None],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = plant("epyc-vm", Path(directory))
        for path, content in broken.items():
            file = root / path
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        try:
            machine = read_machine(root)
        except TopologyError as exc:
            problem = exc
        else:
            _check(machine)
            return
        assert len(str(problem)) < 400
        assert (root / problem.path).parent.is_dir()


def _check(machine: Machine) -> None:
    """Fail where a machine contradicts itself."""
    assert list(machine.cpus) == sorted(machine.cpus)
    assert len({cpu.id for cpu in machine.cpus}) == len(machine.cpus)
    numbers = [node.id for node in machine.nodes]
    assert numbers
    assert numbers == sorted(set(numbers))
    for node in machine.nodes:
        assert node.cpus == {cpu.id for cpu in machine.cpus if cpu.node == node.id}
        assert len(node.distances) in (0, len(machine.nodes))
    assert {cpu.node for cpu in machine.cpus} <= set(numbers)
    for cpu in machine.cpus:
        core = [each for each in machine.cpus if each.core == cpu.core]
        assert cpu.core == min(each.id for each in core)
        assert len({(each.node, each.package, each.die, each.cache) for each in core}) == 1
    assert not machine.offline & {cpu.id for cpu in machine.cpus}


def _flat(root: Path, cpus: int) -> Path:
    """Return a root with CPUs of one package, without NUMA."""
    write(root, f"{CPU}/online", f"0-{cpus - 1}")
    for cpu in range(cpus):
        write(root, f"{CPU}/cpu{cpu}/topology/physical_package_id", "0")
    return root
