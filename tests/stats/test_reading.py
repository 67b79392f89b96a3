from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from kubelet_trio.cgroups import uid_of_pod_cgroup
from kubelet_trio.model import PodUid
from kubelet_trio.stats import Host, Memory, PsiLine, disk_usage, log_usage
from kubelet_trio.stats.cgroup_files import CgroupFiles
from kubelet_trio.stats.cgroup_parse import parse_v1, parse_v2, shares_of_weight
from kubelet_trio.stats.kernel_text import flat, parse_pressure, read_counts
from kubelet_trio.stats.proc_parse import parse_net_dev, parse_own_cgroup
from kubelet_trio.stats.read import read_host, read_networks
from kubelet_trio.stats.subjects import find_places
from kubelet_trio.stats.usage import Cpu, DeviceIo, Psi
from tests.harness import recorded
from tests.stats import trees

NOW = 1_700_000_100.0
PSI = Psi(PsiLine(1.5, 0.75, 0.2, 123456), PsiLine(0.5, 0.25, 0.1, 65432))
CPU = Cpu(
    usage=2_500_000_000,
    user=2_000_000_000,
    system=500_000_000,
    periods=40,
    throttled_periods=4,
    throttled=250_000_000,
    burst_periods=3,
    burst=125_000_000,
    quota=50_000,
)
MEMORY = Memory(
    usage=104857600,
    inactive_file=20971520,
    active_file=31457280,
    rss=41943040,
    cache=52428800,
    mapped_file=8388608,
    kernel=4194304,
    max_usage=110000000,
    failcnt=3,
    page_faults=1000,
    major_page_faults=7,
    own_page_faults=1000,
    own_major_page_faults=7,
    oom_kills=1,
    limit=134217728,
    swap=4096,
)


def test_version_2_is_read() -> None:
    usage = parse_v2({name: text.encode() for name, text in trees.V2.items()}, NOW)
    assert usage.cpu == replace(CPU, shares=500, psi=PSI)
    assert usage.memory == replace(MEMORY, psi=PSI)
    assert usage.memory.working_set == 104857600 - 20971520
    assert usage.io == {"8:0": DeviceIo(1048576, 2097152, 10, 20)}
    assert (usage.io_psi, usage.threads, usage.threads_max) == (PSI, 9, None)
    assert usage.pids == (101, 102)


def test_version_1_is_read() -> None:
    files = {n: text.encode() for part in trees.V1.values() for n, text in part.items()}
    usage = parse_v1(files, NOW)
    assert usage.cpu == replace(CPU, shares=512)
    assert usage.memory == replace(MEMORY, own_page_faults=900, own_major_page_faults=5)
    assert usage.io == {"8:0": DeviceIo(1048576, 2097152, 10, 20)}
    assert (usage.io_psi, usage.threads, usage.pids) == (None, 9, (101, 102))


def test_what_could_not_be_read_is_not_zero() -> None:
    assert parse_v2({}, NOW).cpu is None
    assert parse_v2({}, NOW).memory is None
    assert parse_v1({}, NOW).cpu is None
    assert parse_v1({}, NOW).threads is None
    assert parse_v2({"cpu.stat": b"usage_usec 1\n"}, NOW).cpu == Cpu(usage=1000)


def test_without_swap_accounting_there_is_no_swap_in_use() -> None:
    # The Go kubelet's metrics are there all the same, which an e2e test of them asks for.
    v2 = {name: text.encode() for name, text in trees.V2.items() if ".swap." not in name}
    memory = parse_v2(v2, NOW).memory
    assert memory is not None
    assert (memory.swap, memory.swap_limit) == (0, None)
    files = {n: text.encode() for part in trees.V1.values() for n, text in part.items()}
    memory = parse_v1({n: text for n, text in files.items() if ".memsw." not in n}, NOW).memory
    assert memory is not None
    assert (memory.swap, memory.swap_limit) == (0, None)


def test_a_working_set_is_never_negative() -> None:
    assert Memory(usage=5, inactive_file=9).working_set == 0


@given(st.binary() | st.text().map(str.encode))
def test_no_content_breaks_a_parser(text: bytes) -> None:
    flat(text)
    parse_v2(dict.fromkeys(trees.V2, text), NOW)
    parse_v1({n: text for part in trees.V1.values() for n in part}, NOW)


@pytest.mark.parametrize(("weight", "shares"), [(1, 2), (20, 500), (100, 2597), (10000, 262144)])
def test_weights_are_shares(weight: int, shares: int) -> None:
    assert shares_of_weight(weight) == shares


