"""The file source on a real directory with real inotify. Waits are for events, never for time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kubelet_trio.model import InotifyWatcher, Watcher, pod_uid
from kubelet_trio.pods import PodRecord, wanted_pods
from kubelet_trio.sources import FileSource, load_manifest
from kubelet_trio.sources.manifest.static import mark_seen, seen_now
from tests.sources.make import container, encoded, manifest, names

PATIENCE = 10  # seconds; far below the interval, which would find the change by itself


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


def write(path: Path, *pods: str, command: str = "a") -> None:
    path.write_bytes(encoded(*[_manifest(name, command) for name in pods]))


def _manifest(name: str, command: str) -> dict[str, object]:
    return manifest(name, containers=[container(command=[command])])


class Running:
    """A running source, and what it delivered last."""

    def __init__(self, source: FileSource) -> None:
        self.source = source
        self.pods: tuple[object, ...] = ()

    async def names(self) -> list[str]:
        """Wait for the next snapshot and return its pods' names."""
        with trio.fail_after(PATIENCE):
            snapshot = await self.source.snapshots.wait_value()
        self.pods = snapshot.pods
        return [name.removesuffix("-n") for name in names(snapshot.pods)]

    async def wait_names(self, *wanted: str) -> None:
        """Wait until the source delivers these pods, whatever comes before."""
        with trio.fail_after(PATIENCE):
            while await self.names() != list(wanted):
                pass

    async def wait_problem(self, text: str) -> None:
        with trio.fail_after(PATIENCE):
            await self.source.problems.wait_value(
                lambda problems: any(text in str(problem) for problem in problems)
            )

    async def wait_no_problem(self) -> None:
        with trio.fail_after(PATIENCE):
            await self.source.problems.wait_value(lambda problems: not problems)


async def start(nursery: trio.Nursery, path: Path, **options: float) -> Running:
    source = FileSource(path, "n", interval=3600, **options)  # type: ignore[arg-type]
    await nursery.start(source.run)
    return Running(source)


async def test_files_that_are_there_are_delivered_in_order(
    nursery: trio.Nursery, directory: Path
) -> None:
    write(directory / "b.yaml", "b1", "b2")
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a", "b1", "b2"]


async def test_an_empty_directory_delivers_no_pods(nursery: trio.Nursery, directory: Path) -> None:
    assert await (await start(nursery, directory)).names() == []


async def test_files_may_be_written_in_place_and_removed(
    nursery: trio.Nursery, directory: Path
) -> None:
    running = await start(nursery, directory)
    assert await running.names() == []
    write(directory / "a.yaml", "a")
    assert await running.names() == ["a"]
    write(directory / "a.yaml", "a", "b")
    assert await running.names() == ["a", "b"]
    (directory / "a.yaml").unlink()
    assert await running.names() == []
    write(directory / "a.yaml", "a")
    assert await running.names() == ["a"]


async def test_files_may_be_renamed_into_place_out_of_it_and_within(
    nursery: trio.Nursery, directory: Path, tmp_path: Path
) -> None:
    running = await start(nursery, directory)
    assert await running.names() == []
    write(tmp_path / "new", "a")
    (tmp_path / "new").rename(directory / "a.yaml")
    assert await running.names() == ["a"]
    (directory / "a.yaml").rename(directory / "a.yaml.bak")
    assert await running.names() == []
    (directory / "a.yaml.bak").rename(directory / "a.yaml")
    assert await running.names() == ["a"]


