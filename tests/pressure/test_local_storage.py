"""Pods that use more of the node's disk than they may."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from lightkube.models.core_v1 import Container

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.containers import NodeSettings
from kubelet_trio.model import inline_offload
from kubelet_trio.pressure import DiskUsage, NodeSignals, UsageReader
from kubelet_trio.pressure.local_storage import has_local_limits, local_storage_excess
from kubelet_trio.pressure.ranking import ContainerUsage, PodUsage
from kubelet_trio.pressure.signals import tree_usage
from kubelet_trio.testing import FakeRuntime
from tests.pressure.make import pod

MI = 1 << 20
LIMITED = [{"name": "data", "emptyDir": {"sizeLimit": "10Mi"}}]
STORAGE = {"ephemeral-storage": "20Mi"}


def usage(rootfs: int = 0, logs: int = 0, data: int = 0) -> PodUsage:
    main = ContainerUsage(rootfs=DiskUsage(rootfs * MI), logs=DiskUsage(logs * MI))
    return PodUsage({"main": main}, {"data": DiskUsage(data * MI)})


def test_only_pods_with_limits_are_looked_at() -> None:
    assert not has_local_limits(pod("a", limits={"memory": "1Gi"})[1])
    assert not has_local_limits(pod("a", volumes=[{"name": "data", "emptyDir": {}}])[1])
    assert has_local_limits(pod("a", limits=STORAGE)[1])
    assert has_local_limits(pod("a", volumes=LIMITED)[1])


def test_an_empty_dir_may_hold_what_its_limit_says() -> None:
    _, limited = pod("a", volumes=LIMITED)
    assert local_storage_excess(limited, usage(data=10), dedicated=False) is None
    excess = local_storage_excess(limited, usage(data=11), dedicated=False)
    assert excess is not None
    assert excess.message == 'Usage of EmptyDir volume "data" exceeds the limit "10Mi". '
    assert excess.signal == "emptydirfs.limit"


def test_a_pod_may_use_what_its_containers_may_together() -> None:
    _, limited = pod("a", limits=STORAGE)
    assert local_storage_excess(limited, usage(10, 5, 5), dedicated=False) is None
    excess = local_storage_excess(limited, usage(10, 5, 6), dedicated=False)
    assert excess is not None
    assert excess.message == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "
    )


def test_a_sum_of_limits_is_written_as_the_first_of_them() -> None:
    """Quantity.Add."""
    _, limited = pod("a", limits={"ephemeral-storage": "20M"})
    assert limited.spec is not None
    more = {"name": "more", "resources": {"limits": {"ephemeral-storage": "5000000"}}}
    limited.spec.containers.append(msgspec.convert(more, Container))
    excess = local_storage_excess(limited, usage(20, 5, 6), dedicated=False)
    assert excess is not None
    assert excess.message == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 25M. "
    )


def test_a_container_with_a_limit_of_zero_has_none_of_its_own() -> None:
    """containerEphemeralStorageLimitEviction."""
    _, limited = pod("a", limits={"ephemeral-storage": "0"})
    assert limited.spec is not None
    more = {"name": "more", "resources": {"limits": STORAGE}}
    limited.spec.containers.append(msgspec.convert(more, Container))
    assert local_storage_excess(limited, usage(1, 1), dedicated=False) is None


def test_what_is_on_disk_is_counted_once_and_not_beyond_links(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a/file", tmp_path / "a/b/again")
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 1_000_000)
    (tmp_path / "a/link").symlink_to(outside)
    found = tree_usage(str(tmp_path / "a"))
    assert 100_000 <= found.space < 200_000
    assert found.inodes == 3  # the file, the directory and the link
    assert tree_usage(str(tmp_path / "none")) == DiskUsage()


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_writable_layer_elsewhere_is_not_the_containers_own(dedicated: bool) -> None:
    _, limited = pod("a", limits={"ephemeral-storage": "5Mi"})
    # The pod as a whole may have as much; a sidecar would make that more.
    assert limited.spec is not None
    limited.spec.containers.append(
        msgspec.convert(
            {"name": "more", "resources": {"limits": {"ephemeral-storage": "50Mi"}}}, Container
        )
    )
    excess = local_storage_excess(limited, usage(rootfs=4, logs=2), dedicated=dedicated)
    if dedicated:
        assert excess is None
    else:
        assert excess is not None
        assert excess.message == (
            'Container main exceeded its local ephemeral storage limit "5Mi". '
        )


def test_a_count_ends_when_its_time_is_over(tmp_path: Path) -> None:
    for number in range(3):
        below = tmp_path / str(number)
        below.mkdir()
        (below / "file").write_bytes(b"x")
    whole = tree_usage(str(tmp_path))
    looks = iter([False] * 4 + [True] * 99)
    part = tree_usage(str(tmp_path), lambda: next(looks))
    assert 0 < part.inodes < whole.inodes


async def test_only_volumes_on_the_nodes_disk_count(tmp_path: Path) -> None:
    """util.IsLocalEphemeralVolume: the other kinds are kept in memory."""
    kinds: dict[str, dict[str, object]] = {
        "empty-dir": {"emptyDir": {}},
        "in-memory": {"emptyDir": {"medium": "Memory"}},
        "configmap": {"configMap": {"name": "x"}},
        "downward-api": {"downwardAPI": {}},
        "projected": {"projected": {"sources": []}},
        "secret": {"secret": {"secretName": "x"}},
    }
    uid, made = pod("a", volumes=[{"name": name, **kind} for name, kind in kinds.items()])
    node = NodeSettings("node", "node", root_dir=tmp_path)
    for name in kinds:
        directory = node.pod_dir(uid) / f"volumes/kubernetes.io~{name}/{name}"
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(b"x" * 5000)
    signals = NodeSignals(CgroupHost(1, {}))
    reader = UsageReader(FakeRuntime(), lambda: node, signals, inline_offload, runs=lambda _: False)
    found = await reader.read([(uid, made)], all_pods=True, disk=True)
    assert sorted(found[uid].volumes) == ["configmap", "empty-dir"]
