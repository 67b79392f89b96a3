"""The client for systemd-logind, which announces the machine's shutdown and can delay it.

A *delay* lock is a file descriptor from logind: while it is open, a shutdown waits, at most
`InhibitDelayMaxSec`. The signal `PrepareForShutdown(true)` announces a shutdown, `(false)` that it
was cancelled. One connection is one session; if it breaks, or logind restarts, the session is
over and the caller opens a new one.

https://systemd.io/INHIBITOR_LOCKS/
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trio

from kubelet_trio.model import Purpose, thread_offload

if TYPE_CHECKING:
    from jeepney import Message
    from jeepney.io.trio import DBusConnection

_NAME, _PATH = "org.freedesktop.login1", "/org/freedesktop/login1"
_MANAGER = "org.freedesktop.login1.Manager"
_SIGNAL, _PREPARING = "PrepareForShutdown", "PreparingForShutdown"
_BUS, _OWNER = "org.freedesktop.DBus", "NameOwnerChanged"
_CALL_LIMIT = 10.0  # seconds for an answer
# The Go kubelet's file (OverrideInhibitDelay in pkg/kubelet/nodeshutdown/systemd).
_CONF = Path("/etc/systemd/logind.conf.d/99-kubelet.conf")


class LogindError(Exception):
    """logind cannot be reached, or refused a call."""


class InhibitLock(Protocol):
    """A delay lock: until it is released, a shutdown waits."""

    def release(self) -> None: ...


class LogindSession(Protocol):
    """A connection to logind. Every method raises `LogindError`."""

    async def inhibit_delay(self) -> float:
        """Return the maximum delay of a shutdown in seconds."""
        ...

    async def override_delay(self, seconds: float) -> None:
        """Raise the maximum delay by a drop-in file that logind reloads. Raises OSError too."""
        ...

    async def inhibit(self) -> InhibitLock:
        """Take a delay lock."""
        ...

    async def is_preparing(self) -> bool:
        """Return whether a shutdown is in progress; its signal came before this session."""
        ...

    async def wait_change(self) -> bool:
        """Wait until a shutdown is announced (True) or cancelled (False)."""
        ...


class Logind(Protocol):
    """Opens sessions."""

    def open(self) -> AbstractAsyncContextManager[LogindSession]:
        """Open a session. Raises `LogindError`."""
        ...


@dataclass(slots=True)
class FdLock:
    """A lock that is a file descriptor."""

    fd: int

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


@dataclass(frozen=True, slots=True)
class SystemLogind:
    """The machine's logind; `bus` is a D-Bus address."""

    bus: str = "SYSTEM"
    conf: Path = _CONF

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LogindSession]:
        """Connect, and subscribe to the signal. Raises `LogindError`."""
        session = await self._connect()
        try:
            yield session
        finally:
            session.close()

    async def _connect(self) -> _BusSession:
        from jeepney import MatchRule, message_bus
        from jeepney.auth import AuthenticationError
        from jeepney.io.trio import open_dbus_connection

        try:
            with trio.fail_after(_CALL_LIMIT):
                # `Inhibit` returns a file descriptor.
                connection = await open_dbus_connection(self.bus, enable_fds=True)
        except (OSError, EOFError, KeyError, AuthenticationError, trio.TooSlowError) as exc:
            raise LogindError(f"no connection to D-Bus: {exc!r}") from exc
        except ExceptionGroup as exc:
            raise LogindError(f"no connection to D-Bus: {exc.exceptions}") from exc
        session = _BusSession(connection, self.conf)
        rule = MatchRule(type="signal", interface=_MANAGER, member=_SIGNAL, path=_PATH)
        # After a restart of logind its bus name has a new owner, and the lock is lost.
        owner = MatchRule(type="signal", interface=_BUS, member=_OWNER, sender=_BUS)
        owner.add_arg_condition(0, _NAME)
        # Before the caller reads a property: a signal in between would be lost.
        try:
            await session.call(message_bus.AddMatch(rule))
            await session.call(message_bus.AddMatch(owner))
        except LogindError:
            session.close()
            raise
        return session


