"""systemd is told over a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cli.notify import Notifier


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def told(sock: socket.socket) -> list[bytes]:
    messages = []
    try:
        while True:
            messages.append(sock.recv(100))
    except BlockingIOError:
        return messages


def test_a_state_is_sent(systemd: socket.socket, tmp_path: Path) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    notifier.notify("READY=1")
    notifier.notify("STOPPING=1")
    assert told(systemd) == [b"READY=1", b"STOPPING=1"]


def test_an_abstract_socket_works() -> None:
    name = f"kubelet-trio-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.setblocking(False)
        Notifier.from_environment({"NOTIFY_SOCKET": f"@{name}"}).notify("READY=1")
        assert told(sock) == [b"READY=1"]


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/at/all"])
def test_nobody_to_tell_is_no_failure(address: str) -> None:
    Notifier.from_environment({"NOTIFY_SOCKET": address} if address else {}).notify("READY=1")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "42"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "43"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdog_is_ours_only_if_it_says_so(environ: dict[str, str], seconds: float) -> None:
    assert Notifier.from_environment(environ, pid=42).watchdog_seconds == seconds


async def test_the_watchdog_is_fed_at_half_its_time_while_health_holds(
    systemd: socket.socket, tmp_path: Path, autojump_clock: MockClock
) -> None:
    notifier = Notifier(str(tmp_path / "notify"), watchdog_seconds=20)
    is_well = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.run_watchdog, lambda: is_well)
        await trio.sleep(25)
        assert told(systemd) == [b"WATCHDOG=1"] * 3  # at 0, 10 and 20 s
        is_well = False
        await trio.sleep(100)
        assert told(systemd) == []
        is_well = True
        await trio.sleep(10)
        assert told(systemd) == [b"WATCHDOG=1"]
        nursery.cancel_scope.cancel()


async def test_without_a_watchdog_its_task_is_over_at_once() -> None:
    with trio.fail_after(1):
        await Notifier("/x").run_watchdog(lambda: True)
        await Notifier("", 5).run_watchdog(lambda: True)
