"""A scrape shows what the kernel's files say at that moment, whatever was kept of earlier ones."""

from __future__ import annotations

import errno
import mmap
import os
import re
import subprocess
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inotify_simple import INotify

from kubelet_trio.stats import CgroupUsage, Host, MachineInfo
from kubelet_trio.stats import cgroup_parse as parse
from kubelet_trio.stats.cadvisor import cadvisor_page
from kubelet_trio.stats.cgroup_files import CgroupFiles
from kubelet_trio.stats.open_files import Room
from kubelet_trio.stats.process_files import ProcessFiles
from kubelet_trio.stats.read import read_host
from kubelet_trio.stats.subjects import find_places
from kubelet_trio.stats.summary import Snapshot
from tests.stats import trees

NOW = 1_700_000_100.25
Write = Callable[..., Host]
# Files whose changed content no family of the page shows.
UNSEEN = {"memory.memsw.usage_in_bytes"}
CASES = [
    *(pytest.param(trees.write_v2, trees.CONTAINER_V2, "", name, id=name) for name in trees.V2),
    *(
        pytest.param(trees.write_v1, trees.CONTAINER_V1, controller, name, id=f"v1-{name}")
        for controller, files in trees.V1.items()
        for name in files
    ),
]


def page(host: Host, files: CgroupFiles | None) -> str:
    reading = read_host(
        host, ["/kubepods", "/kubepods.slice"], everything=True, now=NOW, files=files
    )
    snapshot = Snapshot("node", "", reading, (), find_places((), (), lambda _: None))
    lines = b"".join(cadvisor_page(snapshot, MachineInfo())).decode().splitlines()
    # The space on disks is that of this machine, where others write.
    return "\n".join(line for line in lines if 'device="/dev/sda1"' not in line)


def other(name: str, content: str) -> str:
    """Return different content of the same form."""
    if name == "cgroup.procs":
        return "101\n"
    if content == "max\n":
        return "77\n"
    if content.strip().isdecimal():
        return f"{4096 * 12345}\n"
    # All numbers but those of devices and periods.
    return re.sub(r"(?<=[ =])\d+(?=\n| [a-zr]|$)", lambda n: str(int(n[0]) + 1234567), content)


@pytest.mark.parametrize(("write", "container", "controller", "name"), CASES)
def test_a_change_of_any_file_of_a_cgroup_is_in_the_next_scrape(
    tmp_path: Path, write: Write, container: str, controller: str, name: str
) -> None:
    host = write(tmp_path, container)
    kept = CgroupFiles(host, 1000)
    for _ in range(2):
        before = page(host, kept)
    file = Path(f"{host.mounts[controller]}{container}/{name}")
    content = file.read_text()
    changed = other(name, content)
    assert changed != content
    file.write_text(changed)
    after = page(host, kept)
    assert after == page(host, None)
    assert after != before or name in UNSEEN
    file.write_text(content)
    assert page(host, kept) == before
    kept.close()


def run(host: Host) -> None:
    """Let processes run, without which they neither open nor close a file."""
    used = Path(f"{host.mounts['']}{trees.CONTAINER_V2}/cpu.stat")
    used.write_text(used.read_text().replace("usage_usec 25", "usage_usec 26"))


def change(file: Path, content: bytes) -> None:
    """Change a file as the kernel changes what it counts, which is no write to the directory."""
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[:] = content


def count(host: Host, container: str, names: Collection[str]) -> None:
    """Let the last count of files be another one."""
    for mount in host.mounts.values():
        for file in Path(f"{mount}{container}").iterdir():
            if file.name in names:
                head, last, tail = re.split(
                    rb"(\d)(?=\n[^\d]*$|\n\S+ \n$)", file.read_bytes(), maxsplit=1
                )
                change(file, head + b"%d" % (9 - int(last)) + tail)