@dataclass(slots=True)
class _BusSession:
    connection: DBusConnection
    conf: Path
    _signals: deque[bool] = field(default_factory=deque)
    _is_replaced: bool = False

    def close(self) -> None:
        self.connection.socket.close()

    async def inhibit_delay(self) -> float:
        # Microseconds on D-Bus, seconds in logind.conf(5).
        return int(await self._property("InhibitDelayMaxUSec")) / 1e6

    async def is_preparing(self) -> bool:
        return bool(await self._property(_PREPARING))

    async def _property(self, name: str) -> Any:
        from jeepney import DBusAddress, Properties

        manager = DBusAddress(_PATH, bus_name=_NAME, interface=_MANAGER)
        reply = await self.call(Properties(manager).get(name))
        return reply[0][1]

    async def override_delay(self, seconds: float) -> None:
        from jeepney import DBusAddress, new_method_call

        text = f"# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds:.0f}\n"
        await thread_offload.of(Purpose.RECORDS)(_write, self.conf, text)
        systemd = DBusAddress(
            "/org/freedesktop/systemd1",
            bus_name="org.freedesktop.systemd1",
            interface="org.freedesktop.systemd1.Manager",
        )
        # SIGHUP makes logind reload its configuration, as in ReloadLogindConf.
        body = ("systemd-logind.service", "all", 1)
        await self.call(new_method_call(systemd, "KillUnit", "ssi", body))

    async def inhibit(self) -> InhibitLock:
        from jeepney import DBusAddress, new_method_call

        manager = DBusAddress(_PATH, bus_name=_NAME, interface=_MANAGER)
        body = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
        reply = await self.call(new_method_call(manager, "Inhibit", "ssss", body))
        # From here on the lock owns the descriptor; jeepney's wrapper no longer closes it.
        return FdLock(reply[0].to_raw_fd())

    async def wait_change(self) -> bool:
        while not self._signals:
            if self._is_replaced:
                raise LogindError("logind restarted")  # and has lost the lock
            self._note(await self._receive())
        return self._signals.popleft()

    async def call(self, message: Message) -> tuple[Any, ...]:
        """Make a call; queue signals that arrive before its reply. Raises `LogindError`."""
        from jeepney import HeaderFields, MessageType

        serial = next(self.connection.outgoing_serial)
        try:
            with trio.fail_after(_CALL_LIMIT):
                try:
                    await self.connection.send(message, serial=serial)
                except (OSError, trio.BrokenResourceError) as exc:
                    raise LogindError(f"the connection to D-Bus is lost: {exc!r}") from exc
                while True:
                    reply = await self._receive()
                    if reply.header.fields.get(HeaderFields.reply_serial) == serial:
                        break
                    self._note(reply)
        except trio.TooSlowError as exc:
            raise LogindError(f"no answer within {_CALL_LIMIT:.0f} s") from exc
        if reply.header.message_type is MessageType.error:
            raise LogindError(f"{reply.header.fields.get(HeaderFields.error_name)}: {reply.body}")
        return tuple(reply.body)

    async def _receive(self) -> Message:
        try:
            return await self.connection.receive()
        except (
            OSError,
            trio.BrokenResourceError,
            trio.EndOfChannel,
            trio.ClosedResourceError,
        ) as exc:
            raise LogindError(f"the connection to D-Bus is lost: {exc!r}") from exc

    def _note(self, message: Message) -> None:
        from jeepney import HeaderFields

        member = message.header.fields.get(HeaderFields.member)
        if member == _SIGNAL:
            self._signals.append(bool(message.body[0]))
        elif member == _OWNER and message.body[2]:  # the name has a new owner
            self._is_replaced = True


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text)
