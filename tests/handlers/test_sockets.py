"""Connections that leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kubelet_trio.handlers import DialError, connect, http_get
from kubelet_trio.handlers.http_action import HttpRequest
from tests.handlers.server import http, serving


def time_wait(port: int) -> int:
    """Return how many connections of a port are in TIME_WAIT."""
    ends = f":{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(f[3] == "06" and (f[1].endswith(ends) or f[2].endswith(ends)) for f in lines)


async def test_a_server_reads_a_clean_end_and_nothing_stays_in_time_wait() -> None:
    async with serving(None) as server:
        for _ in range(50):
            (await connect("127.0.0.1", server.port)).finish()
        with trio.fail_after(5):
            await server.wait_ends(50)
        assert server.ends == [b""] * 50
        assert time_wait(server.port) == 0


async def test_http_leaves_nothing_in_time_wait_whoever_closes_first() -> None:
    for closes in (True, False):
        async with serving(http(200, b"ok"), closes=closes) as server:
            for _ in range(50):
                await http_get(HttpRequest("http", "127.0.0.1", server.port, "/"), 5)
            await trio.sleep(0.05)
            assert time_wait(server.port) == 0


async def test_a_name_is_looked_up() -> None:
    async with serving(None) as server:
        (await connect("localhost", server.port)).finish()


async def test_a_name_that_is_not_there_is_said_so() -> None:
    with pytest.raises(DialError, match=r"dial tcp: lookup nowhere\.invalid: no such host"):
        await connect("nowhere.invalid", 80)


async def test_a_connection_given_up_is_closed() -> None:
    async with serving(None) as server:
        with trio.move_on_after(0):
            await connect("127.0.0.1", server.port)
        (await connect("127.0.0.1", server.port)).reset()
