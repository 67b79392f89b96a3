"""The registry of plugins: a directory where each plugin puts a socket.

Owns a supervised child for each socket below `<root>/plugins_registry`, named by the socket's path
there. inotify wakes it, and it scans the directory every few seconds as well. A socket that goes
ends its child and with it the registration; one that is replaced (another inode or mtime) ends the
child, then starts another. What may go wrong:

* The directory cannot be read or holds too much: logged once; known sockets stay as they are.
* A plugin fails, hangs or lies: its own child handles that (`registration`).

Nothing of gRPC is imported before the first socket appears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import trio

from kubelet_trio.model import (
    Offload,
    Phase,
    Purpose,
    Watcher,
    get_logger,
    next_due,
    open_watcher,
    thread_offload,
)
from kubelet_trio.plugins.claims import NameClaims
from kubelet_trio.plugins.registration import HandlerOf, PluginSocket
from kubelet_trio.plugins.scan import RegistryListing, SocketIdentity, scan_registry
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor

log = get_logger()

_RESYNC = 10.0  # seconds between scans without an event
_QUIET = 0.1  # seconds between two scans at least: a plugin may replace its socket in a loop


class PluginRegistry:
    """Watches the sockets of plugins, and runs a child for each.

    After a crash the supervisor calls `run` again on the same object, which keeps its state.
    """

    def __init__(
        self,
        directory: Path,
        handler_of: HandlerOf,
        *,
        open_watcher: Callable[[], Watcher] = open_watcher,
        offload: Offload = thread_offload.of(Purpose.PLUGINS),
    ) -> None:
        """Set the registry up; `run` does the work.

        Args:
            directory: is created if it is missing.
            handler_of: returns the handler for plugins of a type, None if there is none. Called
                when a plugin of that type appears, so it may import and build the handler then.
            open_watcher: opens the watcher that `run` uses and closes.
            offload: runs blocking file access in threads.
        """
        self.sockets = DynamicSupervisor("sockets")
        self._directory = str(directory)
        self._handler_of = handler_of
        self._open_watcher = open_watcher
        self._offload = offload
        self._claims = NameClaims()
        self._known: Mapping[str, SocketIdentity] = {}
        self._problem = ""

    def children(self) -> tuple[DynamicSupervisor, ChildSpec]:
        """Return the parts of the supervision tree: the sockets' children, and the watch."""
        return self.sockets, ChildSpec("watch", self.run, note=lambda: self._problem)

    def totals(self) -> Iterator[tuple[str, str]]:
        """Yield socket and state, as `plugin_manager_total_plugins` of the Go kubelet has them."""
        for claim in self._claims.held:
            yield claim.socket, "actual_state_of_world"
        for name in self._known:
            yield self._path(name), "desired_state_of_world"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Scan, start and stop children, wait for a change; until cancelled."""
        watcher = self._open_watcher()
        try:
            task_status.started()
            while True:
                await self._round(watcher)
                scanned = trio.current_time()
                with trio.move_on_at(next_due(_RESYNC, Phase.SCAN)):
                    await watcher.wait_changes()
                    await trio.sleep_until(scanned + _QUIET)
        finally:
            watcher.close()

    async def _round(self, watcher: Watcher) -> None:
        try:
            listing = await self._scan()
            # A watch that is new may have missed a change since the scan: scan again.
            while watcher.watch(listing.watch):
                listing = await self._scan()
        except TimeoutError:  # a disk that hangs says nothing about its sockets
            self._report("does not answer")
            return
        self._report(listing.problem)
        self._apply(listing.sockets)

    async def _scan(self) -> RegistryListing:
        """Scan the directory. Raises TimeoutError."""
        return await self._offload(scan_registry, self._directory, self._known)

    def _apply(self, found: Mapping[str, SocketIdentity]) -> None:
        """Make the children those of these sockets."""
        for name, identity in self._known.items():
            if found.get(name) != identity:
                self.sockets.stop_child(name)
        for name, identity in found.items():
            if self._known.get(name) != identity:
                # Starts when the child of the socket that it replaces has ended.
                self.sockets.start_child(self._child(name, identity))
        self._known = found

    def _child(self, name: str, identity: SocketIdentity) -> ChildSpec:
        socket = PluginSocket(self._path(name), identity, self._handler_of, self._claims)
        return ChildSpec(name, socket.run, note=socket.note)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem:
                log.warning("plugins.registry", path=self._directory, problem=problem)
