"""The addresses that the agent serves on; one that is in use is retried until it is free.

Pods run without the servers. So an address that another program uses, or that the machine does
not have yet, is no failure but a state with a back-off: `status` and `tree` show the problem, and
the address is opened once it is free.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from kubelet_trio.model import Backoff, Offload, get_logger, thread_offload
from kubelet_trio.server.sockets import Holder, find_holder, open_tcp, open_unix
from kubelet_trio.server.view import PortInfo
from kubelet_trio.supervision import RestartPolicy

log = get_logger()

# A server that keeps failing is restarted for ever, so a bug in it cannot end the agent.
# The budget's window holds enough restarts at this cap for the delay to stay at the cap.
SERVING = RestartPolicy(limit=None, cap=10.0)

Listeners = list[trio.SocketListener]

_FIRST_RETRY = 1.0  # seconds; doubled each time
_LAST_RETRY = 10.0


class Port:
    """One address; `listen` retries until it is open. Made by `Ports`."""

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
        """Return why it is not open, with the process that uses it; "" if there is no problem."""
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
        """Open the address, retrying until that succeeds.

        Args:
            ready: called after the first attempt, failed or not.
            prepare: called before each attempt. OSError and `trouble` fail the attempt.
            trouble: the errors of `prepare` that are expected, such as `TlsError`.
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
            # After the first attempt, failed or not: the tree must not wait for a busy address.
            if backoff.is_reset:
                ready()
            if failure is None:
                self._note_open()
                return listeners
            is_taken = isinstance(failure, OSError) and failure.errno == errno.EADDRINUSE
            self._holder = await self._find() if is_taken else None
            if known != (self._reason, self._holder):
                # Log changes, not attempts.
                log.warning("port.not_open", problem=self.problem(), effect="pods run without it")
            await trio.sleep(backoff.next_delay())

    def _note_open(self) -> None:
        if self._reason:
            log.info("port.open", field=self._field, address=self._address)
        self._reason, self._holder = "", None


def _reason(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


class Ports:
    """All addresses of one agent, in the order of their declaration."""

    def __init__(self, offload: Offload = thread_offload) -> None:
        self._offload = offload
        self._ports: dict[str, Port] = {}

    def tcp(self, name: str, field: str, host: str, port: int) -> Port:
        """Declare a TCP address; `field` is the configuration field that sets it."""
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        find = partial(self._offload, find_holder, host, port)
        return self._add(Port(name, field, shown, partial(open_tcp, host, port), find))

    def unix(self, name: str, field: str, path: Path) -> Port:
        """Declare a unix socket. No other process can hold it: `root_lock` is on its directory."""

        async def open_listeners() -> Listeners:
            await trio.lowlevel.checkpoint()
            return [open_unix(path)]

        async def nobody() -> Holder | None:
            await trio.lowlevel.checkpoint()
            return None

        return self._add(Port(name, field, str(path), open_listeners, nobody))

    def infos(self) -> tuple[PortInfo, ...]:
        """Return the state of each address."""
        return tuple(port.info for port in self._ports.values())

    def problem(self, name: str) -> str:
        """Return why an address is not open; "" if it is, or is not declared."""
        port = self._ports.get(name)
        return port.problem() if port is not None else ""

    def _add(self, port: Port) -> Port:
        self._ports[port.info.name] = port
        return port
