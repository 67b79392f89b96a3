"""An address that cannot be opened is a state: it is named, and opened when it can be."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.model import inline_offload
from kubelet_trio.server import Port, Ports
from kubelet_trio.server.sockets import Holder, find_holder


def taken_port() -> socket.socket:
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen()
    return held


@asynccontextmanager
async def listening(port: Port) -> AsyncIterator[list[trio.SocketListener]]:
    """Run `listen` beside; yields what it has opened, none at first."""
    opened: list[trio.SocketListener] = []

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        opened.extend(await port.listen(task_status.started))

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        yield opened
        nursery.cancel_scope.cancel()
    for listener in opened:
        await listener.aclose()


async def test_a_free_address_is_open_when_it_is_ready() -> None:
    ports = Ports(inline_offload)
    async with listening(ports.tcp("healthz", "healthzPort", "127.0.0.1", 0)) as opened:
        assert opened
        assert [p.problem for p in ports.infos()] == [""]


async def test_a_taken_address_is_named_with_its_holder_and_opened_once_free(
    autojump_clock: MockClock,
) -> None:
    ports = Ports(inline_offload)
    with taken_port() as held, capture_logs() as logged:
        number = held.getsockname()[1]
        async with listening(ports.tcp("healthz", "healthzPort", "127.0.0.1", number)) as opened:
            await trio.sleep(60)
            assert not opened
            (info,) = ports.infos()
            name = Path("/proc/self/comm").read_text().strip()
            taken = f"healthzPort 127.0.0.1:{number}: Address already in use"
            assert info.problem == f"{taken} by {name} (pid {os.getpid()})"
            held.close()
            await trio.sleep(11)
            assert opened
            assert ports.infos()[0].problem == ""
    assert [line["event"] for line in logged] == ["port.not_open", "port.open"]


async def test_what_it_needs_beforehand_may_fail_as_well(autojump_clock: MockClock) -> None:
    ready = trio.Event()
    failures = [ValueError("the key does not fit"), OSError(2, "No such file or directory")]

    async def prepare() -> None:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop(0)

    port = Ports(inline_offload).tcp("https", "port", "127.0.0.1", 0)
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            for listener in await port.listen(ready.set, prepare, (ValueError,)):
                await listener.aclose()

        nursery.start_soon(listen)
        await ready.wait()
        assert port.problem() == "port 127.0.0.1:0: the key does not fit"
    assert not failures


async def test_a_bug_in_what_it_needs_is_no_state() -> None:
    async def prepare() -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    port = Ports(inline_offload).tcp("https", "port", "127.0.0.1", 0)
    with pytest.raises(ZeroDivisionError):
        await port.listen(lambda: None, prepare)


ROWS = """  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid t inode
   0: {v4}:2808 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 77 1 0
"""


@pytest.mark.parametrize(
    ("bound", "state", "host", "is_found"),
    [
        ("0100007F", "0A", "127.0.0.1", True),
        ("00000000", "0A", "127.0.0.1", True),  # it has all addresses
        ("0200007F", "0A", "0.0.0.0", True),  # we want all of them
        ("0200007F", "0A", "127.0.0.1", False),  # another address is not in the way
        ("0100007F", "01", "127.0.0.1", False),  # a connection does not listen
    ],
)
def test_who_stands_in_the_way(
    tmp_path: Path, bound: str, state: str, host: str, is_found: bool
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(ROWS.format(v4=bound, state=state))
    (tmp_path / "9/fd").mkdir(parents=True)
    (tmp_path / "9/fd/4").symlink_to("socket:[77]")
    (tmp_path / "9/comm").write_text("kubelet\n")
    assert find_holder(host, 0x2808, tmp_path) == (Holder(9, "kubelet") if is_found else None)


def test_a_machine_without_proc_tells_nothing(tmp_path: Path) -> None:
    assert find_holder("127.0.0.1", 10248, tmp_path) is None