async def test_a_file_that_is_written_bit_by_bit_is_read_when_it_is_closed(
    nursery: trio.Nursery, directory: Path
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    data = encoded(manifest("b"), manifest("c"))
    with (directory / "a.yaml").open("wb", buffering=0) as file:
        write(directory / "z.yaml", "z")  # makes the source look while the other is empty
        assert await running.names() == ["a", "z"]
        file.write(data[: len(data) // 2])
        write(directory / "y.yaml", "y")
        assert await running.names() == ["a", "y", "z"]
        file.write(data[len(data) // 2 :])
    assert await running.names() == ["b", "c", "y", "z"]


async def test_an_editors_dance_of_renames_disturbs_nothing(
    nursery: trio.Nursery, directory: Path
) -> None:
    file = directory / "web.yaml"
    write(file, "a")
    os.utime(file, (1, 1))  # long ago, so that the first look believes it
    running = await start(nursery, directory, settle=1.0)
    assert await running.names() == ["a"]
    # What vim does, with a pause where it hurts most.
    (directory / "4913").write_text("")
    (directory / "4913").unlink()
    (directory / ".web.yaml.swp").write_bytes(b"b0VIM")
    file.rename(directory / "web.yaml~")
    write(directory / "z.yaml", "z")
    assert await running.names() == ["a", "z"]
    write(file, "a", "b")
    (directory / "web.yaml~").unlink()
    (directory / ".web.yaml.swp").unlink()
    assert await running.names() == ["a", "b", "z"]


async def test_a_config_maps_swap_of_a_link_is_seen(nursery: trio.Nursery, directory: Path) -> None:
    def version(name: str, *pods: str) -> None:
        (directory / f"..{name}").mkdir()
        write(directory / f"..{name}" / "web.yaml", *pods)
        (directory / "..data_tmp").symlink_to(f"..{name}")
        (directory / "..data_tmp").rename(directory / "..data")

    version("2024_1", "a")
    (directory / "web.yaml").symlink_to("..data/web.yaml")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    version("2024_2", "a", "b")
    shutil.rmtree(directory / "..2024_1")
    assert await running.names() == ["a", "b"]
    version("2024_3", "c")
    shutil.rmtree(directory / "..2024_2")
    assert await running.names() == ["c"]


async def test_the_directory_may_be_a_link_that_is_swapped(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    for release, pod in (("1", "a"), ("2", "b")):
        (tmp_path / release).mkdir()
        write(tmp_path / release / "web.yaml", pod)
    path = tmp_path / "manifests"
    path.symlink_to("1")
    running = await start(nursery, path)
    assert await running.names() == ["a"]
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(path)
    assert await running.names() == ["b"]
    write(tmp_path / "2" / "more.yaml", "c")
    assert await running.names() == ["c", "b"]


async def test_the_directory_may_be_replaced(
    nursery: trio.Nursery, directory: Path, tmp_path: Path
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    (tmp_path / "next").mkdir()
    write(tmp_path / "next" / "a.yaml", "b")
    directory.rename(tmp_path / "old")
    (tmp_path / "next").rename(directory)
    await running.wait_names("b")
    write(directory / "c.yaml", "c")
    await running.wait_names("b", "c")


async def test_a_link_to_a_file_elsewhere_is_followed_there(
    nursery: trio.Nursery, directory: Path, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere.yaml"
    write(target, "a")
    (directory / "web.yaml").symlink_to(target)
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    write(target, "b")
    assert await running.names() == ["b"]


async def test_a_single_file_may_be_the_source(nursery: trio.Nursery, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    running = await start(nursery, file)
    assert await running.names() == []  # it is not there yet
    await running.wait_problem("does not exist")
    write(file, "a")
    assert await running.names() == ["a"]
    await running.wait_no_problem()
    file.unlink()
    assert await running.names() == []
    write(file, "b")
    assert await running.names() == ["b"]


async def test_a_file_that_is_no_manifest_does_not_take_a_directorys_place(
    nursery: trio.Nursery, directory: Path
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    away = directory.rename(directory.with_name("away"))
    directory.touch()
    await running.wait_problem("no manifest where a directory was")
    directory.unlink()
    away.rename(directory)
    write(directory / "b.yaml", "b")
    assert await running.names() == ["a", "b"]  # and nothing was delivered in between
    await running.wait_no_problem()


async def test_a_manifest_in_a_directorys_place_is_followed(
    nursery: trio.Nursery, directory: Path
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    directory.rename(directory.with_name("away"))
    write(directory, "b")
    await running.wait_names("b")


async def test_a_broken_edit_keeps_the_pods_of_that_file_and_names_what_is_wrong(
    nursery: trio.Nursery, directory: Path
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    (directory / "a.yaml").write_text("kind: Pod\nkind: Pod\n")
    await running.wait_problem('a.yaml:2:1: duplicate field "kind"')
    (problem,) = running.source.problems.value
    assert [key.name for key in problem.pods] == ["a-n"]
    write(directory / "b.yaml", "b")
    assert await running.names() == ["a", "b"]
    write(directory / "a.yaml", "c")
    assert await running.names() == ["c", "b"]
    await running.wait_no_problem()


@pytest.mark.parametrize("content", ["", "\n", "# all of it in comments\n", "---\n---\n"])
async def test_a_file_without_a_document_is_broken_and_not_empty(
    nursery: trio.Nursery, directory: Path, content: str
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    (directory / "a.yaml").write_text(content)
    await running.wait_problem("holds no document")
    write(directory / "b.yaml", "b")
    assert await running.names() == ["a", "b"]


async def test_an_empty_list_removes_the_pods_of_its_file(
    nursery: trio.Nursery, directory: Path
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    (directory / "a.yaml").write_text("{apiVersion: v1, kind: List, items: []}")
    assert await running.names() == []


async def test_a_directory_that_goes_keeps_its_pods(
    nursery: trio.Nursery, directory: Path, tmp_path: Path
) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    directory.rename(tmp_path / "away")
    await running.wait_problem("does not exist any more")
    directory.mkdir()
    write(directory / "b.yaml", "b")
    await running.wait_names("b")
    await running.wait_no_problem()


async def test_a_directory_that_was_never_there_is_empty_until_it_comes(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    path = tmp_path / "etc" / "kubernetes" / "manifests"
    running = await start(nursery, path)
    assert await running.names() == []
    await running.wait_problem("does not exist")
    path.mkdir(parents=True)
    write(path / "a.yaml", "a")
    assert await running.names() == ["a"]


async def test_a_path_that_cannot_be_read_delivers_nothing(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    path = tmp_path / "manifests"
    path.symlink_to(path)
    running = await start(nursery, path)
    await running.wait_problem("cannot be read: Too many levels of symbolic links")
    assert running.source.delivered is None
    path.unlink()
    path.mkdir()
    assert await running.names() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_cannot_be_opened_is_a_problem_of_that_file_alone(
    nursery: trio.Nursery, directory: Path
) -> None:
    write(directory / "a.yaml", "a")
    write(directory / "b.yaml", "b")
    (directory / "a.yaml").chmod(0)
    running = await start(nursery, directory)
    assert await running.names() == ["b"]
    await running.wait_problem("a.yaml: cannot be read")
    (directory / "a.yaml").chmod(0o600)
    assert await running.names() == ["a", "b"]


async def test_touching_a_file_changes_nothing(nursery: trio.Nursery, directory: Path) -> None:
    write(directory / "a.yaml", "a")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    (before,) = running.pods
    write(directory / "a.yaml", "a")
    os.utime(directory / "a.yaml", (1, 1))
    write(directory / "b.yaml", "b")
    assert await running.names() == ["a", "b"]
    assert running.pods[0] is before


async def test_an_edit_gives_the_pod_another_uid(nursery: trio.Nursery, directory: Path) -> None:
    write(directory / "a.yaml", "a", command="one")
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    (before,) = running.source.delivered.pods  # type: ignore[union-attr]
    write(directory / "a.yaml", "a", command="two")
    assert await running.names() == ["a"]
    (after,) = running.source.delivered.pods  # type: ignore[union-attr]
    assert pod_uid(after) != pod_uid(before)


async def test_a_restarted_task_takes_up_where_it_was(directory: Path) -> None:
    write(directory / "a.yaml", "a")
    source = FileSource(directory, "n", interval=3600)
    async with trio.open_nursery() as first:
        running = Running(source)
        await first.start(source.run)
        assert await running.names() == ["a"]
        first.cancel_scope.cancel()
    (directory / "a.yaml").write_text("broken: [")
    write(directory / "b.yaml", "b")
    async with trio.open_nursery() as second:
        await second.start(source.run)
        assert await running.names() == ["a", "b"]
        second.cancel_scope.cancel()


async def test_pods_of_a_file_that_is_broken_at_the_start_are_known_from_before(
    nursery: trio.Nursery, directory: Path
) -> None:
    for name in ("a", "b", "c"):
        write(directory / f"{name}.yaml", name)
    earlier = FileSource(directory, "n")
    async with trio.open_nursery() as life:
        await life.start(earlier.run)
        with trio.fail_after(PATIENCE):
            last_good = (await earlier.snapshots.wait_value()).pods
        life.cancel_scope.cancel()
    (directory / "a.yaml").write_text("broken: [")
    (directory / "b.yaml").unlink()
    source = FileSource(directory, "n", interval=3600, last_good=last_good)
    await nursery.start(source.run)
    running = Running(source)
    assert await running.names() == ["a", "c"]
    assert running.pods == (last_good[0], last_good[2])


async def test_a_pod_of_an_earlier_agent_keeps_its_uid_until_its_manifest_is_edited(
    nursery: trio.Nursery, directory: Path
) -> None:
    def write_amount(cpu: str) -> bytes:
        resources = {"requests": {"cpu": cpu}}
        data = encoded(manifest("a", containers=[container(resources=resources)]))
        (directory / "a.yaml").write_bytes(data)
        return data

    data, path = write_amount("1"), str(directory / "a.yaml")
    # The rule of earlier agents, which had the amounts in the UID.
    (loaded,) = load_manifest(data, path, node_name="n", is_known=lambda _: True).pods
    earlier = mark_seen(loaded, seen_now(0.0))
    record = PodRecord(pod_uid(earlier), earlier, 0.0, admitted=True)
    last_good = wanted_pods({record.uid: record})
    source = FileSource(directory, "n", interval=3600, last_good=last_good)
    await nursery.start(source.run)
    running = Running(source)
    assert await running.names() == ["a"]
    assert running.pods == (earlier,)
    uids = []
    for cpu in ("2", "1"):
        write_amount(cpu)
        assert await running.names() == ["a"]
        uids.append(pod_uid(running.pods[0]))
    # It is replaced once; from then on the amounts do not matter.
    assert uids[0] == uids[1] != record.uid


async def test_pods_of_other_directories_are_not_taken_for_ones_own(
    nursery: trio.Nursery, directory: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write(other / "x.yaml", "x")
    running = await start(nursery, other)
    assert await running.names() == ["x"]
    pods = running.source.delivered.pods  # type: ignore[union-attr]
    source = FileSource(directory, "n", last_good=pods)
    await nursery.start(source.run)
    assert await Running(source).names() == []


async def test_the_watcher_is_closed_with_the_task(directory: Path) -> None:
    opened: list[InotifyWatcher] = []

    def open_watcher() -> Watcher:
        opened.append(InotifyWatcher())
        return opened[-1]

    source = FileSource(directory, "n", open_watcher=open_watcher)
    async with trio.open_nursery() as life:
        await life.start(source.run)
        with trio.fail_after(PATIENCE):
            await source.snapshots.wait_value()
        life.cancel_scope.cancel()
    descriptor: Callable[[], int] = opened[0]._inotify.fileno
    with pytest.raises(ValueError, match="closed"):
        descriptor()


async def test_a_burst_of_files_is_delivered_whole(nursery: trio.Nursery, directory: Path) -> None:
    running = await start(nursery, directory)
    assert await running.names() == []
    wanted = [f"pod{i:02}" for i in range(30)]
    for name in wanted:
        write(directory / f"{name}.yaml", name)
    await running.wait_names(*wanted)


@pytest.mark.parametrize("content", [None, "kind: Pod\nkind: Pod\n"])
async def test_a_name_that_is_no_utf8_is_a_problem_of_that_file_alone(
    nursery: trio.Nursery, directory: Path, content: str | None
) -> None:
    write(directory / "a.yaml", "a")
    odd = directory / os.fsdecode(b"caf\xe9.yaml")
    write(odd, "b")
    if content is not None:
        odd.write_text(content)
    running = await start(nursery, directory)
    assert await running.names() == ["a"]
    await running.wait_problem("the file's name is no UTF-8")
    origins = [problem.origin for problem in running.source.problems.value]
    assert origins == [f"{directory}/caf\\xe9.yaml"]
    odd.rename(directory / "caf.yaml")
    if content is None:
        assert await running.names() == ["a", "b"]
        await running.wait_no_problem()
