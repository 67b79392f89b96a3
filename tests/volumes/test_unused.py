"""The sweep of unused volumes: kinds that cannot be read, crashes and restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.model import inline_offload
from kubelet_trio.volumes.async_volumes import AsyncVolumes
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.spec import AsyncKind, AsyncVolumePlugin
from kubelet_trio.volumes.unused import UnusedVolumes


@dataclass
class Left:
    """A kind with volumes that no pod needs; undoing one takes a minute, one at a time."""

    names: set[str]
    unreadable: str = ""
    hangs: bool = False
    crash: Exception | None = None
    busy: set[str] = field(default_factory=set)

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        if self.hangs:
            await trio.sleep_forever()
        if self.unreadable:
            raise VolumeError("", self.unreadable)

        def undo_of(name: str) -> Callable[[], Awaitable[None]]:
            return lambda: self._undo(name)

        return {name: undo_of(name) for name in self.names}

    async def _undo(self, name: str) -> None:
        assert name not in self.busy, f"{name} is being undone"
        self.busy.add(name)
        try:
            await trio.sleep(60)
            crash, self.crash = self.crash, None
            if crash is not None:
                raise crash
            self.names.remove(name)
        finally:
            self.busy.remove(name)


def kind(name: str, left: Left, has_remains: Callable[[], bool] = lambda: True) -> AsyncKind:
    return AsyncKind(name, lambda _: False, has_remains, lambda: cast("AsyncVolumePlugin", left))


def volumes(*kinds: AsyncKind) -> AsyncVolumes:
    return AsyncVolumes(kinds, inline_offload)


def unreadable() -> bool:
    raise OSError(5, "Input/output error", "/var/lib/kubelet/plugins")


async def test_a_kind_that_cannot_be_read_stops_no_other(autojump_clock: MockClock) -> None:
    bad, good = Left({"x"}, unreadable="reading failed"), Left({"a", "b"})
    sweep = UnusedVolumes(
        volumes(kind("bad", bad), kind("good", good), kind("eio", bad, unreadable))
    )
    async with trio.open_nursery() as agent:
        with capture_logs() as logs:
            agent.start_soon(sweep.run)
            await trio.sleep(1000)
        assert (bad.names, good.names) == ({"x"}, set())
        told = sorted(entry["kind"] for entry in logs if entry["event"] == "volumes.not_read")
        assert told == ["bad", "eio"]  # once each
        bad.unreadable = ""
        await trio.sleep(200)
        assert bad.names == set()
        agent.cancel_scope.cancel()


async def test_a_kind_whose_look_hangs_stops_no_other(autojump_clock: MockClock) -> None:
    hangs, good = Left(set(), hangs=True), Left({"a"})
    sweep = UnusedVolumes(volumes(kind("hangs", hangs), kind("good", good)))
    with pytest.raises(VolumeError, match="hangs: looking for volumes without a pod did not end"):
        await sweep.clean()
    assert good.names == set()


async def test_a_restarted_sweep_forgets_nothing_and_does_nothing_twice(
    autojump_clock: MockClock,
) -> None:
    left = Left({"a", "b"}, crash=RuntimeError("bug"))
    sweep = UnusedVolumes(volumes(kind("kind", left)))
    with pytest.RaisesGroup(RuntimeError):
        await sweep.run()
    assert left.busy == set()
    assert left.names >= {"a"} or left.names >= {"b"}
    async with trio.open_nursery() as agent:
        agent.start_soon(sweep.run)
        await trio.sleep(100)
        assert left.names == set()
        agent.cancel_scope.cancel()
