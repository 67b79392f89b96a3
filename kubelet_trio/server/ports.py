"""The addresses that the agent serves on: each is open, or waits until it can be.

A server only shows the node, or hands on what a client asks. So an address that another program
has, or that the machine does not have yet, is a state with a back-off and not a failure: pods
run meanwhile, `status` and `tree` name the problem, and the address is opened once it is free.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from kubelet_trio.model import Backoff, Offload, get_logger, thread_offload
from kubelet_trio.server.holder import Holder, find_holder
from kubelet_trio.server.listeners import open_tcp, open_unix
from kubelet_trio.server.view import PortInfo
from kubelet_trio.supervision import RestartPolicy

log = get_logger()

# A server that keeps failing is restarted for ever: no bug in one ends what runs pods.
# (With this cap a budget's window holds enough restarts for the delay to stay at the cap.)
SERVING = RestartPolicy(limit=None, cap=10.0)

Listeners = list[trio.SocketListener]

_FIRST_RETRY = 1.0  # seconds; doubled each time
_LAST_RETRY = 10.0


class Port:
    """One address: `listen` opens it, however long that takes. Made by `Ports`."""

    def __init__(
        self,
        name: str,
        field: str,
        address: str,
        open_listeners: Callable[[], Awaitable[Listeners]],
        find: Callable[[], Awaitable[Holder | None]],
    ) -> None:
        self._name = name
        self._field = field
        self._address = address
        self._open = open_listeners
        self._find = find
        self._reason = ""
        self._holder: Holder | None = None

    @property
    def info(self) -> PortInfo:
        return PortInfo(self._name, self._field, self._address, self.problem())

    def problem(self) -> str:
        """Return why it is not open, naming whoever has it; "" while there is no trouble."""
        if not self._reason:
            return ""
        by = f" by {self._holder}" if self._holder is not None else ""
        return f"{self._field} {self._address}: {self._reason}{by}"

    async def listen(
        self,
        ready: Callable[[], None],
        prepare: Callable[[], Awaitable[None]] | None = None,
        trouble: tuple[type[Exception], ...] = (),
    ) -> Listeners:
        """Return the open address, trying until it can be had.

        `ready` is called after the first attempt, whatever came of it. `prepare` is done before
        each attempt; what it raises of `trouble`, and any OSError, counts as a failed attempt.
        """
        expected: tuple[type[Exception], ...] = OSError, *trouble
        backoff = Backoff(_FIRST_RETRY, _LAST_RETRY)
        while True:
            known = self._reason, self._holder
            failure: Exception | None = None
            try:
                if prepare is not None:
                    await prepare()
                listeners = await self._open()
            except expected as exc:
                failure = exc
                self._reason = _reason(exc)
            if backoff.is_reset:  # the first attempt
                ready()
            if failure is None:
                self._note_open()
                return listeners
            is_taken = isinstance(failure, OSError) and failure.errno == errno.EADDRINUSE
            self._holder = await self._find() if is_taken else None
            if known != (self._reason, self._holder):
                # One line a change, not one an attempt.
                log.warning("port.not_open", problem=self.problem(), effect="pods run without it")
            await trio.sleep(backoff.next_delay())

    def _note_open(self) -> None:
        if self._reason:
            log.info("port.open", field=self._field, address=self._address)
        self._reason, self._holder = "", None


def _reason(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


class Ports:
    """All addresses of one agent, in the order they were declared."""

    def __init__(self, offload: Offload = thread_offload) -> None:
        self._offload = offload
        self._ports: dict[str, Port] = {}

    def tcp(self, name: str, field: str, host: str, port: int) -> Port:
        """Declare a TCP address; `field` is what the user configures it by."""
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        find = partial(self._offload, find_holder, host, port)
        return self._add(Port(name, field, shown, partial(open_tcp, host, port), find))

    def unix(self, name: str, field: str, path: Path) -> Port:
        """Declare a unix socket, which nobody else can have: its directory is locked."""

        async def open_listeners() -> Listeners:
            await trio.lowlevel.checkpoint()
            return [open_unix(path)]

        async def nobody() -> Holder | None:
            await trio.lowlevel.checkpoint()
            return None

        return self._add(Port(name, field, str(path), open_listeners, nobody))

    def infos(self) -> tuple[PortInfo, ...]:
        """Return how each of them is."""
        return tuple(port.info for port in self._ports.values())

    def _add(self, port: Port) -> Port:
        self._ports[port.info.name] = port
        return port
