"""Single runs of probes: exec on a fake runtime, the others on real sockets."""

from __future__ import annotations

import contextlib

import h2.config
import h2.connection
import h2.events
import pytest
import trio
from lightkube.models.core_v1 import (
    Container,
    ContainerPort,
    EnvVar,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Probe,
    TCPSocketAction,
)
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult, RuntimeCallError, v1
from kubelet_trio.grpc import GRPCError, Server, Status
from kubelet_trio.model import ContainerId
from kubelet_trio.probes.checks import Target, check
from kubelet_trio.probes.exec import open_commands, static_command
from kubelet_trio.probes.generated.grpc.health.v1 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)
from kubelet_trio.probes.generated.grpc.health.v1.server import HealthBase
from kubelet_trio.probes.state import Finding, ProbeError
from kubelet_trio.testing import FakeExec, FakeRuntime, FaultKind
from tests.handlers.server import http, serving


async def running(runtime: FakeRuntime) -> ContainerId:
    """Return a container that runs in the fake."""
    runtime.images.present.add("web")
    pod = v1.PodSandboxConfig(metadata=v1.PodSandboxMetadata("p", "u", "n", 0))
    sandbox = await runtime.run_pod_sandbox(pod)
    config = v1.ContainerConfig(
        metadata=v1.ContainerMetadata("c", 0), image=v1.ImageSpec(image="web")
    )
    container_id = await runtime.create_container(sandbox, config, pod)
    await runtime.start_container(container_id)
    return container_id


async def exec_check(runtime: FakeRuntime, command: list[str] | None = None) -> Finding:
    container_id = await running(runtime)
    probe = Probe(exec=ExecAction(command=command or ["true"]), timeoutSeconds=2)
    return await checked(runtime, probe, Target(Container(name="c"), container_id, ""))


async def checked(runtime: FakeRuntime, probe: Probe, target: Target) -> Finding:
    """Run a probe that then ends, whatever of its command is left."""
    failure: ProbeError | None = None
    async with open_commands(runtime) as commands:
        try:
            return await check(probe, target, commands)
        except ProbeError as exc:  # through the commands' nursery it would come out a group
            failure = exc
    assert failure is not None
    raise failure


