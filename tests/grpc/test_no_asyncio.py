"""gRPC here is trio's alone: whatever a library may import, no loop of asyncio is ever made."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio.base_events

def refuse(*args):
    raise AssertionError("a loop of asyncio was made")

asyncio.base_events.BaseEventLoop.__init__ = refuse

import trio
from kubelet_trio.grpc import RawMessage
from tests.grpc.echo import echo_wire

async def main():
    async with echo_wire() as (echo, _, _):
        assert await echo.unary(RawMessage(b"a")) == b"re:a"
        assert await echo.double([RawMessage(b"a")]) == [b"aa"]

trio.run(main)
"""
IMPORTS = """
import sys
import structlog, trio, h2.connection, trio_util
before = "asyncio" in sys.modules
import kubelet_trio.grpc
assert before or "asyncio" not in sys.modules
"""


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_call_makes_no_asyncio_loop() -> None:
    run(PROGRAM)


def test_the_import_brings_no_asyncio_of_its_own() -> None:
    run(IMPORTS)
