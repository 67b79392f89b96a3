"""How soon a change of a manifest counts, and what programs do to files that must end no pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import Offload, inline_offload
from kubelet_trio.sources import FileSource, SourceSnapshot
from kubelet_trio.sources.files.burst import LONGEST, QUIET, REMOVED
from tests.sources.make import FakeWatcher, FixedClock, container, encoded, manifest, names

WEB = "web.yaml"
BETWEEN = 0.0001  # seconds between two system calls of one program
GAP = 0.002  # a long one, of a program that was held up between them


def content(command: str) -> bytes:
    return encoded(manifest("web", containers=[container(command=[command])]))


@dataclass(frozen=True)
class Step:
    """One system call of a program, and what inotify tells of it."""

    call: str  # create, close, unlink, rename
    name: str
    to: str = ""
    text: bytes = b""
    after: float = BETWEEN  # seconds since the step before


def create(name: str, text: bytes = b"", after: float = BETWEEN) -> Step:
    return Step("create", name, text=text, after=after)


def close(name: str, text: bytes, after: float = BETWEEN) -> Step:
    return Step("close", name, text=text, after=after)


def unlink(name: str) -> Step:
    return Step("unlink", name)


def rename(name: str, to: str) -> Step:
    return Step("rename", name, to)


NEW = content("new")

# As inotify showed them (Debian 12: sed 4.9, perl 5.36, GNU tar 1.34, coreutils 9.1, git 2.39,
# vim 9.0) or, for the others, by their sources.
PROGRAMS: dict[str, Sequence[Step]] = {
    "sed -i, perl -i": [create("sedX1"), close("sedX1", NEW), rename("sedX1", WEB)],
    "rsync": [create(".web.yaml.X1"), close(".web.yaml.X1", NEW), rename(".web.yaml.X1", WEB)],
    "Ansible's copy": [
        create(".ansible_tmpX1web.yaml"),
        close(".ansible_tmpX1web.yaml", NEW),
        rename(".ansible_tmpX1web.yaml", WEB),
    ],
    "cp, nano, vim with backupcopy": [close(WEB, NEW)],
    "vim with backups": [
        create("4913"),
        close("4913", b""),
        unlink("4913"),
        rename(WEB, "web.yaml~"),
        create(WEB, after=GAP),
        close(WEB, NEW, after=GAP),
        unlink("web.yaml~"),
    ],
    "emacs": [rename(WEB, "web.yaml~"), create(WEB), close(WEB, NEW)],
    "git checkout, cp --remove-destination": [unlink(WEB), create(WEB), close(WEB, NEW)],
    "git checkout that is held up": [unlink(WEB), create(WEB, after=GAP), close(WEB, NEW)],
    "install, tar x, kubectl cp": [
        unlink(WEB),
        create(WEB),
        close(WEB, NEW, after=GAP),
    ],
}


class World:
    """A running source on a directory with one manifest, and all that it has delivered."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.watcher = directory, FakeWatcher()
        self.clock = FixedClock(2e11)  # every file is old
        self.seen: list[tuple[float, SourceSnapshot]] = []
        self.hops = 0
        (directory / WEB).write_bytes(content("old"))

    async def start(self, nursery: trio.Nursery) -> None:
        source = FileSource(
            self.directory,
            "n",
            open_watcher=lambda: self.watcher,
            offload=_counting(inline_offload, self._count),
            clock=self.clock,
        )
        await nursery.start(source.run)
        nursery.start_soon(self._collect, source)
        await trio.sleep(1)
        self.clock.now = 0.0  # from here on every file counts as just written
        self.seen.clear()
        self.hops = 0

    def _count(self) -> None:
        self.hops += 1

    async def _collect(self, source: FileSource) -> None:
        while True:
            snapshot = await source.snapshots.wait_value()
            self.seen.append((trio.current_time(), snapshot))

    async def do(self, step: Step) -> None:
        await trio.sleep(step.after)
        path = self.directory / step.name
        if step.call == "create":
            path.write_bytes(step.text)
            self.watcher.tell(path, finished=False)
        elif step.call == "close":
            path.write_bytes(step.text)
            self.watcher.tell(path)
        elif step.call == "unlink":
            path.unlink()
            self.watcher.tell(path, finished=False, removed=True)
        else:
            target = self.directory / step.to
            path.rename(target)
            self.watcher.tell(path, finished=False)
            self.watcher.tell(target, moved=True)


