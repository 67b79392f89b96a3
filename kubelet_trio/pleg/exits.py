"""Exit watchers: they wait on a container's process, so that its end is known at once.

One task per running container, in a nursery of its own. A pidfd becomes readable when its process
ends, so Trio waits for it as for a socket, without threads or polling. A container whose process
cannot be watched is *unguarded*: the relist then comes every second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import trio

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import Backoff, Bell, ContainerId, ContainerRecord, PodUid, get_logger
from kubelet_trio.pleg.inspector import Inspector
from kubelet_trio.pleg.state import PlegState

log = get_logger()

FIRST_DELAY = 0.005  # s
LONGEST_DELAY = 0.64  # s
_GROWTH = 1.5
_STOPPING_DELAY = 0.25  # s between two looks at a stop in progress
_EARLY = 0.85  # of the usual lag: when the runtime is asked for the first time
_LONGEST_LAG = 0.3  # s
WRONG_PID_AFTER = 5.0  # s
RETRY_DELAY = 1.0  # s
# Seconds for which a stop in progress is left to its caller, who queries the container after it.
STOP_DELAY = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_ROUNDED = 0.05  # s by which the start of a process may seem later than it was


class ExitWatch(Protocol):
    """A watch on one process. The end of the context closes it."""

    def __enter__(self) -> ExitWatch: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def wait_exited(self) -> None:
        """Return once the process has ended."""
        ...

    def is_older(self, than: float) -> bool:
        """Whether the process is known to have begun before a Unix time. Does not block."""
        ...


class ExitWaiter(Protocol):
    """Opens watches on processes that are not our children."""

    def open(self, pid: int) -> ExitWatch:
        """Watch the process that has this PID now.

        Raises `ProcessLookupError` if there is none, another `OSError` if processes cannot be
        watched on this machine.
        """
        ...


class PidfdWatch:
    """One open pidfd."""

    def __init__(self, fd: int, pid: int) -> None:
        self._fd = fd
        self._pid = pid

    def __enter__(self) -> PidfdWatch:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Trio requires this before a descriptor is closed that a task may wait for.
        trio.lowlevel.notify_closing(self._fd)
        os.close(self._fd)

    async def wait_exited(self) -> None:
        await trio.lowlevel.wait_readable(self._fd)

    def is_older(self, than: float) -> bool:
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as file:
                # After the name, which may contain anything; proc_pid_stat(5), field 22.
                ticks = int(file.read().rpartition(b")")[2].split()[19])
        except (OSError, ValueError, IndexError):
            return False
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS
        return time.time() - age <= than + _ROUNDED


class PidfdExitWaiter:
    """Watches processes through pidfds (Linux 5.3 and later)."""

    def open(self, pid: int) -> PidfdWatch:
        # From here on the pidfd names this process, even if its PID is reused. Whether it is the
        # right process is for the caller to check afterwards.
        return PidfdWatch(os.pidfd_open(pid), pid)


class ExitWatchers:
    """Watches every running container whose PID is known."""

    def __init__(
        self,
        waiter: ExitWaiter | None,
        state: PlegState,
        on_unguarded: Callable[[], None],
        is_stopping: Callable[[ContainerId], bool] = lambda _id: False,
    ) -> None:
        """Take what is needed to watch.

        Args:
            waiter: opens the watches; None: every container is unguarded.
            state: what runs; exits are written to it.
            on_unguarded: called when a container cannot be watched.
            is_stopping: whether a call is under way that ends a container.
        """
        self._waiter = waiter
        self._state = state
        self._on_unguarded = on_unguarded
        self._is_stopping = is_stopping
        self._watches: dict[ContainerId, trio.CancelScope] = {}
        self._watched: dict[PodUid, set[ContainerId]] = {}  # the same, by pod
        self._unwatchable: set[ContainerId] = set()
        self._changed: dict[PodUid, None] = {}  # pods to check, in order, each once
        self._woken = Bell()
        self._lag = 0.0  # s from a recent exit until the runtime has shown it
        self._logged: set[str] = set()

    def is_guarded(self, container_id: ContainerId) -> bool:
        """Return whether a task watches for this container's exit."""
        return container_id in self._watches

    @property
    def count(self) -> int:
        return len(self._watches)

    def has_unguarded(self) -> bool:
        """Return whether the exit of some running container shows only in a relist."""
        return any(
            not self._can_watch(record.id, record.pid) for _, record in self._state.running()
        )

    def look_at(self, uid: PodUid) -> None:
        """Start and end watches for a pod whose records changed."""
        self._changed[uid] = None
        self._woken.ring()

    async def run(self, inspector: Inspector) -> None:
        """Keep one watch per running container, until cancelled."""
        self._changed.update(dict.fromkeys(self._state.tables))
        try:
            async with trio.open_nursery() as watches:
                while True:
                    changed = self._take_changed()
                    for uid in changed:
                        for container_id in self._watched.get(uid, ()):
                            if self._state.has_ended(container_id):
                                self._watches[container_id].cancel()
                    for uid in changed:
                        self._watch_pod(uid, watches, inspector)
                    await self._woken.wait_ring()
        finally:
            self._watches.clear()
            self._watched.clear()

    def _take_changed(self) -> tuple[PodUid, ...]:
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def _watch_pod(self, uid: PodUid, watches: trio.Nursery, inspector: Inspector) -> None:
        table = self._state.tables.get(uid)
        for record in tuple(table.running()) if table else ():
            if record.id in self._watches:
                continue
            if self._can_watch(record.id, record.pid):
                scope = self._watches[record.id] = trio.CancelScope()
                self._watched.setdefault(uid, set()).add(record.id)
                watches.start_soon(self._watch, uid, record, scope, inspector, name=record.id)
            else:
                self._on_unguarded()

    def _can_watch(self, container_id: ContainerId, pid: int) -> bool:
        return self._waiter is not None and pid > 0 and container_id not in self._unwatchable

    async def _watch(
        self,
        uid: PodUid,
        record: ContainerRecord,
        scope: trio.CancelScope,
        inspector: Inspector,
    ) -> None:
        assert self._waiter is not None
        container_id, is_visible = record.id, True
        with scope:
            try:
                with self._waiter.open(record.pid) as watch:
                    # A process that began before its container had started is no later one with
                    # the same PID. If that is not known, the runtime is asked.
                    if not watch.is_older(record.started_at):
                        await self._confirm_running(uid, container_id, inspector)
                    await watch.wait_exited()
            except ProcessLookupError:
                pass  # it has ended already, or is in a PID namespace that we cannot see
            except OSError as exc:
                self._give_up(uid, container_id, f"cannot watch processes: {exc}")
                return
            is_visible = await self._wait_exit_visible(uid, container_id, inspector)
        self._leave(uid, container_id)
        if not is_visible and not self._state.has_ended(container_id):
            self._give_up(uid, container_id, "it still runs although its PID has ended")

    async def _confirm_running(
        self, uid: PodUid, container_id: ContainerId, inspector: Inspector
    ) -> None:
        """Query the status after the watch was opened, until the runtime answers.

        If the container still runs, the watched process is its own and not a later one with the
        same PID. If it does not, publishing that cancels this task.
        """
        while True:
            if await self._ask(uid, container_id, inspector):
                break
            await trio.sleep(RETRY_DELAY)
        await trio.lowlevel.checkpoint()

    async def _wait_exit_visible(
        self, uid: PodUid, container_id: ContainerId, inspector: Inspector
    ) -> bool:
        """Query the status until the runtime shows the exit; return whether it does.

        A runtime notices an exit some time after the kernel: containerd about 60 ms, up to 0.5 s
        under load. The first query comes shortly before the lag of the exit before. A runtime that
        still shows the container running after 5 s has reported a wrong PID, for instance one of
        another PID namespace.
        """
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, factor=_GROWTH)
        patience, began, delay = WRONG_PID_AFTER, trio.current_time(), _EARLY * self._lag
        while not self._state.has_ended(container_id):
            if patience <= 0:
                return False
            if self._is_stopping(container_id) and trio.current_time() < began + STOP_DELAY:
                # Its caller queries the container afterwards, which ends this task.
                await trio.sleep(_STOPPING_DELAY)
                continue
            delay = max(delay, backoff.next_delay())
            await trio.sleep(delay)
            if self._state.has_ended(container_id):
                break
            asked_at = trio.current_time()
            # A failed query says nothing about the PID, so it does not count.
            if await self._ask(uid, container_id, inspector):
                patience -= delay
                if self._state.has_ended(container_id):
                    # It came into sight at some time during the last delay.
                    self._lag = min(asked_at - began - delay / 2, _LONGEST_LAG)
            delay = 0.0
        return True

    async def _ask(self, uid: PodUid, container_id: ContainerId, inspector: Inspector) -> bool:
        """Query once and publish the answer; return whether there was one."""
        try:
            await inspector.ask_container(container_id)
        except RuntimeCallError:
            return False
        self._state.publish(uid)
        return True

    def _leave(self, uid: PodUid, container_id: ContainerId) -> None:
        self._watches.pop(container_id, None)
        watched = self._watched.get(uid, set())
        watched.discard(container_id)
        if not watched:
            self._watched.pop(uid, None)

    def _give_up(self, uid: PodUid, container_id: ContainerId, why: str) -> None:
        self._leave(uid, container_id)
        self._unwatchable.add(container_id)
        self._unwatchable = {c for c in self._unwatchable if not self._state.has_ended(c)}
        # Once per reason: on a node without pidfds it holds for every container.
        if why not in self._logged:
            self._logged.add(why)
            log.warning("pleg.unguarded", containerID=container_id, reason=why)
        self._on_unguarded()
