"""Volumes whose files take long to be given to a group are told of, as by the Go kubelet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import PodSecurityContext
from trio.testing import MockClock

from kubelet_trio.model import EventType, ObjectRef
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import VolumeError, VolumeManager
from kubelet_trio.volumes.ownership import Walk, Walks, own_volume
from tests.volumes.make import empty_dir, host_path, pod

PLACE = "u-1/volumes/kubernetes.io~local-volume/data"
FIRST = (
    f"Setting volume ownership for {PLACE} is taking longer than expected, consider using "
    "OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)


@dataclass
class Sink:
    told: list[tuple[float, str, str, str]] = field(default_factory=list)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        assert (involved.kind, involved.name, involved.uid) == ("Pod", "web", "u-1")
        self.told.append((trio.current_time(), type_, reason, message))


class Slow:
    """Work in which files are given to a group for some seconds."""

    def __init__(self, root: Path, seconds: float, begins: float = 0) -> None:
        self.walks = Walks()
        self._root = root
        self._seconds = seconds
        self._begins = begins

    async def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await trio.sleep(self._begins)
        with self.walks.walk(self._root / "pods" / PLACE) as walk:
            walk.files = 7
            await trio.sleep(self._seconds)
        return fn(*args, **kwargs)


def manager(root: Path, slow: Slow, sink: Sink) -> VolumeManager:
    made = VolumeManager(root, FakeMounter(), slow, events=sink)
    made._walks = slow.walks
    return made


@pytest.mark.parametrize(
    ("seconds", "begins", "texts"),
    [
        (29, 0, []),
        (29, 20, []),
        (80, 0, [FIRST]),
        (
            160,
            0,
            [FIRST, *[f"Setting volume ownership for {PLACE}, processed 7 files."] * 2],
        ),
    ],
)
async def test_events_tell_of_it_while_it_lasts(
    tmp_path: Path,
    seconds: float,
    begins: float,
    texts: list[str],
    autojump_clock: MockClock,
) -> None:
    sink = Sink()
    of_pod = pod(empty_dir())
    assert of_pod.spec is not None
    of_pod.spec.securityContext = PodSecurityContext(fsGroup=4242)
    await manager(tmp_path, Slow(tmp_path, seconds, begins), sink).mount(of_pod)
    assert [message for _, _, _, message in sink.told] == texts
    assert {(t, r) for _, t, r, _ in sink.told} <= {("Warning", "VolumePermissionChangeInProgress")}


async def test_a_failure_comes_out_as_it_is(tmp_path: Path, autojump_clock: MockClock) -> None:
    of_pod = pod(host_path(tmp_path / "none", "Directory"))
    assert of_pod.spec is not None
    of_pod.spec.securityContext = PodSecurityContext(fsGroup=4242)
    with pytest.raises(VolumeError, match="type check failed"):
        await manager(tmp_path, Slow(tmp_path, 1), Sink()).mount(of_pod)


def test_every_file_and_directory_counts(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("1", "a/2", "a/b/3"):
        (tmp_path / name).touch()
    seen: list[int] = []

    class Kept(Walks):
        @contextmanager
        def walk(self, root: Path) -> Iterator[Walk]:
            with super().walk(root) as walk:
                yield walk
            seen.append(walk.files)

    own_volume(tmp_path, os.getgid(), read_only=False, walks=Kept())
    assert seen == [6]
