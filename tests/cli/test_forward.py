"""`kubelet-trio port-forward` as a process of its own, and `attach` beside it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.forward import Forward, parse_forward
from tests.cli.running import ServedView, served
from tests.server.node_view import FakeKubeletApiView
from tests.server.streams.test_local import Local

_LIMIT = 60.0  # s
POD: dict[str, Any] = {
    "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}]}
}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    view = FakeKubeletApiView()
    view.fake_runtime.local_streams = local = Local()
    with served(view, tmp_path) as running:
        running.do(lambda: setattr(local, "nursery", running.nursery))
        yield running


def command(agent: ServedView, *arguments: str) -> list[str]:
    program = [sys.executable, "-c", "from kubelet_trio.cli import main; main()"]
    return [*program, "--root-dir", str(agent.root), *arguments]


def test_a_connection_goes_into_the_pod_and_half_closes(agent: ServedView) -> None:
    asked = command(agent, "port-forward", "web", ":80", ":81", "--address", "127.0.0.1")
    with subprocess.Popen(
        ["env", "--default-signal=INT", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONUNBUFFERED": "1", "PATH": "/usr/bin:/bin"},
    ) as forward:
        assert forward.stdout is not None
        assert forward.stderr is not None
        good, bad = (int(forward.stdout.readline().split()[2].split(":")[1]) for _ in range(2))
        with socket.create_connection(("127.0.0.1", good), _LIMIT) as client:
            client.sendall(b"hello")
            client.shutdown(socket.SHUT_WR)
            assert client.makefile("rb").read() == b"you said hello"
        with socket.create_connection(("127.0.0.1", bad), _LIMIT) as client:
            assert client.recv(1) == b""
        assert "error forwarding port 81 to pod" in forward.stderr.readline()
        forward.send_signal(signal.SIGINT)
        assert forward.wait(_LIMIT) == 130


def test_an_attached_client_hears_the_container(agent: ServedView) -> None:
    ran = subprocess.run(
        command(agent, "attach", "-i", "web"),
        input=b"hello",
        capture_output=True,
        check=False,
        timeout=_LIMIT,
    )
    assert (ran.stdout, ran.returncode) == (b"hello", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80", Forward(80, 80)),
        ("8080:80", Forward(8080, 80)),
        (":80", Forward(0, 80)),
        ("8080:http", Forward(8080, 80)),
        ("http", Forward(80, 80)),
    ],
)
def test_forwards(text: str, expected: Forward) -> None:
    assert parse_forward(text, POD) == expected


@pytest.mark.parametrize("text", ["0", "x:80", "80:", "70000", "1:2:3", "nope"])
def test_what_is_no_forward_is_refused(text: str) -> None:
    with pytest.raises(ClientError):
        parse_forward(text, POD)
