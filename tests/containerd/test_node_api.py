"""The kubelet API on a real runtime: logs, exec, attach and port-forward over TLS."""

from __future__ import annotations

import http.client
import json
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubelet_trio.streaming.spdy import DataReceived, SpdyWire
from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, container, forever, pod
from tests.harness.agent import CommandError
from tests.harness.authority import Authority
from tests.harness.ports import free_port
from tests.harness.websocket import ChannelSocket, RefusedError

STDOUT, STDERR, OUTCOME, RESIZE = 1, 2, 3, 4
SERVER = "while :; do echo hello from the pod | nc -l -p 8080; done"
Connect = Callable[..., ChannelSocket]
V4, V5 = (
    "v4.channel.k8s.io",
    "v5.channel.k8s.io",
)  # containerd speaks the first, the agent the second
TUNNEL = "SPDY/3.1+portforward.k8s.io"
either_protocol = pytest.mark.parametrize("protocol", [V4, V5])


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def serving(make_agent: MakeAgent, port: int, authority: Authority) -> Agent:
    """An agent that lets everybody in who has a certificate, with one pod."""
    agent = make_agent(
        config={
            "address": "127.0.0.1",
            "port": port,
            "authentication": {
                "x509": {"clientCAFile": str(authority.certificate)},
                "webhook": {"enabled": False},
            },
            "authorization": {"mode": "AlwaysAllow"},
        },
        arguments=("--cert-dir", str(authority.directory / "pki")),
    )
    agent.start()
    agent.put(
        pod(
            "web",
            container(
                "main", forever("i=0; while [ $i -lt 3 ]; do echo line $i; i=$((i+1)); done")
            ),
            container("server", SERVER),
            container("cat", "while read line; do echo got $line; done", stdin=True),
        )
    )
    agent.wait_ready("web")
    return agent


@pytest.fixture(scope="module")
def context(serving: Agent, authority: Authority) -> ssl.SSLContext:
    made = authority.directory / "pki" / "kubelet.crt"
    context = ssl.create_default_context(cafile=str(made))
    context.check_hostname = False  # it is made for the addresses of the node's routes
    pair = authority.issue("client", "somebody", "system:masters")
    context.load_cert_chain(pair.certificate, pair.key)
    return context


@pytest.fixture
def connect(port: int, context: ssl.SSLContext) -> Iterator[Connect]:
    made: list[ChannelSocket] = []

    def connect(target: str, protocol: str = V4) -> ChannelSocket:
        made.append(ChannelSocket(port, target, context, protocol=protocol))
        return made[-1]

    yield connect
    for sock in made:
        sock.close()