@pytest.mark.parametrize("witness", ["CPU", "memory"])
@pytest.mark.parametrize(("write", "container"), [CASES[0].values[:2], CASES[-1].values[:2]])
def test_what_changes_only_when_something_runs_is_read_only_then(
    tmp_path: Path, write: Write, container: str, witness: str
) -> None:
    host = write(tmp_path, container)
    after_run = parse.AFTER_RUN_V2 if host.version == 2 else parse.AFTER_RUN_V1
    kept = CgroupFiles(host, 1000)
    for _ in range(2):
        before = page(host, kept)
    # As no kernel does it: nothing has run.
    count(host, container, after_run)
    assert page(host, kept) == before
    count(host, container, {"cpuacct.usage" if witness == "CPU" else "memory.usage_in_bytes"})
    count(host, container, {"cpu.stat" if witness == "CPU" else "memory.current"})
    assert page(host, kept) == page(host, None) != before
    # And again, from what has been planned anew.
    before = page(host, kept)
    count(host, container, after_run - {"cpu.stat"})
    assert page(host, kept) == before
    kept.close()


@pytest.mark.parametrize(("write", "container"), [CASES[0].values[:2], CASES[-1].values[:2]])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(data=st.data())
def test_a_scrape_shows_what_counts_on_while_nothing_runs(
    tmp_path_factory: pytest.TempPathFactory, write: Write, container: str, data: st.DataObject
) -> None:
    host = write(tmp_path_factory.mktemp("tree"), container)
    everything = {*trees.V2, *(name for files in trees.V1.values() for name in files)}
    at_rest = everything - parse.AFTER_RUN_V1 - parse.AFTER_RUN_V2 - parse.LIMITS - {"cpu.stat"}
    with closing(CgroupFiles(host, data.draw(st.sampled_from([0, 20, 1000])))) as kept:
        for _ in range(4):
            if data.draw(st.booleans()):
                changing = data.draw(st.sets(st.sampled_from(sorted(at_rest))))
            else:  # something runs
                changing = data.draw(st.sets(st.sampled_from(sorted(everything - parse.LIMITS))))
                changing |= {"cpuacct.usage", "cpu.stat"}
            count(host, container, changing - {"cgroup.procs"})
            assert page(host, kept) == page(host, None)


@pytest.mark.parametrize("name", ["101/stat", "101/limits", "101/fd/9", "loadavg", "diskstats"])
def test_a_change_of_a_process_is_in_the_next_scrape(tmp_path: Path, name: str) -> None:
    host = trees.write_v2(tmp_path, trees.CONTAINER_V2)
    kept = CgroupFiles(host, 1000)
    page(host, kept)
    before = page(host, kept)
    file = Path(host.proc) / name
    if name == "101/fd/9":
        file.symlink_to("socket:[78]")
    else:
        file.write_text(
            file.read_text().replace(" S ", " R ").replace("1024", "9").replace("5", "6")
        )
    if name in ("101/fd/9", "101/stat"):
        run(host)
    after = page(host, kept)
    assert after == page(host, None)
    assert (after != before) == (name.startswith("101"))
    kept.close()


def test_processes_are_looked_at_again_when_one_has_run(tmp_path: Path) -> None:
    host = trees.write_v2(tmp_path, trees.CONTAINER_V2)
    kept = CgroupFiles(host, 1000)
    for _ in range(2):
        before = page(host, kept)
    # As no process does it: it would have used CPU time.
    (Path(host.proc) / "102/fd/9").symlink_to("socket:[78]")
    state = Path(host.proc) / "102/stat"
    state.write_text(state.read_text().replace(" S ", " R "))
    assert page(host, kept) == before
    run(host)
    assert page(host, kept) == page(host, None)
    assert f'pod=""}} {4} ' in page(host, kept).partition("TYPE container_file_descriptors")[2]
    # Another process in its place.
    procs = Path(f"{host.mounts['']}{trees.CONTAINER_V2}/cgroup.procs")
    procs.write_text("101\n")
    assert page(host, kept) == page(host, None)
    kept.close()


