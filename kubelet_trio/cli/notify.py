"""sd_notify(3): reports to systemd that the agent is ready, alive, or stopping.

Each report is a datagram to the socket in NOTIFY_SOCKET; without it every call does nothing. The
watchdog reports at half of WATCHDOG_USEC, and only while the agent is healthy: systemd restarts
an agent that hangs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

import trio

from kubelet_trio.model import get_logger, next_due

log = get_logger()


class Notifier:
    """The service manager, if there is one."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        # "@" means the NUL of an abstract socket address (sd_notify(3)).
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds  # 0: no watchdog

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int | None = None) -> Notifier:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID as sd_watchdog_enabled(3) does."""
        # WATCHDOG_PID: a child process inherits the variables, but must not use them.
        mine = environ.get("WATCHDOG_PID", "") in ("", str(pid or os.getpid()))
        micros = environ.get("WATCHDOG_USEC", "")
        seconds = int(micros) / 1_000_000 if mine and micros.isdecimal() else 0.0
        address = environ.get("NOTIFY_SOCKET", "")
        return cls(address if address[:1] in ("/", "@") else "", seconds)

    def notify(self, state: str) -> None:
        """Send a state such as `READY=1`. Never blocks; a failure is logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(state.encode(), self._address)
        except OSError as exc:
            log.warning("notify.failed", state=state, error=str(exc))

    async def run_watchdog(self, is_healthy: Callable[[], bool]) -> None:
        """Report to the watchdog while the agent is healthy; return if there is no watchdog."""
        if not self._address or not self.watchdog_seconds:
            return
        while True:
            if is_healthy():
                self.notify("WATCHDOG=1")
            else:
                log.warning("watchdog.withheld")
            # Half the interval, as sd_watchdog_enabled(3) recommends.
            await trio.sleep_until(next_due(self.watchdog_seconds / 2))