def get(port: int, context: ssl.SSLContext, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_who_has_no_certificate_is_nobody(serving: Agent, port: int, authority: Authority) -> None:
    made = Path(authority.directory / "pki" / "kubelet.crt")
    context = ssl.create_default_context(cafile=str(made))
    context.check_hostname = False
    assert get(port, context, "/pods") == (401, b"Unauthorized")


def test_pods_and_what_runs_of_them(port: int, context: ssl.SSLContext) -> None:
    status, body = get(port, context, "/pods")
    assert status == 200
    assert [p["metadata"]["name"] for p in json.loads(body)["items"]] == ["web-node"]
    status, body = get(port, context, "/runningpods/")
    [running] = json.loads(body)["items"]
    names = {c["name"] for c in running["spec"]["containers"]}
    assert names == {"main", "server", "cat"}


def test_a_log_is_read_and_followed(port: int, context: ssl.SSLContext) -> None:
    path = "/containerLogs/default/web-node/main"
    assert get(port, context, f"{path}?tailLines=2") == (200, b"line 1\nline 2\n")
    assert get(port, context, f"{path}?limitBytes=4") == (200, b"line")
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    connection.request("GET", f"{path}?follow=true")
    assert connection.getresponse().read(len("line 0\nline 1\nline 2\n")).endswith(b"line 2\n")
    connection.close()


@either_protocol
def test_a_command_speaks_on_both_streams_and_tells_how_it_ended(
    connect: Connect, protocol: str
) -> None:
    script = "command=sh&command=-c&command=echo+out%3B+echo+err+%3E%262%3B+exit+3"
    target = f"/exec/default/web-node/main?{script}&output=1&error=1"
    said = connect(target, protocol).receive_all()
    assert (said[STDOUT], said[STDERR]) == (b"out\n", b"err\n")
    outcome = json.loads(said[OUTCOME])
    assert outcome["reason"] == "NonZeroExitCode"
    assert outcome["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


def test_input_ends_where_the_protocol_can_say_so(connect: Connect) -> None:
    target = "/exec/default/web-node/main?command=wc&command=-c&input=1&output=1&error=1"
    counting = connect(target, V5)
    counting.send(0, b"12345")
    counting.send(255, b"\0")
    said = counting.receive_all()
    assert said[STDOUT].strip() == b"5"
    assert json.loads(said[OUTCOME])["status"] == "Success"


def test_the_outcome_follows_the_last_output(connect: Connect) -> None:
    script = "command=head&command=-c&command=3000000&command=/dev/zero"
    speaking = connect(f"/exec/default/web-node/main?{script}&output=1&error=1", V5)
    said = []
    while (message := speaking.receive()) is not None:
        said.append(message)
    assert [channel for channel, _ in said] == [STDOUT] * (len(said) - 1) + [OUTCOME]
    assert said[0][1] == b""  # the command is connected
    assert sum(len(data) for _, data in said[:-1]) == 3_000_000


def test_the_command_line_runs_a_command(serving: Agent) -> None:
    assert serving.cli("exec", "web", "-c", "main", "--", "echo", "a b") == "a b\n"
    with pytest.raises(CommandError, match="exited 7"):
        serving.cli("exec", "web", "-c", "main", "--", "sh", "-c", "exit 7")


@either_protocol
def test_a_terminal_has_the_size_it_is_given(connect: Connect, protocol: str) -> None:
    shell = connect("/exec/default/web-node/main?command=sh&input=1&output=1&tty=1", protocol)
    shell.send(RESIZE, json.dumps({"Width": 123, "Height": 45}).encode())
    shell.send(0, b"until [ \"$(stty size)\" = '45 123' ]; do sleep 0.1; done; echo now $((6*7))\n")
    shell.receive_until(STDOUT, b"now 42")
    shell.send(0, b"exit\n")
    assert shell.receive_all().get(OUTCOME, b'{"status":"Success"}').count(b"Success") == 1


@either_protocol
def test_what_is_said_to_an_attached_container_arrives(connect: Connect, protocol: str) -> None:
    cat = connect("/attach/default/web-node/cat?input=1&output=1&error=1", protocol)
    cat.send(0, b"this\n")
    cat.receive_until(STDOUT, b"got this\n")


def test_a_port_of_the_pod_answers(connect: Connect) -> None:
    forwarded = connect("/portForward/default/web-node?port=8080")
    said = forwarded.receive_all()
    number = struct.pack("<H", 8080)
    assert said[0] == number + b"hello from the pod\n"
    assert said[1] == number


def test_a_port_of_the_pod_answers_in_spdy_within_a_websocket(connect: Connect) -> None:
    """As `kubectl port-forward` asks."""
    tunnel, wire = connect("/portForward/default/web-node", TUNNEL), SpdyWire(is_client=True)
    opened = {}
    for kind in ("error", "data"):
        opened[kind], frame = wire.open({"streamtype": kind, "port": "8080", "requestid": "0"})
        tunnel.send(frame[0], frame[1:])  # without channels: the first byte is SPDY's
    said, has_ended = b"", False
    while not has_ended:
        message = tunnel.receive()
        assert message is not None
        for event in wire.receive(bytes([message[0]]) + message[1]):
            if isinstance(event, DataReceived) and event.stream_id == opened["data"]:
                said += event.content
                has_ended = event.is_last
    assert said == b"hello from the pod\n"


def test_run_answers_with_the_output(port: int, context: ssl.SSLContext) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    connection.request("POST", "/run/default/web-node/main?cmd=echo%20one%20two")
    assert connection.getresponse().read() == b"one two\n"
    connection.close()


def test_what_is_not_there_is_refused_before_anything_is_switched(connect: Connect) -> None:
    with pytest.raises(RefusedError) as caught:
        connect("/exec/default/none/main?command=sh&output=1")
    assert caught.value.status == 404
