"""systemd-logind: who tells that the machine is about to go down, and waits while we ask it to.

A *delay* lock is a file descriptor that logind hands out: while it is open, a shutdown waits,
`InhibitDelayMaxSec` at most. `PrepareForShutdown(true)` says that one is wanted, `(false)` that it
was called off. One connection is one session; where it breaks, or another logind takes the
place of the one that was asked, a new one is opened.

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
_CONF = Path("/etc/systemd/logind.conf.d/99-kubelet.conf")


class LogindError(Exception):
    """logind cannot be asked, or says no."""


class InhibitLock(Protocol):
    """While it is held, a shutdown waits."""

    def release(self) -> None: ...


class LogindSession(Protocol):
    """A connection to logind. All but `override_delay` raise `LogindError`."""

    async def inhibit_delay(self) -> float:
        """Return the most seconds that a shutdown waits."""
        ...

    async def override_delay(self, seconds: float) -> None:
        """Have it wait longer: write a drop-in and let logind read it. Raises OSError too."""
        ...

    async def inhibit(self) -> InhibitLock: ...

    async def is_preparing(self) -> bool:
        """Return whether a shutdown is under way already; no signal tells of that one."""
        ...

    async def wait_change(self) -> bool:
        """Wait until a shutdown is wanted (True) or called off (False)."""
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
    """The machine's own; `bus` is an address as D-Bus has them."""

    bus: str = "SYSTEM"
    conf: Path = _CONF

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LogindSession]:
        """Connect, and ask for the signal. Raises `LogindError`."""
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
                connection = await open_dbus_connection(self.bus, enable_fds=True)
        except (OSError, EOFError, KeyError, AuthenticationError, trio.TooSlowError) as exc:
            raise LogindError(f"no connection to D-Bus: {exc!r}") from exc
        except ExceptionGroup as exc:
            raise LogindError(f"no connection to D-Bus: {exc.exceptions}") from exc
        session = _BusSession(connection, self.conf)
        rule = MatchRule(type="signal", interface=_MANAGER, member=_SIGNAL, path=_PATH)
        owner = MatchRule(type="signal", interface=_BUS, member=_OWNER, sender=_BUS)
        owner.add_arg_condition(0, _NAME)
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
        body = ("systemd-logind.service", "all", 1)  # SIGHUP: read the configuration again
        await self.call(new_method_call(systemd, "KillUnit", "ssi", body))

    async def inhibit(self) -> InhibitLock:
        from jeepney import DBusAddress, new_method_call

        manager = DBusAddress(_PATH, bus_name=_NAME, interface=_MANAGER)
        body = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
        reply = await self.call(new_method_call(manager, "Inhibit", "ssss", body))
        return FdLock(reply[0].to_raw_fd())

    async def wait_change(self) -> bool:
        while not self._signals:
            if self._is_replaced:
                raise LogindError("logind was started again")
            self._note(await self._receive())
        return self._signals.popleft()

    async def call(self, message: Message) -> tuple[Any, ...]:
        """Make a call; signals that come before its answer are kept."""
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
