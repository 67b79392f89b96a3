"""The real D-Bus, with a logind of the test's own on a bus of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    MessageType,
    message_bus,
    new_method_return,
    new_signal,
)
from jeepney.io.trio import DBusConnection, open_dbus_connection

from kubelet_trio.shutdown import LogindError, SystemLogind

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")

_CONF = """
<busconfig>
  <type>session</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>
"""
_MANAGER = DBusAddress(
    "/org/freedesktop/login1",
    bus_name="org.freedesktop.login1",
    interface="org.freedesktop.login1.Manager",
)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[str]:
    """Run a bus; return its address."""
    path, conf = tmp_path / "bus", tmp_path / "bus.conf"
    conf.write_text(_CONF.format(path=path))
    command = ["dbus-daemon", f"--config-file={conf}", "--nofork", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()  # it listens now
        yield f"unix:path={path}"
        daemon.terminate()


@dataclass(slots=True)
class TestLogind:
    """A logind that knows delay locks."""

    __test__ = False

    delay: int = 5_000_000
    is_preparing: bool = False
    after_reload: int = 5_000_000
    held: list[int] = field(default_factory=list)  # our ends of the locks
    asked: list[tuple[str, ...]] = field(default_factory=list)
    connection: DBusConnection | None = None

    async def serve(
        self, bus: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.connection = await open_dbus_connection(bus, enable_fds=True)
        async with self.connection:
            async with self.connection.router() as router:
                for name in ("org.freedesktop.login1", "org.freedesktop.systemd1"):
                    await router.send_and_get_reply(message_bus.RequestName(name))
            task_status.started()
            while True:
                message = await self.connection.receive()
                if message.header.message_type is MessageType.method_call:
                    await self.answer(message)

    async def answer(self, message: Message) -> None:
        assert self.connection is not None
        member = message.header.fields[HeaderFields.member]
        if member == "Get" and message.body[1] == "PreparingForShutdown":
            reply = new_method_return(message, "v", (("b", self.is_preparing),))
        elif member == "Get":
            reply = new_method_return(message, "v", (("t", self.delay),))
        elif member == "KillUnit":
            self.delay = self.after_reload
            reply = new_method_return(message)
        else:
            self.asked.append(tuple(message.body))
            ours, theirs = os.pipe()
            self.held.append(ours)
            reply = new_method_return(message, "h", (theirs,))
            await self.connection.send(reply)
            os.close(theirs)
            return
        await self.connection.send(reply)

    async def announce(self, wanted: bool) -> None:
        assert self.connection is not None
        await self.connection.send(new_signal(_MANAGER, "PrepareForShutdown", "b", (wanted,)))

    async def wait_released(self) -> None:
        """Wait until the last lock is given back: the pipe's other end is closed."""
        await trio.lowlevel.wait_readable(self.held[-1])
        assert os.read(self.held[-1], 1) == b""
        os.close(self.held.pop())


async def test_a_lock_is_taken_a_shutdown_told_and_the_lock_given_back(
    bus: str, tmp_path: Path
) -> None:
    logind = TestLogind()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(logind.serve, bus)
            async with SystemLogind(bus, tmp_path / "99.conf").open() as session:
                assert await session.inhibit_delay() == 5.0
                lock = await session.inhibit()
                (asked,) = logind.asked
                assert (asked[0], asked[1], asked[3]) == ("shutdown", "kubelet", "delay")
                await logind.announce(True)
                await logind.announce(False)
                assert await session.wait_change() is True
                assert await session.wait_change() is False
                lock.release()
                await logind.wait_released()
            nursery.cancel_scope.cancel()


async def test_a_longer_delay_is_written_and_read_again(bus: str, tmp_path: Path) -> None:
    logind = TestLogind(after_reload=30_000_000)
    conf = tmp_path / "logind.conf.d/99-kubelet.conf"
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(logind.serve, bus)
            async with SystemLogind(bus, conf).open() as session:
                await session.override_delay(30)
                assert conf.read_text().splitlines()[1:] == ["[Login]", "InhibitDelayMaxSec=30"]
                assert await session.inhibit_delay() == 30.0
            nursery.cancel_scope.cancel()


async def test_a_bus_without_logind_is_an_expected_error(bus: str, tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with SystemLogind(bus, tmp_path / "99.conf").open() as session:
            with pytest.raises(LogindError, match="ServiceUnknown"):
                await session.inhibit()


async def test_a_machine_without_a_bus_is_an_expected_error(tmp_path: Path) -> None:
    with pytest.raises(LogindError, match="no connection"):
        async with SystemLogind(f"unix:path={tmp_path}/none").open():
            pass


async def test_a_bus_that_goes_is_an_expected_error(bus: str, tmp_path: Path) -> None:
    logind = TestLogind()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(logind.serve, bus)
            async with SystemLogind(bus, tmp_path / "99.conf").open() as session:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True), pytest.raises(LogindError):
                    await session.inhibit()


async def test_a_shutdown_that_is_under_way_is_known(bus: str, tmp_path: Path) -> None:
    logind = TestLogind()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(logind.serve, bus)
            async with SystemLogind(bus, tmp_path / "99.conf").open() as session:
                assert not await session.is_preparing()
                logind.is_preparing = True
                assert await session.is_preparing()
            nursery.cancel_scope.cancel()


async def test_a_logind_that_is_started_again_is_asked_again(bus: str, tmp_path: Path) -> None:
    first, second = TestLogind(), TestLogind()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            life = await nursery.start(_serve_alone, first, bus)
            async with SystemLogind(bus, tmp_path / "99.conf").open() as session:
                await session.inhibit()
                life.cancel()
                await nursery.start(second.serve, bus)
                with pytest.raises(LogindError, match="logind restarted"):
                    await session.wait_change()
            nursery.cancel_scope.cancel()


async def _serve_alone(
    logind: TestLogind, bus: str, *, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(logind.serve, bus)
        task_status.started(nursery.cancel_scope)
