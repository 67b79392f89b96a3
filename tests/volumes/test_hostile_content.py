"""Content volumes in the hands of a container that may write to them.

Containers mount them read-only. Those that an earlier version started do not, and on the process
runtime nothing is mounted at all.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import ConfigMap, DownwardAPIVolumeSource, Secret, Volume

from kubelet_trio.model import PodUid, remove_tree
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter
from kubelet_trio.volumes.atomic import File, write_payload
from kubelet_trio.volumes.ownership import own_tree
from tests.harness.hostile import (
    DEEP,
    Act,
    Outside,
    Player,
    acts,
    between_calls,
    nest,
    no_hang,
    small_memory,
)
from tests.volumes.make import main, pod
from tests.volumes.test_content import (
    CONFIG,
    KEYS,
    Node,
    config_map,
    files,
    mode,
    projected,
    secret,
)

NOON = 1_769_860_800.0

KINDS = {
    "configMap": (config_map(), "configmap"),
    "secret": (secret(), "secret"),
    "downwardAPI": (Volume(name="v", downwardAPI=DownwardAPIVolumeSource()), "downward-api"),
    "projected": (projected(), "projected"),
}


@pytest.fixture
def node(tmp_path: Path, mounter: FakeMounter) -> Node:
    node = Node(tmp_path / "node", mounter)
    node.put({CONFIG: ConfigMap(data={"key": "1"}), KEYS: Secret(stringData={"key": "1"})})
    return node


@pytest.mark.parametrize("kind", KINDS)
async def test_a_content_volume_is_mounted_read_only_whatever_the_pod_says(
    node: Node, kind: str
) -> None:
    volume, plugin = KINDS[kind]
    of_pod = pod(volume)
    await node.manager.mount(of_pod)
    (made,) = await node.manager.container_mounts(of_pod, main(of_pod))
    assert made.readonly
    assert mode(node.directory(plugin)) == 0o755
    assert node.directory(plugin).stat().st_uid == os.geteuid()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_directory_of_a_volume_in_memory_is_closed_to_others(
    tmp_path: Path, kernel: KernelMounter, kind: str
) -> None:
    node = Node(tmp_path, kernel)
    node.put({CONFIG: ConfigMap(data={"key": "1"}), KEYS: Secret(stringData={"key": "1"})})
    volume, plugin = KINDS[kind]
    await node.manager.mount(pod(volume))
    assert mode(node.directory(plugin)) == 0o755
    await node.manager.unmount(PodUid("u-1"))


async def test_a_directory_that_an_earlier_version_left_open_is_closed(node: Node) -> None:
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    directory = node.directory("configmap")
    directory.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(directory, 65534, -1)
    await node.manager.refresh(of_pod)
    assert mode(directory) == 0o755
    assert directory.stat().st_uid == os.geteuid()


async def test_a_link_to_what_has_no_end_is_not_read(node: Node) -> None:
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    directory = node.directory("configmap")
    for target in ("/dev/zero", "/proc/kmsg"):
        (directory / "mine").mkdir(exist_ok=True)
        (directory / "mine/key").unlink(missing_ok=True)
        (directory / "mine/key").symlink_to(target)
        (directory / "..data").unlink()
        (directory / "..data").symlink_to("mine")
        with no_hang(), small_memory():
            await node.manager.refresh(of_pod)
        assert files(directory) == {"key": "1"}


async def test_a_file_that_grew_is_not_read_to_its_end(node: Node) -> None:
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    directory = node.directory("configmap")
    os.truncate((directory / "key").resolve(), 1 << 40)
    with small_memory():
        await node.manager.refresh(of_pod)
    assert files(directory) == {"key": "1"}


@pytest.mark.parametrize("data", ["mine", "..mine", "current"])
async def test_a_fifo_holds_up_nobody(node: Node, data: str) -> None:
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    directory = node.directory("configmap")
    if data == "current":
        data = os.readlink(directory / "..data")
        (directory / data / "key").unlink()
    else:
        (directory / data).mkdir()
        (directory / "..data").unlink()
        (directory / "..data").symlink_to(data)
    os.mkfifo(directory / data / "key")
    with no_hang():
        await node.manager.refresh(of_pod)
    assert files(directory) == {"key": "1"}


@pytest.mark.parametrize("what", ["away", "link", "file"])
def test_a_swapped_directory_leads_nothing_out_of_the_volume(tmp_path: Path, what: str) -> None:
    """Rename the new content directory before every step, and put a link to the host's there."""
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    outside.mkdir()
    (outside / "run").mkdir()

    def swap() -> None:
        for name in os.listdir(volume):
            if name.startswith("..2") and not (volume / name).is_symlink():
                (volume / name).rename(volume / f"stolen{len(os.listdir(volume))}")
                if what == "link":
                    (volume / name).symlink_to(outside)
                elif what == "file":
                    (volume / name).touch()

    payload = {"key": File(b"1", 0o644), "run/deep/key": File(b"2", 0o644)}
    with between_calls(swap):
        with suppress(FileNotFoundError, NotADirectoryError):
            write_payload(volume, payload, NOON)
    assert os.listdir(outside) == ["run"]
    assert os.listdir(outside / "run") == []
    write_payload(volume, payload, NOON)
    assert (volume / "run/deep/key").read_bytes() == b"2"


