"""Children that do as they are told and write down when: the cast of these tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import trio
import trio.testing

from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Supervisor, TreeNode


class Actor:
    """A child for `ChildSpec.run`: `journal` gets `<name> start`, `ready`, and how it ended.

    Args:
        name: What the journal calls it.
        journal: Where it writes, often shared with others.
        ready_after: Seconds from its start until it is ready.
        crash_after: For each of its first lives the seconds from ready to a crash.
        crash_early: How many of its first lives crash before they are ready.
        cleanup: Seconds that it needs to end when cancelled, shielded.
    """

    def __init__(
        self,
        name: str,
        journal: list[str],
        *,
        ready_after: float = 0,
        crash_after: Sequence[float] = (),
        crash_early: int = 0,
        cleanup: float = 0,
    ) -> None:
        self.name = name
        self.journal = journal
        self.lives = 0
        self.started_at: list[float] = []
        self._ready_after = ready_after
        self._crash_after = crash_after
        self._crash_early = crash_early
        self._cleanup = cleanup
        self._told = trio.Event()
        self._order: BaseException | None = None

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        life, self.lives = self.lives, self.lives + 1
        self.started_at.append(trio.current_time())
        self._told, self._order = trio.Event(), None
        self.write("start")
        try:
            await trio.sleep(self._ready_after)
            if life < self._crash_early:
                raise ValueError(f"{self.name} broke early")
            self.write("ready")
            task_status.started()
            await self._act(life)
        except trio.Cancelled:
            with trio.move_on_after(self._cleanup, shield=True):
                await trio.sleep_forever()
            self.write("cancelled")
            raise
        except BaseException:
            self.write("crashed")
            raise
        self.write("returned")

    def crash(self, exc: BaseException | None = None) -> None:
        self._order = exc or ValueError(f"{self.name} broke")
        self._told.set()

    def finish(self) -> None:
        self._told.set()

    def write(self, what: str) -> None:
        self.journal.append(f"{self.name} {what}")

    async def _act(self, life: int) -> None:
        if life < len(self._crash_after):
            await trio.sleep(self._crash_after[life])
            raise ValueError(f"{self.name} broke")
        await self._told.wait()
        if self._order is not None:
            raise self._order


@contextlib.asynccontextmanager
async def running(supervisor: Supervisor | DynamicSupervisor) -> AsyncIterator[None]:
    """Run a supervisor, from ready until the block ends; then cancel it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        yield
        nursery.cancel_scope.cancel()


async def settle(seconds: float = 0) -> None:
    """Let virtual time pass, and then let everybody finish what is due."""
    await trio.sleep(seconds)
    await trio.testing.wait_all_tasks_blocked()


def node(tree: TreeNode, *names: str) -> TreeNode:
    """Return the node at a path below the root."""
    for name in names:
        tree = next(child for child in tree.children if child.name == name)
    return tree


def specs(*actors: Actor) -> list[ChildSpec]:
    return [ChildSpec(actor.name, actor.run) for actor in actors]
