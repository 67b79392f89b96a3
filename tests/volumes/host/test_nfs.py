"""NFS volumes: servers that are dead, and volumes that an earlier agent has mounted."""

from __future__ import annotations

import dataclasses
import errno
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import NFSVolumeSource, Pod, Volume
from msgspec.structs import replace
from trio.testing import MockClock

from kubelet_trio.model import (
    EventType,
    ObjectRef,
    Offload,
    PodUid,
    busy_threads,
    inline_offload,
    thread_offload,
)
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import PluginContext, VolumeError, VolumeManager, host_kinds
from kubelet_trio.volumes.host.nfs import make_nfs
from tests.volumes.host.disk_specs import disk_spec
from tests.volumes.host.test_left_calls import until
from tests.volumes.make import empty_dir, pod

UID = PodUid("u-1")
SERVERS = 20  # more than there are threads for volumes of quick kinds


class Servers(FakeMounter):
    """Mounts, and the servers behind them: calls for a dead one hang until it is `revived`."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[str] = set()
        self.hanging = Counter[str]()
        self._go, self._table = threading.Event(), threading.Lock()

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        self._call(source)
        with self._table:
            super().mount_nfs(source, target, options)

    def unmount(self, target: Path) -> None:
        self._call(next(m.source for m in self.mounts() if m.path == str(target)))
        with self._table:
            super().unmount(target)

    def _call(self, source: str) -> None:
        server = source.partition(":")[0]
        if server in self.dead:
            self.hanging[server] += 1
            assert self._go.wait(300), "the test did not revive it"

    def revive(self) -> None:
        self.dead.clear()
        self._go.set()

    def names(self) -> set[str]:
        """The names of the mounted volumes, with those of their pods."""
        return {f"{Path(m.path).parents[2].name}/{Path(m.path).name}" for m in self.mounts()}


class Told:
    """Keeps reason and text of events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.events.append((reason, message))


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.revive()


def manager(
    root: Path, servers: FakeMounter, told: Told | None = None, offload: Offload = thread_offload
) -> VolumeManager:
    """The manager of an agent that has just started."""
    context = PluginContext(root, servers, offload)
    return VolumeManager(
        root,
        servers,
        offload,
        events=told,
        async_kinds=lambda walks, _: host_kinds(dataclasses.replace(context, walks=walks)),
    )


def nfs(server: str, name: str = "share") -> Volume:
    return Volume(name=name, nfs=NFSVolumeSource("/export", server))


def of(uid: str, *volumes: Volume) -> Pod:
    made = pod(*volumes)
    assert made.metadata is not None
    return replace(made, metadata=replace(made.metadata, name=uid, uid=uid))


async def test_a_dead_server_holds_up_no_other_volume_and_no_other_pod(
    tmp_path: Path, servers: Servers, mock_clock: MockClock
) -> None:
    volumes = manager(tmp_path, servers)
    servers.dead = {"dead"}
    first = of("u-1", nfs("dead"), nfs("nas", "other"), empty_dir("memory", medium="Memory"))
    async with trio.open_nursery() as attempt:
        attempt.start_soon(volumes.mount, first)
        await until(lambda: servers.hanging["dead"] == 1)
        await until(lambda: servers.names() == {"u-1/other", "u-1/memory"})
        await volumes.mount(of("u-2", nfs("nas"), empty_dir()))
        await volumes.unmount(PodUid("u-2"))
        attempt.cancel_scope.cancel()
    # Nobody has waited for it.
    await until(lambda: busy_threads() == ["devices: mount_export"])
    assert servers.names() == {"u-1/other", "u-1/memory"}


async def test_many_dead_servers_hold_up_nobody(
    tmp_path: Path, servers: Servers, mock_clock: MockClock
) -> None:
    volumes = manager(tmp_path, servers)
    ending = [PodUid(f"old-{n}") for n in range(0, SERVERS, 2)]
    for n, uid in enumerate(ending):
        both = nfs(f"late-{2 * n}", "first"), nfs(f"late-{2 * n + 1}", "second")
        await volumes.mount(of(uid, *both))
    servers.dead = {f"{word}-{n}" for word in ("dead", "late") for n in range(SERVERS)}
    async with trio.open_nursery() as attempts:
        for n in range(SERVERS):
            attempts.start_soon(volumes.mount, of(f"new-{n}", nfs(f"dead-{n}")))
        for uid in ending:
            attempts.start_soon(volumes.unmount, uid)
        await until(lambda: set(servers.hanging) == servers.dead)
        await volumes.mount(of("u-1", nfs("nas"), empty_dir("memory", medium="Memory")))
        assert {"u-1/share", "u-1/memory"} <= servers.names()
        await volumes.unmount(UID)
        servers.revive()
    assert servers.names() == {f"new-{n}/share" for n in range(SERVERS)}
    assert max(servers.hanging.values()) == 1