def test_interfaces_of_others_are_left_out() -> None:
    (eth0,) = parse_net_dev(trees.NET_DEV)
    assert (eth0.name, eth0.rx_bytes, eth0.tx_bytes) == ("eth0", 1000, 2000)
    assert (eth0.rx_packets, eth0.rx_errors, eth0.rx_dropped) == (10, 1, 2)
    assert (eth0.tx_packets, eth0.tx_errors, eth0.tx_dropped) == (20, 3, 4)


@pytest.mark.parametrize(("version", "path"), [(1, "/memory"), (2, "/unified"), (3, None)])
def test_the_own_cgroup(version: int, path: str | None) -> None:
    text = "4:cpu,cpuacct:/cpu\n2:memory:/memory\n0::/unified\n"
    assert parse_own_cgroup(text, version) == path


HOSTS = [
    pytest.param(trees.write_v1, trees.POD_V1, trees.CONTAINER_V1, id="v1"),
    pytest.param(trees.write_v2, trees.POD_V2, trees.CONTAINER_V2, id="v2"),
]


@pytest.mark.parametrize(("write", "pod", "container"), HOSTS)
def test_a_host_is_read_whole(tmp_path: Path, write: object, pod: str, container: str) -> None:
    assert callable(write)
    host: Host = write(tmp_path, pod, container, "/system.slice/agent.service")
    root = "/" + pod.split("/")[1]
    reading = read_host(host, [root, "/nothing"], everything=True, now=NOW)
    usage = reading.cgroups[container]
    assert usage.cpu is not None
    assert usage.cpu.usage == CPU.usage
    assert usage.memory is not None
    assert usage.memory.usage == MEMORY.usage
    assert reading.own_cgroup == "/system.slice/agent.service"
    assert reading.own_cgroup in reading.cgroups
    node = reading.node
    assert node.memory_capacity == 16000000 * 1024
    assert (node.swap_total, node.swap_free) == (1000000 * 1024, 600000 * 1024)
    assert (node.max_pid, node.processes, node.boot_time) == (126000, 345, 1_700_000_000.0)
    assert [i.name for i in node.network] == ["eth0"]
    assert reading.devices == {"8:0": "/dev/sda"}
    processes = reading.processes[container]
    assert (processes.fds, processes.sockets, processes.max_open_files) == (3, 1, 1024)
    assert [i.name for i in read_networks(host, {"a": 101, "b": 0, "c": 9999})["a"]] == ["eth0"]


def test_the_root_of_version_2_has_its_sums_from_proc(tmp_path: Path) -> None:
    node = read_host(trees.write_v2(tmp_path), [], everything=False, now=NOW).node
    assert node.usage.memory is not None
    assert node.usage.memory.usage == 12000000 * 1024
    assert node.usage.memory.psi == PSI
    assert node.usage.io_psi == PSI


def test_a_cgroup_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    host = trees.write_v2(tmp_path, trees.CONTAINER_V2)
    assert list(CgroupFiles(host).walk("/gone")) == []
    assert list(CgroupFiles(host).walk("/kubepods.slice"))[-1] == trees.CONTAINER_V2


def test_whose_a_cgroup_is() -> None:
    def pod_of(name: str) -> PodUid | None:
        return PodUid("uid") if "pod-uid" in name else None

    paths = [
        "/kubepods",
        "/kubepods/pod-uid",
        "/kubepods/pod-uid/abc",
        "/kubepods.slice/x/cri-containerd-def.scope",
        "/kubepods.slice/x/crio-ghi.scope",
        "/kubepods.slice/x/crio-conmon-ghi.scope",
        "/kubepods/pod-uid/unknown",
    ]
    places = find_places(paths, ["abc", "def", "ghi"], pod_of)
    assert places.pods == {"uid": "/kubepods/pod-uid"}
    assert places.containers == {"abc": paths[2], "def": paths[3], "ghi": paths[4]}


def test_logs_are_the_files_of_their_directory(tmp_path: Path) -> None:
    """fileMetricsByDir: neither the directory itself nor what is in others below it."""
    (tmp_path / "0.log").write_bytes(b"x" * 5000)
    (tmp_path / "0.log.20260101-000000.gz").write_bytes(b"x" * 5000)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/other").write_bytes(b"x" * 50_000)
    size, inodes = log_usage(str(tmp_path)) or (0, 0)
    assert inodes == 2
    assert size == sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir() if path.is_file())
    assert log_usage(str(tmp_path / "gone")) is None


