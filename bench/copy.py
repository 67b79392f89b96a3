"""`python -m bench.copy [--peer /path/to/kubelet]`: what `kubectl cp` gets through a node.

A command in a container on a real containerd sends a gigabyte, and another takes one, over the
streams that kubectl uses, in TLS, past the API server: SPDY, which the agent hands through, and
WebSocket (`v5.channel.k8s.io`), which it translates. The floor is the same over the URL that
containerd itself gives, without TLS and without an agent. The client, the agent, containerd and
its shim share the machine, so a figure says as much of it as of the agent: compare the ratios.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import click

from bench.contender import Contender, Meter, serving, wait_ready
from bench.report import Round, rows, table
from kubelet_trio.streaming.spdy import SpdyWire, data
from tests.harness import (
    Containerd,
    CriClient,
    container,
    forever,
    live_containers,
    missing,
    pod,
)
from tests.harness.pods import NODE

_FRAME = bytes(32 * 1024)  # as kubectl sends
_BUFFER = 1 << 20
_LIMIT = 600.0  # s without a byte
_TURNS = 4


Ask = Callable[[str, tuple[str, ...]], socket.socket]  # a script and the names of its streams
_OPTIONS: Mapping[str, str] = {"stdin": "input", "stdout": "output", "stderr": "error"}
_STDIN, _CLOSE = 0, 255  # channels of a WebSocket
_SINK = "cat | cat > /dev/null"  # a pipe: containerd stops reading once a command's output ends
_DONE = b'"status":"Success"'
_CLOSED = b"\x88\x02\x03\xe8"  # the frame that ends a WebSocket


class StreamError(Exception):
    """The command did not run to its end."""


def _source(size: int) -> str:
    return f"dd if=/dev/zero bs=10k count={size // 10240 + 1} 2>/dev/null"


def send(ask: Ask, size: int) -> None:
    """Give a container `size` bytes of input over SPDY."""
    names = ("stdin", "stdout", "stderr")
    with ask(_SINK, names) as stream:
        streams = _open(stream, names)
        frames = memoryview(data(streams["stdin"], _FRAME))
        for _ in range(size // len(_FRAME)):
            stream.sendall(frames)
        stream.sendall(data(streams["stdin"], b"", is_last=True))
        _read_outcome(stream)


def receive(ask: Ask, size: int) -> None:
    """Take `size` bytes of output of a container over SPDY."""
    names = ("stdout", "stderr")
    with ask(_source(size), names) as stream:
        _open(stream, names)
        assert _read_outcome(stream) > size


def send_messages(ask: Ask, size: int) -> None:
    """Give a container `size` bytes of input over a WebSocket."""
    with ask(_SINK, ("stdin", "stdout", "stderr")) as stream:
        for message in _messages(size // len(_FRAME)):
            stream.sendall(message)
        stream.sendall(_frame(2, bytes([_CLOSE, _STDIN])))
        _read_outcome(stream)


def receive_messages(ask: Ask, size: int) -> None:
    """Take `size` bytes of output of a container over a WebSocket."""
    with ask(_source(size), ("stdout", "stderr")) as stream:
        assert _read_outcome(stream) > size


def _messages(count: int) -> Iterator[memoryview]:
    # As kubectl's gorilla/websocket sends them: the channel makes a message a byte longer than
    # its buffer, so that each has a frame of 32 KiB and one of a byte.
    made = [
        memoryview(_frame(2, bytes([_STDIN]) + _FRAME[1:], is_last=False) + _frame(0, _FRAME[:1]))
        for _ in range(64)  # masks
    ]
    for number in range(count):
        yield made[number % len(made)]


def _frame(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    mask, size = os.urandom(4), len(payload)
    repeated = int.from_bytes(mask * (size // 4 + 1), "big") >> 8 * (4 - size % 4)
    masked = (int.from_bytes(payload, "big") ^ repeated).to_bytes(size, "big")
    length = bytes([0x80 | size]) if size < 126 else struct.pack(">BH", 0x80 | 126, size)
    return bytes([opcode | (0x80 if is_last else 0)]) + length + mask + masked


def _read_outcome(stream: socket.socket) -> int:
    """Read to the end, and return how many bytes came, the outcome among them."""
    taken, end, is_done = 0, b"", False
    room = bytearray(_BUFFER)
    while count := stream.recv_into(room):
        taken += count
        # Not always last: the channels of a WebSocket do not wait for each other.
        is_done = is_done or _DONE in end + room[:4096] or room.find(_DONE, 0, count) >= 0
        end = (end + bytes(room[max(0, count - 4096) : count]))[-4096:]
        if end.endswith(_CLOSED):  # a WebSocket, which the client ends as well
            break
    if not is_done:
        raise StreamError(f"the command failed: {end[-300:]!r}")
    return taken


def _open(stream: socket.socket, names: tuple[str, ...]) -> dict[str, int]:
    """Open the streams of a command over SPDY, and return their ids."""
    wire, streams = SpdyWire(is_client=True), {}
    for kind in ("error", *names):
        streams[kind], frame = wire.open({"streamtype": kind})
        stream.sendall(frame)
    return streams


def _exec(
    port: int, upgrade: tuple[str, str], script: str, names: tuple[str, ...]
) -> socket.socket:
    """Ask the agent to run a script in the container."""
    command = [("command", word) for word in ("sh", "-c", script)]
    query = urlencode([*command, *((_OPTIONS[name], "1") for name in names)])
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), _LIMIT)
    stream = context.wrap_socket(plain)
    return _upgraded(stream, f"/exec/default/copy-{NODE}/main?{query}", upgrade)


def _direct(containerd: Containerd, script: str, names: tuple[str, ...]) -> socket.socket:
    """Ask containerd to run a script in the container."""
    with CriClient(containerd.socket) as cri:
        container_id = live_containers(cri, f"copy-{NODE}")["main"]
        url = urlsplit(cri.exec_url(container_id, ["sh", "-c", script], names))
    plain = socket.create_connection((url.hostname, url.port), _LIMIT)
    return _upgraded(plain, url.path, _SPDY)


_SPDY = "POST", "SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io"
_WEBSOCKET = (
    "GET",
    "websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
)


def _upgraded(stream: socket.socket, target: str, upgrade: tuple[str, str]) -> socket.socket:
    method, headers = upgrade
    head = f"{method} {target} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n"
    stream.sendall(f"{head}Upgrade: {headers}\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = stream.recv(1)
        answer += piece
        if not piece:
            raise StreamError(f"no answer: {answer!r}")
    if b" 101 " not in answer.split(b"\r\n", 1)[0]:
        raise StreamError(answer.decode())
    return stream


def measure(contender: Contender, containerd: Containerd, size: int) -> dict[str, float]:
    """Copy once each way to warm up, then measure the ways in turns: the load of others varies."""
    contender.start()
    contender.put(pod("copy", container("main", forever())))
    wait_ready(contender, {"copy"}, 0.2)
    spdy = partial(_exec, contender.api_port, _SPDY)
    websocket = partial(_exec, contender.api_port, _WEBSOCKET)
    direct = partial(_direct, containerd)
    ways: dict[str, Callable[[int], None]] = {
        "down": partial(receive, spdy),
        "up": partial(send, spdy),
        "down by WebSocket": partial(receive_messages, websocket),
        "up by WebSocket": partial(send_messages, websocket),
        "down from containerd itself": partial(receive, direct),
        "up to containerd itself": partial(send, direct),
    }
    spent = {way: _Spent() for way in ways}
    for copy in ways.values():
        copy(32 << 20)
    meter = Meter(contender.pid)
    for turn in range(_TURNS):
        for way in ways if turn % 2 == 0 else reversed(ways):
            began, cpu = time.monotonic(), meter.cpu()
            ways[way](size // _TURNS)
            spent[way].seconds += time.monotonic() - began
            spent[way].cpu += meter.cpu() - cpu
    return _figures(spent, size)


@dataclass
class _Spent:
    seconds: float = 0.0
    cpu: float = 0.0  # of the contender, s


def _figures(spent: Mapping[str, _Spent], size: int) -> dict[str, float]:
    found = {}
    for way, took in spent.items():
        found[f"{way}, MB/s"] = size / 1e6 / took.seconds
        if "itself" not in way:
            found[f"{way}, CPU s/GB"] = took.cpu / (size / 1e9)
    for way in ("down", "up"):
        told = f"{way} by WebSocket, CPU to SPDY's"
        found[told] = found[f"{way} by WebSocket, CPU s/GB"] / found[f"{way}, CPU s/GB"]
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
                contender = serving(peer if turn else None, Path(base), containerd)
                try:
                    found[contender.name] = measure(contender, containerd, size << 20)
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