async def test_each_failure_is_told_and_after_2m3s_what_is_missing(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    class Refusing(FakeMounter):
        def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
            if source.startswith("bad"):
                raise OSError(f"mounting {source} failed: access denied")
            super().mount_nfs(source, target, options)

    mock_clock.autojump_threshold = 0
    told, began = Told(), trio.current_time()
    volumes = manager(tmp_path, Refusing(), told, inline_offload)
    with pytest.raises(VolumeError) as caught:
        await volumes.mount(of("u-1", nfs("bad"), nfs("nas", "other")))
    assert str(caught.value) == (
        "Unable to attach or mount volumes: unmounted volumes=[share], unattached volumes=[], "
        "failed to process volumes=[]: context deadline exceeded"
    )
    assert trio.current_time() - began == 123
    text = (
        'MountVolume.SetUp failed for volume "share" : mounting bad:/export failed: access denied'
    )
    # At 0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5 and 63.5 s.
    assert told.events == [("FailedMount", text)] * 8
    assert volumes.totals() == {
        ("kubernetes.io/nfs", "desired_state_of_world"): 2,
        ("kubernetes.io/nfs", "actual_state_of_world"): 1,
    }
    await volumes.unmount(UID)
    assert not (tmp_path / "pods/u-1/volumes").exists()


async def test_a_restarted_agent_finds_and_unmounts_what_is_mounted(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    of_pod = of("u-1", nfs("nas"), nfs("nas", "other"))
    await manager(tmp_path, mounter).mount(of_pod)
    before = mounter.mounts()
    assert len(before) == 2
    await manager(tmp_path, mounter).mount(of_pod)
    assert mounter.mounts() == before
    await manager(tmp_path, mounter).unmount(UID)  # an orphan: its spec is not known
    assert mounter.mounts() == []
    assert not (tmp_path / "pods/u-1/volumes").exists()


async def test_a_pod_ends_only_after_a_mount_that_was_left(
    tmp_path: Path, servers: Servers, mock_clock: MockClock
) -> None:
    volumes, of_pod = manager(tmp_path, servers), of("u-1", nfs("dead"), nfs("nas", "share2"))
    servers.dead = {"dead"}
    async with trio.open_nursery() as attempt:
        attempt.start_soon(volumes.mount, of_pod)
        await until(lambda: servers.hanging["dead"] == 1 and servers.names() == {"u-1/share2"})
        attempt.cancel_scope.cancel()
    await until(lambda: busy_threads() == ["devices: mount_export"])
    mock_clock.rate = 100
    text = (
        r'UnmountVolume\.TearDown failed for volume "share" : '
        r"mount_export of an earlier attempt still runs after \d+ s: "
    )
    with pytest.raises(VolumeError, match=text):
        await volumes.unmount(UID)
    assert servers.names() == set()  # the other one is unmounted
    mock_clock.rate = 0
    servers.revive()
    await volumes.unmount(UID)
    assert servers.hanging["dead"] == 1
    assert servers.mounts() == []
    assert not (tmp_path / "pods/u-1/volumes").exists()


async def test_an_unmount_that_times_out_is_told_and_the_others_are_unmounted(
    tmp_path: Path,
) -> None:
    class Silent(FakeMounter):
        is_dead = True

        def unmount(self, target: Path) -> None:
            if self.is_dead and target.name == "share":
                text = "its server did not answer within 5 s"
                raise OSError(errno.ETIMEDOUT, text, str(target))
            super().unmount(target)

    mounter = Silent()
    plugin = make_nfs(PluginContext(tmp_path, mounter, inline_offload))
    source, pod_dir = NFSVolumeSource("/export", "nas"), tmp_path / "pods/u-1"
    for name in ("share", "other"):
        await plugin.set_up(disk_spec("nfs", source, name=name))
    target = plugin.path(disk_spec("nfs", source, name="share"))
    with pytest.raises(VolumeError) as caught:
        await plugin.tear_down(pod_dir)
    assert str(caught.value) == (
        'UnmountVolume.TearDown failed for volume "share" : '
        f"unmount failed: its server did not answer within 5 s: {target}"
    )
    assert [m.path for m in mounter.mounts()] == [str(target)]
    mounter.is_dead = False
    await plugin.tear_down(pod_dir)
    assert mounter.mounts() == []
    assert not target.parent.exists()
