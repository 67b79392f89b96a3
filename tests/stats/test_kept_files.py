"""Files of cgroups that stay open: the same readings, and nothing held for nobody."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.model import inline_offload
from kubelet_trio.stats import Host, StatsProvider, StatsSettings
from kubelet_trio.stats.cgroup_files import CgroupFiles
from kubelet_trio.stats.kept_files import most_files
from kubelet_trio.stats.read import read_host
from kubelet_trio.testing import FakeRuntime, TrioClock
from tests.stats import trees

V1 = (trees.write_v1, trees.POD_V1, trees.CONTAINER_V1)
V2 = (trees.write_v2, trees.POD_V2, trees.CONTAINER_V2)
Case = tuple[Callable[..., Host], str, str]

# What happens to a tree between two readings.
_EDITS = st.sampled_from(
    ["use", "psi", "grow", "shrink", "nest", "unnest", "limit", "other", "rest", "few"]
)


@dataclass
class Tree:
    """A host whose containers come and go, and count."""

    host: Host
    pod: str
    container: str
    count: int = 0
    grown: list[str] = field(default_factory=list)

    def edit(self, what: str) -> None:
        self.count += 1
        if what == "use":
            self._write("cpu.stat", f"usage_usec {self.count}\n")
            self._write("cpuacct.usage", f"{self.count}\n")
            self._write("memory.stat", f"anon {self.count}\ntotal_rss {self.count}\n")
        elif what == "psi":
            self._write("cpu.pressure", trees.PRESSURE.replace("123456", str(self.count)))
        elif what == "grow":
            self._copy(f"{self.pod}/made-{self.count}")
        elif what == "nest":
            self._copy(f"{self.container}/nested-{self.count}")
        elif what in ("shrink", "unnest") and self.grown:
            path = self.grown.pop(0)
            for mount in self.host.mounts.values():
                shutil.rmtree(mount + path)
        elif what == "limit":
            self._write("memory.max", f"{self.count}\n")
            self._write("memory.limit_in_bytes", f"{self.count}\n")
            self._write("memory.events", f"max {self.count}\noom_kill 1\n")
        elif what == "other":
            self._write("io.stat", f"8:0 rbytes={self.count} wbytes=2 rios=3 wios=4 dbytes=5\n")
            self._write("blkio.throttle.io_serviced", f"8:0 Read {self.count}\n")
            self._write("cgroup.procs", f"{self.count}\n")

    def _write(self, name: str, content: str) -> None:
        for mount in self.host.mounts.values():
            file = Path(f"{mount}{self.container}/{name}")
            if file.exists():
                file.write_text(content)

    def _copy(self, path: str) -> None:
        for mount in self.host.mounts.values():
            directory = Path(mount + path)
            directory.mkdir()
            for file in Path(mount + self.container).iterdir():
                if file.is_file():
                    shutil.copy(file, directory)
        self.grown.append(path)


def grow(case: Case, base: Path) -> Tree:
    write, pod, container = case
    sandbox = container.replace(trees.CONTAINER, trees.SANDBOX)
    return Tree(write(base, pod, container, sandbox, "/system.slice/agent.service"), pod, container)


@pytest.mark.parametrize("case", [V1, V2], ids=["v1", "v2"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(edits=st.lists(_EDITS, max_size=12), most=st.sampled_from([0, 30, 200, 10_000]))
def test_a_reading_is_the_same_as_without_files_kept(
    tmp_path_factory: pytest.TempPathFactory, case: Case, edits: list[str], most: int
) -> None:
    tree = grow(case, tmp_path_factory.mktemp("tree"))
    root = "/" + tree.pod.split("/")[1]
    before = len(os.listdir("/proc/self/fd"))
    kept = CgroupFiles(tree.host, most)
    for edit in ("none", *edits):
        tree.edit(edit)
        everything = edit != "few"
        found = read_host(tree.host, [root], everything=everything, now=1.0, files=kept)
        plain = read_host(tree.host, [root], everything=everything, now=1.0)
        # The space on disks is that of this machine, where others write.
        assert replace(found, disks=()) == replace(plain, disks=())
        assert list(found.cgroups) == list(plain.cgroups)
        assert kept.count <= most
        assert len(os.listdir("/proc/self/fd")) == before + kept.count
    kept.close()
    assert kept.count == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_of_a_cgroup_that_is_gone_are_closed(tmp_path: Path) -> None:
    tree = grow(V2, tmp_path)
    kept = CgroupFiles(tree.host, 10_000)
    read_host(tree.host, ["/kubepods.slice"], everything=True, files=kept)
    count = kept.count
    tree.edit("grow")
    read_host(tree.host, ["/kubepods.slice"], everything=True, files=kept)
    assert kept.count > count
    tree.edit("shrink")
    read_host(tree.host, ["/kubepods.slice"], everything=True, files=kept)
    assert kept.count == count
    kept.close()


async def test_files_stay_open_only_for_those_who_ask_regularly(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    tree = grow(V2, tmp_path)
    provider = StatsProvider(
        StatsSettings("node", str(tmp_path), ("/kubepods.slice",)),
        tree.host,
        FakeRuntime(),
        lambda: (),
        lambda _name: None,
        TrioClock(),
        inline_offload,
    )
    for _ in range(3):
        await provider.cadvisor()
        await trio.sleep(15)
    assert provider.files.count == 0  # nobody would close them
    async with trio.open_nursery() as nursery:
        await nursery.start(provider.run)
        await trio.sleep(600)
        await provider.cadvisor()
        assert provider.files.count == 0  # asked once
        for _ in range(20):
            await trio.sleep(60)
            await provider.cadvisor()
            assert provider.files.count > 50
        await trio.sleep(149)
        assert provider.files.count > 50
        await trio.sleep(2)
        assert provider.files.count == 0
        await provider.cadvisor()
        await trio.sleep(10)
        await provider.resource()
        assert provider.files.count > 30
        nursery.cancel_scope.cancel()
    assert provider.files.count == 0


@pytest.mark.parametrize(("soft", "most"), [(1024, 512), (1_000_000, 10_240), (-1, 10_240)])
def test_the_process_keeps_half_of_its_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, soft))
    assert most_files() == most
