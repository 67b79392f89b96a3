"""A whole agent whose HTTPS port is attacked by a thousand silent and a hundred hostile clients.

Agent and attackers are processes of their own. Meanwhile the lease is renewed before it runs out,
no probe of a pod fails, and who has business there is answered within the time that it would wait.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.harness.authority import Authority, Pair
from tests.harness.besieged import LEASE, Report
from tests.harness.rude import ACTS, SILENT

PATIENCE = 60.0  # seconds for a process to begin or end
SIEGE = 12.0  # seconds
DEADLINE = 30.0  # of an API server for a request to a node; Prometheus waits for 10
PAUSE = 0.25
_LOGS = "/containerLogs/default/web/web"


@asynccontextmanager
async def process(module: str, argument: str, log: Path) -> AsyncIterator[trio.Process]:
    command = [sys.executable, "-m", module, argument]
    with log.open("wb") as stderr:
        child = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
    try:
        yield child
    finally:
        child.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
            await child.wait()


async def line(child: trio.Process) -> Any:
    assert child.stdout is not None
    said = b""
    with trio.fail_after(PATIENCE):
        while not said.endswith(b"\n"):
            piece = bytes(await child.stdout.receive_some())
            assert piece, f"the process has ended: {said!r}"
            said += piece
    return json.loads(said)


async def last_line(child: trio.Process) -> Any:
    assert child.stdin is not None
    await child.stdin.aclose()
    said = await line(child)
    with trio.fail_after(PATIENCE):
        assert await child.wait() == 0
    return said


class Client:
    """Somebody who has business at the port."""

    def __init__(self, port: int, *head: str, pair: Pair | None = None) -> None:
        self.port, self.head = port, head
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        if pair is not None:
            self.context.load_cert_chain(pair.certificate, pair.key)
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []

    async def connect(self) -> trio.SSLStream[trio.SocketStream]:
        tcp = await trio.open_tcp_stream("127.0.0.1", self.port)
        return trio.SSLStream(tcp, self.context, server_hostname="n", https_compatible=True)

    async def ask(self, stream: trio.abc.Stream, path: str, *more: str) -> tuple[int, bytes]:
        head = (f"GET {path} HTTP/1.1", "Host: node", *self.head, *more, "", "")
        await stream.send_all("\r\n".join(head).encode())
        return await _answer(stream)

    async def ask_anew(self, path: str, wanted: bytes) -> None:
        """Ask again and again, each time on a connection of its own."""
        while True:
            try:
                with trio.fail_after(DEADLINE):
                    stream = await self.connect()
                    try:
                        status, body = await self.ask(stream, path, "Connection: close")
                    finally:
                        await trio.aclose_forcefully(stream)
            except (trio.BrokenResourceError, trio.TooSlowError, OSError) as exc:
                self.failed.append(f"{path}: {exc!r}")
            else:
                if status != 200 or wanted not in body:
                    self.failed.append(f"{path}: {status} {body[:200]!r}")
                self.answered[path] += 1
            await trio.sleep(PAUSE)

    async def ask_on(self, paths: Sequence[str]) -> None:
        """Ask on one connection, which nobody may close."""
        stream = await self.connect()
        try:
            while True:
                for path in paths:
                    with trio.fail_after(DEADLINE):
                        status, _ = await self.ask(stream, path)
                    if status != 200:
                        self.failed.append(f"{path}: {status}")
                    self.answered[f"kept {path}"] += 1
                await trio.sleep(PAUSE)
        except (trio.BrokenResourceError, trio.TooSlowError) as exc:
            self.failed.append(f"kept: {exc!r}")
        finally:
            await trio.aclose_forcefully(stream)


async def _answer(stream: trio.abc.Stream) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await _more(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    named = dict(v.partition(b":")[::2] for v in head.lower().split(b"\r\n")[1:])
    if b"content-length" in named:
        while len(body) < int(named[b"content-length"]):
            body += await _more(stream)
    else:
        while not body.endswith(b"0\r\n\r\n"):
            body += await _more(stream)
    return int(head.split(b" ")[1]), body


async def _more(stream: trio.abc.Stream) -> bytes:
    piece = bytes(await stream.receive_some())
    if not piece:
        raise trio.BrokenResourceError("closed in the middle of an answer")
    return piece


@pytest.mark.skipif(sys.platform != "linux", reason="every address of 127.0.0.0/8 is Linux's")
async def test_a_besieged_node_keeps_its_lease_its_probes_and_its_answers(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("apiserver", "admin")
    async with process("tests.harness.besieged", str(tmp_path), tmp_path / "agent.log") as agent:
        port = (await line(agent))["port"]
        kubectl = Client(port, pair=pair)
        prometheus = Client(port, "Authorization: Bearer watcher")
        with trio.fail_after(PATIENCE):  # who is known before, and only then the attack
            stream = await prometheus.connect()
            assert (await prometheus.ask(stream, "/metrics"))[0] == 200
            await trio.aclose_forcefully(stream)
        rude = process("tests.harness.rude", f"{port}", tmp_path / "rude.log")
        async with rude as attackers, trio.open_nursery() as nursery:
            nursery.start_soon(kubectl.ask_anew, _LOGS, b"x" * 100)
            nursery.start_soon(kubectl.ask_anew, "/pods", b'"name":"web"')
            nursery.start_soon(prometheus.ask_anew, "/metrics", b"kubelet_running_pods")
            nursery.start_soon(kubectl.ask_on, ("/healthz", _LOGS, "/stats/summary"))
            assert await line(attackers) == {"silent": SILENT}
            await trio.sleep(SIEGE)
            done = await last_line(attackers)
            nursery.cancel_scope.cancel()
        report = Report(**await last_line(agent))
    print(report, kubectl.answered, prometheus.answered, done)
    assert len(done) == len(ACTS) + 1, "an attack did not take place"
    assert kubectl.failed + prometheus.failed == []
    assert len(kubectl.answered) == 5
    assert len(prometheus.answered) == 1
    assert report.renewals > 1
    assert report.longest < LEASE, "the lease ran out"
    assert (report.restarts, report.unready, report.failed_probes) == (0, 0, [])
    assert report.crashed == []
    assert (tmp_path / "rude.log").read_text() == ""
