"""`python -m bench.copy [--peer /path/to/kubelet]`: what `kubectl cp` gets through a node.

A command in a container on a real containerd sends a gigabyte, and another takes one, over the
streams that kubectl uses (SPDY in TLS, past the API server). The client, the agent, containerd and
its shim share the machine, so a figure says as much of it as of the agent: compare the ratios.
"""

from __future__ import annotations

import json
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import click

from bench.contender import Contender, GoKubelet, Meter, Ours, wait_ready
from bench.report import Round, rows, table
from kubelet_trio.streaming.spdy import SpdyWire, data
from tests.harness import Containerd, container, forever, missing, pod
from tests.harness.agent import PROGRAM
from tests.harness.pods import NODE

_FRAME = bytes(32 * 1024)  # as kubectl sends
_BUFFER = 1 << 20
_LIMIT = 600.0  # s without a byte


class StreamError(Exception):
    """The command did not run to its end."""


def send(port: int, size: int) -> None:
    """Give a container `size` bytes of input."""
    # Through a pipe: containerd takes no more input once a command has closed its output.
    with _command(port, "cat | cat > /dev/null", ("stdin", "stdout", "stderr")) as (
        stream,
        streams,
    ):
        frames = memoryview(data(streams["stdin"], _FRAME))
        for _ in range(size // len(_FRAME)):
            stream.sendall(frames)
        stream.sendall(data(streams["stdin"], b"", is_last=True))
        _read_outcome(stream)


def receive(port: int, size: int) -> None:
    """Take `size` bytes of output of a container."""
    script = f"dd if=/dev/zero bs=10k count={size // 10240 + 1} 2>/dev/null"
    with _command(port, script, ("stdout", "stderr")) as (stream, _):
        assert _read_outcome(stream) > size


def _read_outcome(stream: ssl.SSLSocket) -> int:
    """Read to the end, where the outcome is, and return how many bytes came."""
    taken, end = 0, b""
    room = bytearray(_BUFFER)
    while count := stream.recv_into(room):
        taken += count
        end = (end + bytes(room[max(0, count - 4096) : count]))[-4096:]
    if b'"status":"Success"' not in end:
        raise StreamError(f"the command failed: {end[-300:]!r}")
    return taken


@contextmanager
def _command(
    port: int, script: str, names: tuple[str, ...]
) -> Iterator[tuple[ssl.SSLSocket, dict[str, int]]]:
    """Run a script in the container; yields the connection and the ids of its streams."""
    asked = {"stdin": "input", "stdout": "output", "stderr": "error"}
    command = [("command", word) for word in ("sh", "-c", script)]
    query = urlencode([*command, *((asked[name], "1") for name in names)])
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    head = (
        f"POST /exec/default/copy-{NODE}/main?{query} HTTP/1.1\r\nHost: node\r\n"
        "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", port), _LIMIT) as plain,
        context.wrap_socket(plain) as stream,
    ):
        stream.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = stream.recv(1)
            answer += piece
            if not piece:
                raise StreamError(f"no answer: {answer!r}")
        if b" 101 " not in answer.split(b"\r\n", 1)[0]:
            raise StreamError(answer.decode())
        wire, streams = SpdyWire(is_client=True), {}
        for kind in ("error", *names):
            streams[kind], frame = wire.open({"streamtype": kind})
            stream.sendall(frame)
        yield stream, streams


def measure(contender: Contender, size: int) -> dict[str, float]:
    """Copy both ways once to warm up, then measure."""
    contender.start()
    contender.put(pod("copy", container("main", forever())))
    wait_ready(contender, {"copy"}, 0.2)
    found, port = {}, contender.api_port
    ways: dict[str, Callable[[int, int], None]] = {"down": receive, "up": send}
    for way, copy in ways.items():
        copy(port, 32 << 20)
        meter = Meter(contender.pid)
        began, cpu = time.monotonic(), meter.cpu()
        copy(port, size)
        found[f"{way}, MB/s"] = size / 1e6 / (time.monotonic() - began)
        found[f"{way}, CPU s/GB"] = (meter.cpu() - cpu) / (size / 1e9)
    return found


@click.command()
@click.option("--peer", type=click.Path(path_type=Path, exists=True), help="A Go kubelet.")
@click.option("--rounds", default=3, show_default=True, help="Each contender once a round.")
@click.option("--size", default=1024, show_default=True, help="MiB each way.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write results here.")
def main(peer: Path | None, rounds: int, size: int, json_file: Path | None) -> None:
    """Copy into and out of a container through this agent, and through a peer, in turn."""
    if lacks := missing():
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    taken: list[Round] = []
    names = ["", ""]
    for number in range(rounds):
        found: dict[str, dict[str, float]] = {}
        turns = [0, 1] if peer is not None else [0]
        for turn in turns if number % 2 == 0 else reversed(turns):
            with tempfile.TemporaryDirectory() as base, Containerd() as containerd:
                place = Path(base)
                contender: Contender = (
                    GoKubelet(peer.absolute(), place / "peer", containerd)
                    if turn and peer is not None
                    else Ours(PROGRAM, place / "ours", containerd, serve=True)
                )
                try:
                    found[contender.name] = measure(contender, size << 20)
                finally:
                    contender.close()
            names[turn] = contender.name
            click.echo(f"round {number + 1} of {rounds}: {contender.name} is done", err=True)
        taken.append(found)
    theirs = names[1] or None
    for line in table(rows(taken, names[0], theirs), names[0], theirs):
        click.echo(line)
    if json_file is not None:
        json_file.write_text(json.dumps(taken, indent=1))


if __name__ == "__main__":
    main()
