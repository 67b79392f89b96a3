"""kubectl's verbs through a real API server, into containers of either runtime.

The node and its pod are written into the API by the test, as far as the API server needs them to
find the agent: what a node registers is shown elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import (
    Agent,
    Containerd,
    Json,
    container,
    eventually,
    forever,
    is_ready,
    kind,
    pod,
)
from tests.harness.control_plane import ControlPlane, find_program, kubectl
from tests.harness.kube import KubeClient
from tests.harness.ports import free_port

NODE = kind.NODE or "node"
POD = "web-node"  # of the static pod `web` on the node `node`
PODS = "/api/v1/namespaces/default/pods"
_LIMIT = 60.0  # seconds
HELLO = """
import socket
server = socket.create_server(("127.0.0.1", %d))
while True:
    client = server.accept()[0]
    client.sendall(b"hello from the pod\\n")
    client.close()
"""


@dataclass(frozen=True)
class Web:
    """The agent, and where its pod `web` answers with a line."""

    base: Path
    is_process: bool
    port: int

    @property
    def scratch(self) -> str:
        """A directory that commands in the container may write to."""
        return str(self.base / "scratch") if self.is_process else "/tmp"


@pytest.fixture(scope="module", params=["containerd", "process"])
def web(
    request: pytest.FixtureRequest,
    plane: ControlPlane,
    kube: KubeClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Web]:
    """An agent that serves the API server, and its pod `web`."""
    is_process = request.param == "process"
    if kind.NODE:
        if is_process:
            pytest.skip("not on kind: the process runtime")
        yield from _web_of_kind(kube)
        return
    port, served = free_port(), free_port() if is_process else 8080
    serving = plane.authority.issue("kubelet", "node", hosts=("127.0.0.1",))
    config = {
        "address": "127.0.0.1",
        "port": port,
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {
            "x509": {"clientCAFile": str(plane.authority.certificate)},
            "webhook": {"enabled": False},
        },
        "authorization": {"mode": "AlwaysAllow"},
    }
    arguments: tuple[str, ...] = ()
    if is_process:
        config["containerRuntimeEndpoint"] = "process"
        arguments = ("--process-allow-root", "--remove-pods-on-exit")
    manifest = _manifest(served, is_process)
    with Containerd() as containerd:
        base = tmp_path_factory.mktemp("agent")
        agent = Agent(base, containerd, config=config, arguments=arguments)
        (base / "scratch").mkdir()
        try:
            agent.start()
            agent.put(manifest)
            status = agent.wait_ready("web")["status"]
            _register(kube, port, manifest, status)
            yield Web(base, is_process, served)
        finally:
            if is_process and agent.is_running:
                agent.stop()
            agent.close()
            # Other modules have nodes on this API server, one of them of that name.
            for path in (f"{PODS}/{POD}", "/api/v1/nodes/node"):
                if kube.find(path) is not None:
                    kube.delete(path, gracePeriodSeconds=0)
                    kube.wait_gone(path)


def _web_of_kind(kube: KubeClient) -> Iterator[Web]:
    manifest = _manifest(8080, is_process=False)
    spec = {**manifest["spec"], "nodeName": NODE}
    kube.create(PODS, {**manifest, "metadata": {"name": POD}, "spec": spec})
    kube.wait(f"{PODS}/{POD}", is_ready)
    yield Web(Path(), is_process=False, port=8080)
    kube.delete(f"{PODS}/{POD}", gracePeriodSeconds=0)
    kube.wait_gone(f"{PODS}/{POD}")


def _manifest(port: int, is_process: bool) -> Json:
    main = container("main", forever("i=0; while [ $i -lt 3 ]; do echo line $i; i=$((i+1)); done"))
    cat = container("cat", "while read line; do echo got $line; done", stdin=True)
    return pod("web", main, _server(port, is_process), cat)


def _server(port: int, is_process: bool) -> Json:
    if is_process:
        program = {"name": "server", "image": "host", "command": [sys.executable, "-c"]}
        return {**program, "args": [HELLO % port]}
    script = f"while :; do echo hello from the pod | nc -l -p {port}; done"
    return container("server", script)


def _register(kube: KubeClient, port: int, manifest: Json, status: Json) -> None:
    kube.ensure("/api/v1/nodes", {"metadata": {"name": "node"}})
    reached = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    kube.patch("/api/v1/nodes/node/status", {"status": reached})
    spec = {**manifest["spec"], "nodeName": "node"}
    kube.ensure(PODS, {"metadata": {"name": POD}, "spec": spec})
    kube.patch(f"{PODS}/{POD}/status", {"status": {"phase": "Running"}})
    eventually(lambda: kube.get(f"{PODS}/{POD}")["status"]["phase"] == "Running", 60, "running")


def spawn(plane: ControlPlane, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a kubectl that goes on; the caller ends it."""
    program = find_program("kubectl")
    assert program is not None
    command = [str(program), "--kubeconfig", str(plane.admin_kubeconfig), *arguments]
    environment = {**os.environ, "HOME": str(plane.base), "TERM": "xterm"}
    return subprocess.Popen(command, env=environment, **options)  # type: ignore[call-overload,no-any-return]


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """Read until `wanted` has come."""
    said, deadline = b"", time.monotonic() + _LIMIT
    while wanted not in said:
        left = deadline - time.monotonic()
        assert left > 0, said
        if select.select([descriptor], [], [], left)[0]:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:  # a terminal whose other side has gone
                piece = b""
            assert piece, said
            said += piece
    return said


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def test_logs(plane: ControlPlane, web: Web) -> None:
    assert kubectl(plane, "logs", POD, "-c", "main", "--tail=2") == "line 1\nline 2\n"
    stamped = kubectl(plane, "logs", POD, "-c", "main", "--timestamps", "--limit-bytes=31")
    assert stamped.startswith("20")


