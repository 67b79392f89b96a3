"""Files of the kernel's own cgroups that stay open while cgroups come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kubelet_trio.cgroups import cgroup_host
from kubelet_trio.stats import Host
from kubelet_trio.stats.cgroup_files import CgroupFiles

ROOT = f"/kubelet-trio-files-{os.getpid()}"
CHILD = f"{ROOT}/pod/container"


class Tree:
    """Cgroups of this test, in all hierarchies."""

    def __init__(self) -> None:
        host = cgroup_host()
        self.host = Host(host.version, {c: str(mount) for c, mount in host.mounts.items()})

    def make(self, path: str, limit: int = 1 << 30) -> None:
        for mount in self.host.mounts.values():
            Path(mount + path).mkdir(parents=True, exist_ok=True)
            for name in ("memory.max", "memory.limit_in_bytes"):
                file = Path(mount + path) / name
                if file.exists():
                    file.write_text(str(limit))

    def remove(self, *paths: str) -> None:
        for path in paths:
            for mount in self.host.mounts.values():
                with suppress(FileNotFoundError):
                    os.rmdir(mount + path)


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree()
    made.make(CHILD)
    yield made
    made.remove(CHILD, f"{ROOT}/pod", ROOT)


def seen(files: CgroupFiles, path: str) -> tuple[object, ...]:
    """Return what does not change by itself from one reading to the next."""
    usage = files.read(path, True, 1.0)
    limit = usage.memory.limit if usage.memory is not None else None
    return limit, usage.cpu is None, usage.threads, usage.pids, sorted(usage.io)


def test_a_cgroup_that_is_made_again_is_read_anew(tree: Tree) -> None:
    kept = CgroupFiles(tree.host, 1000)

    def check() -> None:
        kept.begin()
        paths = list(kept.walk(ROOT))
        plain = CgroupFiles(tree.host)
        assert paths == list(plain.walk(ROOT))
        assert [seen(kept, path) for path in paths] == [seen(plain, path) for path in paths]
        kept.end()

    for _ in range(3):
        check()
        assert kept.count > 10
        # Of the same name: what is open belongs to the one before.
        tree.remove(CHILD)
        tree.make(CHILD, 1 << 29)
        check()
        tree.remove(CHILD)
        check()
        tree.make(CHILD)
        tree.make(f"{CHILD}/nested")
        check()
        tree.remove(f"{CHILD}/nested")
    kept.close()
    assert kept.count == 0