def _counting(offload: Offload, count: Callable[[], None]) -> Offload:
    class Counting:
        def of(self, _purpose: object) -> Offload:
            return self  # type: ignore[return-value]

        async def __call__(self, fn: Callable[..., object], *args: object, **kw: object) -> object:
            count()
            return await offload(fn, *args, **kw)

    return Counting()  # type: ignore[return-value]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_no_programs_way_to_rewrite_a_manifest_ends_its_pod(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path, program: str
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    for step in PROGRAMS[program]:
        await world.do(step)
    await trio.sleep(1)
    assert world.seen, "the new content was not seen"
    for _, snapshot in world.seen:
        assert names(snapshot.pods) == ["web-n"]
    (pod,) = world.seen[-1][1].pods
    assert pod.spec is not None
    assert pod.spec.containers[0].command == ["new"]


OLD = content("old")
UNCHANGED: dict[str, Sequence[Step]] = {
    "os.Remove and os.WriteFile, install, tar x": [unlink(WEB), create(WEB), close(WEB, OLD)],
    "the same, held up": [
        unlink(WEB),
        create(WEB, after=GAP),
        close(WEB, OLD, after=LONGEST),
    ],
    "rm and mv": [create(".new"), close(".new", OLD), unlink(WEB), rename(".new", WEB)],
}


@pytest.mark.parametrize("program", UNCHANGED)
async def test_a_manifest_that_is_unlinked_and_created_again_unchanged_restarts_its_pod(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path, program: str
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    for step in UNCHANGED[program]:
        await world.do(step)
    await trio.sleep(1)
    # As the Go kubelet: "should successfully recreate when file is removed and recreated" of
    # test/e2e_node/mirror_pod_test.go.
    assert [names(snapshot.pods) for _, snapshot in world.seen] == [[], ["web-n"]]


@pytest.mark.parametrize(
    "steps",
    [
        [close(WEB, OLD)],
        [create(".new"), close(".new", OLD), rename(".new", WEB)],
        [rename(WEB, "web.yaml~"), create(WEB), close(WEB, OLD)],
        [unlink(WEB), create(WEB), close(WEB, b"{"), close(WEB, OLD, after=1)],
    ],
)
async def test_no_other_way_to_write_the_same_content_restarts_a_pod(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path, steps: Sequence[Step]
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    for step in steps:
        await world.do(step)
    await trio.sleep(1)
    assert world.seen == []


async def test_a_manifest_that_was_restarted_is_not_restarted_by_the_next_write(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    for step in (unlink(WEB), create(WEB), close(WEB, OLD), close(WEB, OLD, after=1)):
        await world.do(step)
    await trio.sleep(1)
    assert len(world.seen) == 2


async def test_a_manifest_that_is_renamed_into_place_is_read_without_any_wait(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    for step in (create(".new"), close(".new", NEW)):
        await world.do(step)
    (tmp_path / ".new").rename(tmp_path / WEB)
    began = trio.current_time()
    world.watcher.tell(tmp_path / WEB, moved=True)
    await trio.sleep(1)
    ((at, _),) = world.seen
    assert at == began


async def test_of_many_renamed_into_place_only_the_first_has_a_round_of_its_own(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    for number in range(30):
        (tmp_path / ".new").write_bytes(encoded(manifest(f"p{number}")))
        await world.do(rename(".new", f"p{number:02}.yaml"))
    ended = trio.current_time()
    await trio.sleep(1)
    assert [len(snapshot.pods) for _, snapshot in world.seen] == [2, 31]
    assert world.seen[-1][0] - ended < 2 * QUIET


async def test_an_unlinked_manifest_is_gone_after_one_wait_and_one_look(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    await world.do(unlink(WEB))
    began = trio.current_time()
    await trio.sleep(0.5)
    ((at, snapshot),) = world.seen
    assert snapshot.pods == ()
    assert at - began == pytest.approx(REMOVED)
    assert world.hops == 1


async def test_a_removal_waits_neither_for_others_nor_for_what_is_no_manifest(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    world = World(tmp_path)
    await world.start(nursery)
    await world.do(unlink(WEB))
    began = trio.current_time()
    for _ in range(3):
        await world.do(create(".web.yaml.swp", after=REMOVED / 4))
    await world.do(close("z.yaml", encoded(manifest("z"))))
    await trio.sleep(0.5)
    assert [names(snapshot.pods) for _, snapshot in world.seen][-1] == ["z-n"]
    assert world.seen[-1][0] - began < LONGEST / 4