def test_logs_that_are_followed(plane: ControlPlane, web: Web) -> None:
    following = spawn(plane, "logs", "-f", POD, "-c", "main", stdout=subprocess.PIPE)
    try:
        assert following.stdout is not None
        read_until(following.stdout.fileno(), b"line 2\n")
    finally:
        end(following)


def test_a_command_with_input_and_its_exit_code(plane: ControlPlane, web: Web) -> None:
    assert kubectl(plane, "exec", POD, "-c", "main", "--", "echo", "a b") == "a b\n"
    talking = spawn(
        plane, "exec", "-i", POD, "-c", "main", "--", "sh", "-c", "cat; exit 3",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    said, _ = talking.communicate(b"typed\n", timeout=_LIMIT)
    assert (said, talking.returncode) == (b"typed\n", 3)


def test_a_shell_in_a_terminal_that_is_resized(plane: ControlPlane, web: Web) -> None:
    ours, theirs = pty.openpty()
    _resize(theirs, 40, 100)
    shell = spawn(
        plane, "exec", "-it", POD, "-c", "main", "--", "sh",
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    wait = "until [ \"$(stty size)\" = '%s' ]; do sleep 0.1; done; echo si''ze %s\n"
    try:
        os.write(ours, (wait % ("40 100", "one")).encode())
        read_until(ours, b"size one")
        _resize(ours, 50, 120)
        shell.send_signal(signal.SIGWINCH)  # the terminal is nobody's controlling one
        os.write(ours, (wait % ("50 120", "two")).encode())
        read_until(ours, b"size two")
        os.write(ours, b"exit 7\n")
        deadline = time.monotonic() + _LIMIT
        while shell.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    os.read(ours, 65536)
                except OSError:
                    break
        assert shell.wait(_LIMIT) == 7
    finally:
        end(shell)
        os.close(ours)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_what_is_said_to_an_attached_container_arrives(plane: ControlPlane, web: Web) -> None:
    attached = spawn(
        plane, "attach", "-i", POD, "-c", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert attached.stdin is not None
        assert attached.stdout is not None
        attached.stdin.write(b"this\n")
        attached.stdin.flush()
        read_until(attached.stdout.fileno(), b"got this\n")
    finally:
        end(attached)


def test_a_forwarded_port_answers(plane: ControlPlane, web: Web) -> None:
    port = free_port()
    forwarding = spawn(
        plane,
        "port-forward",
        POD,
        f"{port}:{web.port}",
        "--address=127.0.0.1",
        stdout=subprocess.PIPE,
    )
    try:
        assert forwarding.stdout is not None
        read_until(forwarding.stdout.fileno(), b"Forwarding from")
        with closing(socket.create_connection(("127.0.0.1", port), _LIMIT)) as client:
            client.settimeout(_LIMIT)
            assert client.recv(100) == b"hello from the pod\n"
    finally:
        end(forwarding)


def test_files_are_copied_both_ways(plane: ControlPlane, web: Web, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "up").write_bytes(content)
    kubectl(plane, "cp", str(tmp_path / "up"), f"{POD}:{web.scratch}/file", "-c", "main")
    kubectl(plane, "cp", f"{POD}:{web.scratch}/file", str(tmp_path / "down"), "-c", "main")
    assert (tmp_path / "down").read_bytes() == content


@pytest.mark.parametrize(
    "verb",
    [
        test_a_command_with_input_and_its_exit_code,
        test_a_shell_in_a_terminal_that_is_resized,
        test_a_forwarded_port_answers,
    ],
)
def test_the_same_over_spdy(
    plane: ControlPlane,
    web: Web,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[ControlPlane, Web], None],
) -> None:
    """As older kubectls speak; newer ones try a WebSocket first."""
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
    verb(plane, web)


def test_what_the_server_proxies(plane: ControlPlane, web: Web) -> None:
    path = f"/api/v1/nodes/{NODE}/proxy"
    assert kubectl(plane, "get", "--raw", f"{path}/healthz") == "ok"
    assert "KubeletConfiguration" in kubectl(plane, "get", "--raw", f"{path}/configz")
    assert '"podRef"' in kubectl(plane, "get", "--raw", f"{path}/stats/summary")
    assert "machine_cpu_cores" in kubectl(plane, "get", "--raw", f"{path}/metrics/cadvisor")
    assert "kubelet_running_pods " in kubectl(plane, "get", "--raw", f"{path}/metrics")