def test_a_process_that_ended_is_let_go_of_and_its_number_is_free(tmp_path: Path) -> None:
    host = trees.write_v2(tmp_path, trees.CONTAINER_V2)
    kept = CgroupFiles(host, 1000)
    page(host, kept)
    count = kept.count
    procs = Path(f"{host.mounts['']}{trees.CONTAINER_V2}/cgroup.procs")
    procs.write_text("101\n")
    page(host, kept)
    assert kept.count == count - 2
    procs.write_text("101\n999999\n")  # one that has ended since
    assert page(host, kept) == page(host, None)
    assert kept.count == count - 2
    kept.close()
    assert kept.count == 0


def test_a_kernels_process_that_has_ended_is_not_shown_any_more() -> None:
    files = ProcessFiles(Host(2, {}), Room(10, 10))
    child = subprocess.Popen(["sleep", "60"])
    try:
        cgroups = {"/a": CgroupUsage(NOW, pids=(child.pid,))}
        for _ in range(2):
            found = files.read(cgroups)["/a"]
            assert found.fds >= 3
            assert sum(found.states.values()) == 1
            assert "" not in found.states
    finally:
        child.kill()
        child.wait()
    # What is open is not that of a process which has its number now.
    assert files.read(cgroups)["/a"].states == {"": 1}
    assert files.read({}) == {}
    files.close()


@pytest.mark.parametrize(("write", "container"), [CASES[0].values[:2], CASES[-1].values[:2]])
def test_limits_that_nobody_writes_stay_unread_and_closed(
    tmp_path: Path, write: Write, container: str
) -> None:
    host = write(tmp_path, container)
    kept = CgroupFiles(host, 1000)
    for _ in range(2):
        before = page(host, kept)
    open_now = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert not {path for path in open_now if path.rpartition("/")[2] in parse.LIMITS}
    assert any(path.endswith("/pids.current") for path in open_now)
    # As a cgroup's own file system does not: changed without a write.
    [limit] = Path(tmp_path).glob(f"*{container}/pids.max")
    change(limit, b"123\n")
    assert page(host, kept) == before
    limit.write_text("123\n")
    assert page(host, kept) == page(host, None) != before
    kept.close()
    assert kept.count == 0


@pytest.mark.parametrize("lost", ["controllers", "events", "watches"])
def test_limits_are_read_again_whenever_a_write_may_have_been_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    host = trees.write_v2(tmp_path, trees.CONTAINER_V2)
    if lost == "watches":
        # The user has no instance of inotify left.
        monkeypatch.setattr(INotify, "__init__", _refuse)
    kept = CgroupFiles(host, 1000)
    page(host, kept)
    limit = Path(f"{host.mounts['']}{trees.CONTAINER_V2}/pids.max")
    change(limit, b"123\n")
    if lost == "controllers":
        above = Path(f"{host.mounts['']}{trees.POD_V2}/cgroup.subtree_control")
        above.write_text("+pids")
    elif lost == "events":
        for _ in range(64):
            page(host, kept)
    assert page(host, kept) == page(host, None)
    kept.close()


def _refuse(*_args: object, **_more: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_process_with_very_many_files_has_all_counted_and_few_looked_at(tmp_path: Path) -> None:
    """Its links are what takes time: a container must not make the scrapes of others late."""
    opened = tmp_path / "7" / "fd"
    opened.mkdir(parents=True)
    (tmp_path / "7" / "stat").write_text("7 (sh) S 1")
    for number in range(5000):
        (opened / str(number)).symlink_to("socket:[1]")
    files = ProcessFiles(Host(2, {}, proc=str(tmp_path)), Room(10, 10))
    for _ in range(2):  # opened, then kept
        found = files.read({"/a": CgroupUsage(NOW, pids=(7,))})
        assert (found["/a"].fds, found["/a"].sockets) == (5000, 4096)
    files.close()