def test_a_log_that_is_rotated_away_meanwhile_leaves_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0.log", "1.log"):
        (tmp_path / name).write_bytes(b"x" * 5000)
    scan = os.scandir

    @contextmanager
    def scanned(directory: str) -> Iterator[list[os.DirEntry[str]]]:
        with scan(directory) as entries:
            found = list(entries)
        (tmp_path / "0.log").unlink()
        yield found

    monkeypatch.setattr("os.scandir", scanned)
    assert log_usage(str(tmp_path)) == ((tmp_path / "1.log").stat().st_blocks * 512, 1)


def test_disk_usage_counts_as_du_does(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_bytes(b"x" * 10000)
    os.link(tmp_path / "sub" / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("/etc/passwd")
    size, inodes = disk_usage(str(tmp_path)) or (0, 0)
    paths = [tmp_path, tmp_path / "sub", tmp_path / "again", tmp_path / "link"]
    assert (size, inodes) == (sum(p.lstat().st_blocks for p in paths) * 512, 4)
    assert disk_usage(str(tmp_path / "gone")) is None
    assert disk_usage(str(tmp_path), lambda: True) is None


def test_a_recorded_node_of_version_2_is_read(tmp_path: Path) -> None:
    node = recorded.recorded_node(tmp_path)
    host = Host(2, {"": str(node.cgroup)}, proc=str(node.proc))
    reading = read_host(host, [recorded.PODS], everything=True, now=NOW)
    scopes = [path for path in reading.cgroups if path.endswith(".scope")]
    places = find_places(
        reading.cgroups,
        (recorded.CONTAINER, recorded.SANDBOX),
        lambda name: uid_of_pod_cgroup(name, "systemd"),
    )
    assert places.pods == {recorded.POD_UID: recorded.POD}
    assert set(places.containers.values()) == set(scopes)
    memory = reading.cgroups[places.containers[recorded.CONTAINER]].memory
    assert memory is not None
    assert (memory.usage, memory.oom_kills) == (331776, 1)
    pod = reading.cgroups[recorded.POD].memory
    assert pod is not None
    assert (pod.limit, pod.oom_kills) == (40 << 20, 3)
    assert pod.psi is not None
    whole = reading.node.usage.memory
    assert whole is not None
    assert whole.usage == (2021568 - 1577596) << 10


class _Counts(Struct):
    """Of lines of a name and a number."""

    anon: int = 0
    kernel: int | None = None
    pgfault: int = 0


_NAMES = st.sampled_from(["anon", "kernel", "pgfault", "file", "anon ", "pg", ""])
_NUMBERS = st.integers(0, 2**64 - 1).map(str) | st.sampled_from(
    ["", "-1", "1.5", "1e3", "007", "max", '"', "\\", "{}", "[1]", "true", "1 2", "1 anon"]
)
_LINES = st.lists(st.tuples(_NAMES, _NUMBERS).map(" ".join), max_size=6)


@given(_LINES, st.sampled_from(["\n", "", "\n\n", "\r\n", " \n"]))
def test_counts_are_those_of_the_lines(lines: list[str], end: str) -> None:
    text = ("\n".join(lines) + end).encode()
    found = flat(text)
    assert read_counts(_Counts, text) == _Counts(
        found.get("anon", 0), found.get("kernel"), found.get("pgfault", 0)
    )


@pytest.mark.parametrize(
    ("text", "some", "full"),
    [
        (trees.PRESSURE, PSI.some, PSI.full),
        (trees.PRESSURE.splitlines()[0] + "\n", PSI.some, PsiLine()),
        (trees.PRESSURE.splitlines()[1], PsiLine(), PSI.full),
        (trees.PRESSURE.removesuffix("\n"), PSI.some, PSI.full),
        ("\n".join(reversed(trees.PRESSURE.splitlines())), PSI.some, PSI.full),
        (trees.PRESSURE.replace("avg10=1.50", "avg10=-1.50"), PsiLine(), PSI.full),
        (trees.PRESSURE.replace("1.50", "100"), replace(PSI.some, avg10=100.0), PSI.full),
        ("", PsiLine(), PsiLine()),
    ],
)
def test_pressure_is_read_in_whatever_form(text: str, some: PsiLine, full: PsiLine) -> None:
    assert parse_pressure(text.encode()) == Psi(some, full)


@pytest.mark.parametrize("odd", ["8:16 dbytes=5 rbytes=7 wbytes=x", "8:16 rbytes=7", ""])
def test_devices_are_read_in_whatever_form(odd: str) -> None:
    text = f"8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0\n{odd}\n"
    found = parse_v2({"io.stat": text.encode()}, NOW).io
    assert found == {"8:0": DeviceIo(1, 2, 3, 4)} | ({"8:16": DeviceIo(7)} if odd else {})
