from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
import structlog
from lightkube.models.core_v1 import (
    CSIVolumeSource,
    EnvVar,
    Volume,
)

import kubelet_trio.volumes.container_mounts as container_mounts_module
from kubelet_trio.cli.logging import render_json
from kubelet_trio.cri import v1
from kubelet_trio.model import inline_offload
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import NodeFacts, VolumeError, VolumeManager
from tests.volumes.make import empty_dir, host_path, main, mount, pod


async def mounts_of(volumes: VolumeManager, *args: Any, **fields: Any) -> list[v1.Mount]:
    of_pod = pod(*args, **fields)
    await volumes.mount(of_pod)
    return await volumes.container_mounts(of_pod, main(of_pod))


async def test_mounts_keep_their_order_and_options(volumes: VolumeManager, tmp_path: Path) -> None:
    made = await mounts_of(
        volumes,
        empty_dir(),
        host_path("/opt"),
        mounts=[
            mount("host", "/b", readOnly=True, mountPropagation="HostToContainer"),
            mount("data", "relative"),
            mount("host", "/c", mountPropagation="Bidirectional"),
        ],
    )
    data = tmp_path / "pods/u-1/volumes/kubernetes.io~empty-dir/data"
    modes = v1.MountPropagation
    assert made == [
        v1.Mount(
            container_path="/b",
            host_path="/opt",
            readonly=True,
            propagation=modes.PROPAGATION_HOST_TO_CONTAINER,
        ),
        v1.Mount(container_path="/relative", host_path=str(data)),
        v1.Mount(
            container_path="/c", host_path="/opt", propagation=modes.PROPAGATION_BIDIRECTIONAL
        ),
    ]


async def test_a_container_without_mounts_has_none(volumes: VolumeManager) -> None:
    assert await mounts_of(volumes, empty_dir(), mounts=[]) == []


async def test_only_the_pods_own_volumes_are_relabelled(tmp_path: Path) -> None:
    volumes = VolumeManager(tmp_path, FakeMounter(), inline_offload, node=NodeFacts(selinux=True))
    made = await mounts_of(volumes, empty_dir(), host_path("/opt"))
    assert [m.selinux_relabel for m in made] == [True, False]


async def test_recursive_read_only_needs_the_runtime(tmp_path: Path) -> None:
    able = VolumeManager(
        tmp_path,
        FakeMounter(),
        inline_offload,
        node=NodeFacts(recursive_read_only=lambda handler: not handler),
    )
    unable = VolumeManager(tmp_path, FakeMounter(), inline_offload)
    wish = {"mounts": [mount(recursiveReadOnly="IfPossible", readOnly=True)]}
    need = {"mounts": [mount(recursiveReadOnly="Enabled", readOnly=True)]}
    assert [m.recursive_read_only for m in await mounts_of(able, empty_dir(), **wish)] == [True]
    assert [m.recursive_read_only for m in await mounts_of(able, empty_dir(), **need)] == [True]
    assert [m.recursive_read_only for m in await mounts_of(unable, empty_dir(), **wish)] == [False]
    # As the Go kubelet says it; a NodeConformance test looks for it.
    with pytest.raises(
        VolumeError,
        match=r'^failed to resolve recursive read-only mode: volume "\w+" requested recursive '
        "read-only mode, but it is not supported by the runtime$",
    ):
        await mounts_of(unable, empty_dir(), **need)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (mount("other"), 'cannot find volume "other" to mount into container "main"'),
        (mount(subPath="/etc"), "error SubPath `/etc` must not be an absolute path"),
        (mount(subPath="a/../b"), "unable to provision SubPath `a/../b`: must not contain '..'"),
        (mount(subPathExpr="$(X)/../b"), "unable to provision SubPath `1/../b`"),
        (mount(subPathExpr="$(NONE)"), "missing value for NONE"),
        (mount(subPathExpr="$(NUL)"), 'failed to prepare subPath for volumeMount "data"'),
        (mount(mountPropagation="Sideways"), 'invalid MountPropagation mode: "Sideways"'),
    ],
)
async def test_mounts_that_cannot_be_are_refused(
    volumes: VolumeManager, wrong: Any, message: str
) -> None:
    env = [EnvVar("X", value="1"), EnvVar("NUL", value="a\0b")]
    with pytest.raises(VolumeError) as caught:
        await mounts_of(volumes, empty_dir(), mounts=[wrong], env=env)
    assert str(caught.value).startswith(message)