async def test_exit_code_0_is_success_and_any_other_failure(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.on_exec = lambda _c, cmd: FakeExec(result=ExecResult(b"out", b"err", int(cmd[0])))
    container_id = await running(runtime)
    target = Target(Container(name="c"), container_id, "")
    for code, success in (("0", True), ("3", False)):
        probe = Probe(exec=ExecAction(command=[code]))
        assert await checked(runtime, probe, target) == Finding(success, "outerr")


async def test_the_output_of_a_command_is_cut(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.on_exec = lambda _c, _cmd: FakeExec(result=ExecResult(b"x" * 20_000, b"", 1))
    assert len((await exec_check(runtime)).output) == 10 * 1024


async def test_a_command_that_takes_too_long_is_a_failure(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.on_exec = lambda _c, _cmd: FakeExec(takes=100)
    found = await exec_check(runtime, ["sleep", "100"])
    assert found == Finding(False, 'command timed out: "sleep 100" timed out after 2s')
    assert trio.current_time() < 5


async def test_a_runtime_that_never_answers_is_not_waited_for(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.latency["ExecSync"] = 1e6
    started = trio.current_time()
    assert not (await exec_check(runtime)).is_success
    assert trio.current_time() - started < 5


async def test_a_late_command_ends_by_itself(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    container_id = await running(runtime)
    runtime.latency["ExecSync"] = 40.0
    async with open_commands(runtime) as commands:
        assert not (await commands.check(container_id, ["true"], 1)).is_success
        assert trio.current_time() == 3
        assert commands.is_busy
        await trio.sleep(38)
        assert not commands.is_busy
        runtime.latency.clear()
        assert (await commands.check(container_id, ["true"], 1)).is_success
    assert not runtime.cuts


async def test_an_error_of_the_runtime_is_tried_three_times(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.faults.add(
        FaultKind.ERROR,
        "ExecSync",
        times=2,
        error=RuntimeCallError("ExecSync", "container is stopping", code="Unknown"),
    )
    assert (await exec_check(runtime)).is_success
    runtime = FakeRuntime()
    error = RuntimeCallError("ExecSync", "container is stopping", code="Unknown")
    runtime.faults.add(FaultKind.ERROR, "ExecSync", times=None, error=error)
    with pytest.raises(ProbeError) as caught:
        await exec_check(runtime)
    assert str(caught.value) == "rpc error: code = Unknown desc = container is stopping"
    assert caught.value.state == "unknown"
    assert len(runtime.calls_of("ExecSync")) == 3


def test_a_command_knows_the_literal_environment_only() -> None:
    env = [EnvVar("A", value="1"), EnvVar("B", value="$(A)")]
    assert static_command(["$(A)", "$(B)", "$$(A)", "$(C)"], env) == ["1", "$(A)", "$(A)", "$(C)"]


async def socket_check(probe: Probe, container: Container | None = None) -> Finding:
    target = Target(container or Container(name="c"), ContainerId("id"), "127.0.0.1")
    return await checked(FakeRuntime(), probe, target)


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (200, Finding(True, "body")),
        (299, Finding(True, "body")),
        (304, Finding(True, "Probe terminated redirects, Response body: ", is_warning=True)),
        (400, Finding(False, "HTTP probe failed with statuscode: 400")),
        (503, Finding(False, "HTTP probe failed with statuscode: 503")),
    ],
)
async def test_a_status_from_200_to_399_is_success(status: int, found: Finding) -> None:
    async with serving(http(status, b"" if status == 304 else b"body")) as server:
        probe = Probe(httpGet=HTTPGetAction(port="web", path="/"), timeoutSeconds=5)
        named = Container(name="c", ports=[ContainerPort(server.port, name="web")])
        assert await socket_check(probe, named) == found


async def test_a_redirect_to_another_host_is_a_success_with_a_warning() -> None:
    async with serving(http(302, b"b", "Location: http://other.example/")) as server:
        found = await socket_check(Probe(httpGet=HTTPGetAction(port=server.port, path="/")))
    assert found == Finding(True, "Probe terminated redirects, Response body: b", is_warning=True)


async def test_a_port_nobody_declares_is_an_error_and_no_failure() -> None:
    with pytest.raises(ProbeError, match=r'strconv\.Atoi: parsing "web": invalid syntax'):
        await socket_check(Probe(httpGet=HTTPGetAction(port="web", path="/")))


async def test_half_an_answer_is_an_error_counted_as_failure() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc") as server:
        with pytest.raises(ProbeError) as caught:
            await socket_check(Probe(httpGet=HTTPGetAction(port=server.port, path="/")))
    assert caught.value.state == "failure"
    assert len(server.asked) == 3


async def test_a_connection_is_all_that_a_tcp_probe_asks() -> None:
    async with serving(None) as server:
        probe = Probe(tcpSocket=TCPSocketAction(port=server.port))
        assert await socket_check(probe) == Finding(True)
    assert await socket_check(probe) == Finding(
        False, f"dial tcp 127.0.0.1:{server.port}: connect: connection refused"
    )


class Health(HealthBase):
    """Knows three services, and forgets to answer for a fourth."""

    async def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        status = HealthCheckResponseServingStatus
        if request.service == "slow":
            await trio.sleep_forever()
        known = {"": status.SERVING, "good": status.SERVING, "bad": status.NOT_SERVING}
        known["new"] = status(7)  # of a later version of the protocol
        if request.service == "late":
            raise GRPCError(Status.DEADLINE_EXCEEDED, "its backend does not answer")
        if request.service == "gone":
            raise GRPCError(Status.CANCELLED, "shutting down")
        if request.service not in known:
            raise GRPCError(Status.NOT_FOUND, "unknown service")
        return HealthCheckResponse(known[request.service])


@pytest.mark.parametrize(
    ("service", "found"),
    [
        ("", Finding(True, "service healthy")),
        ("good", Finding(True, "service healthy")),
        ("bad", Finding(False, 'service unhealthy (responded with "NOT_SERVING")')),
        (
            "other",
            Finding(
                False,
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
        ),
        ("slow", Finding(False, "timeout: health rpc did not complete within 1s")),
        # Upstream does not tell whose deadline it was.
        ("late", Finding(False, "timeout: health rpc did not complete within 1s")),
        (
            "gone",
            Finding(
                False,
                "error: health rpc probe failed: rpc error: code = Canceled desc = shutting down",
            ),
        ),
        ("new", Finding(False, 'service unhealthy (responded with "7")')),
    ],
)
async def test_a_grpc_service_must_be_serving(service: str, found: Finding) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await nursery.start(Server([Health()]).serve, listeners)
        probe = Probe(grpc=GRPCAction(port=port, service=service), timeoutSeconds=1)
        assert await socket_check(probe) == found
        nursery.cancel_scope.cancel()


async def test_a_grpc_probe_says_who_asks() -> None:
    asked = bytearray()

    async def note(stream: trio.SocketStream) -> None:
        await stream.send_all(b"\0\0\0\4\0\0\0\0\0")  # SETTINGS: the client waits for them
        with contextlib.suppress(trio.BrokenResourceError):
            async for data in stream:
                asked.extend(data)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, note, listeners)
        await socket_check(Probe(grpc=GRPCAction(port=port), timeoutSeconds=1))
        nursery.cancel_scope.cancel()
    assert agent_of(bytes(asked)) == b"kube-probe/1.36"


def agent_of(asked: bytes) -> bytes:
    """Return the User-Agent of the first request of an HTTP/2 connection."""
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    requests = [e for e in server.receive_data(asked) if isinstance(e, h2.events.RequestReceived)]
    return bytes(dict(requests[0].headers)[b"user-agent"])


async def test_a_grpc_server_that_is_not_there_is_a_timeout() -> None:
    async with serving(None) as server:
        port = server.port
    found = await socket_check(Probe(grpc=GRPCAction(port=port), timeoutSeconds=1))
    assert found == Finding(
        False,
        f'timeout: failed to connect service "127.0.0.1:{port}" within 1s: '
        "context deadline exceeded",
    )


async def test_a_flood_of_pings_ends_a_grpc_probe() -> None:
    settings, ping = b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\6\0\0\0\0\0" + b"p" * 8

    async def flood(stream: trio.SocketStream) -> None:
        async def read() -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                async for _ in stream:
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(settings)
                while True:
                    await stream.send_all(ping * 100)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await nursery.start(trio.serve_listeners, flood, listeners)
        found = await socket_check(Probe(grpc=GRPCAction(port=port), timeoutSeconds=3))
        nursery.cancel_scope.cancel()
    assert not found.is_success
    assert "the server sent more than 65536 bytes" in found.output