@pytest.mark.parametrize("name", ["..data", "..data_tmp", "key"])
@pytest.mark.parametrize("what", ["directory", "deep", "file", "fifo", "link"])
async def test_what_a_container_puts_in_the_way_is_put_aside(
    node: Node, tmp_path: Path, name: str, what: str
) -> None:
    of_pod = pod(config_map())
    await node.manager.mount(of_pod)
    directory = node.directory("configmap")
    place = directory / name
    place.unlink(missing_ok=True)
    if what == "file":
        place.touch()
    elif what == "fifo":
        os.mkfifo(place)
    elif what == "link":
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
        nest(place, DEEP if what == "deep" else 1)
    node.put({CONFIG: ConfigMap(data={"key": "2"})})
    with no_hang():
        await node.manager.refresh(of_pod)
    assert files(directory) == {"key": "2"}
    assert (directory / "key").read_text() == "2"
    assert tmp_path.is_dir()


@pytest.mark.parametrize("target", ["/etc", "../..2020", ".", "..", "..data", "..data_tmp", "a/b"])
def test_only_a_name_of_ours_is_taken_for_the_content(tmp_path: Path, target: str) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "a/b").mkdir(parents=True)
    (volume / "..data").symlink_to(target)
    assert write_payload(volume, {"key": File(b"1", 0o644)}, NOON)
    assert os.readlink(volume / "..data").startswith("..2026_")
    assert stat.S_ISLNK((volume / "key").lstat().st_mode)


PLACES = [
    "..data",
    "..data_tmp",
    "key",
    "dir",
    "new",
    "new/key",
    "new/dir",
    "new/dir/key",
    "..mine",
]
PAYLOADS = st.dictionaries(
    st.sampled_from(["key", "other", "dir/key", "dir/deeper/key"]),
    st.sampled_from([b"1", b"2"]),
    max_size=3,
)
STEPS = int(os.environ.get("KUBELET_TRIO_HOSTILE_STEPS", "40"))


@settings(max_examples=STEPS, deadline=None)
@given(st.data())
def test_a_hostile_container_gains_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever it does, at rest and between any two calls: the host is as it was."""
    base = tmp_path_factory.mktemp("host")
    volume, outside = base / "volume", Outside(base / "outside")
    volume.mkdir()
    act = acts(PLACES, outside.directory)
    for _ in range(data.draw(st.integers(1, 3))):
        for each in data.draw(st.lists(act, max_size=4)):
            each.do(volume)
        schedule = data.draw(st.dictionaries(st.integers(0, 60), act, max_size=6))
        write(volume, data.draw(PAYLOADS), schedule)
        outside.check()
    payload = data.draw(PAYLOADS)
    write(volume, payload, {})
    for path, content in payload.items():
        assert (volume / path).read_bytes() == content
    remove_tree(volume)
    outside.check()


def write(volume: Path, payload: dict[str, bytes], schedule: dict[int, Act]) -> None:
    """Write as the agent does, with the container's acts before the calls of the schedule."""

    def own(descriptor: int) -> None:
        own_tree(descriptor, os.getgid(), read_only=True)

    with no_hang(), between_calls(Player(volume, schedule).act):
        try:
            files = {path: File(content, 0o644) for path, content in payload.items()}
            write_payload(volume, files, NOON, own)
        except OSError:
            assert schedule  # alone, it can always write