async def test_volumes_of_other_kinds_are_refused_by_name(volumes: VolumeManager) -> None:
    of_pod = pod(Volume(name="c", csi=CSIVolumeSource(driver="x")))
    with pytest.raises(VolumeError) as caught:
        await volumes.mount(of_pod)
    assert str(caught.value) == (
        'MountVolume.SetUp failed for volume "c" : volumes of type csi are not supported'
    )


async def test_a_sub_path_is_bound_outside_the_volume(
    volumes: VolumeManager, mounter: FakeMounter, tmp_path: Path
) -> None:
    (made,) = await mounts_of(
        volumes,
        empty_dir(),
        mounts=[mount(subPathExpr="$(NAME)/logs")],
        env=[EnvVar("NAME", value="web")],
    )
    target = tmp_path / "pods/u-1/volume-subpaths/data/main/0"
    assert made.host_path == str(target)
    assert [m.path for m in mounter.mounts()] == [str(target)]
    data = tmp_path / "pods/u-1/volumes/kubernetes.io~empty-dir/data"
    assert mounter.mounts()[0].root == str(data / "web/logs")


async def test_a_sub_path_out_of_the_volume_tells_the_owner_nothing_of_the_host(
    volumes: VolumeManager, tmp_path: Path
) -> None:
    of_pod = pod(empty_dir(), mounts=[mount(subPath="escape")])
    await volumes.mount(of_pod)
    data = tmp_path / "pods/u-1/volumes/kubernetes.io~empty-dir/data"
    (data / "escape").symlink_to("/etc")
    with pytest.raises(VolumeError) as caught:
        await volumes.container_mounts(of_pod, main(of_pod))
    assert str(caught.value) == (
        'failed to prepare subPath for volumeMount "data" of container "main"'
    )


@pytest.mark.parametrize("is_read_only", [True, False])
async def test_a_sub_path_that_cannot_be_made_is_told_as_such(
    volumes: VolumeManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_only: bool
) -> None:
    of_pod = pod(empty_dir(), mounts=[mount(subPath="missing")])
    await volumes.mount(of_pod)
    if is_read_only:

        def refuse(path: str, *_: object, **__: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

        monkeypatch.setattr(os, "mkdir", refuse)
    else:
        data = tmp_path / "pods/u-1/volumes/kubernetes.io~empty-dir/data"
        (data / "missing").symlink_to("nowhere")
    with pytest.raises(VolumeError) as caught:
        await volumes.container_mounts(of_pod, main(of_pod))
    assert str(caught.value) == (
        'failed to create subPath directory for volumeMount "data" of container "main"'
    )


async def test_a_link_to_a_name_that_is_no_utf8_is_refused_and_logged(
    volumes: VolumeManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_pod = pod(empty_dir(), mounts=[mount(subPath="escape")])
    await volumes.mount(of_pod)
    outside = tmp_path / os.fsdecode(b"caf\xe9")
    outside.mkdir()
    (tmp_path / "pods/u-1/volumes/kubernetes.io~empty-dir/data/escape").symlink_to(outside)
    out = io.StringIO()
    logger = structlog.wrap_logger(structlog.WriteLogger(out), processors=[render_json])
    monkeypatch.setattr(container_mounts_module, "log", logger)
    with pytest.raises(VolumeError):
        await volumes.container_mounts(of_pod, main(of_pod))
    assert "udce9" in out.getvalue()
