"""One run of a probe. Source: prober/prober.go of Kubernetes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Container, HTTPGetAction, Probe

from kubelet_trio.handlers import (
    BodyError,
    DialError,
    HandlerError,
    connect,
    container_port,
    http_get,
    http_request,
    join_host_port,
)
from kubelet_trio.model import ContainerId
from kubelet_trio.probes.exec import ProbeCommands, static_command
from kubelet_trio.probes.grpc_health import check_grpc
from kubelet_trio.probes.state import Finding, ProbeError

_ATTEMPTS = 3  # maxProbeRetries


@dataclass(frozen=True, slots=True)
class Target:
    """The container instance to probe, and its pod's address."""

    container: Container
    container_id: ContainerId
    pod_ip: str


async def check(probe: Probe, target: Target, commands: ProbeCommands) -> Finding:
    """Run a probe, up to three times if it ends without a finding. Raises `ProbeError`."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await _check_once(probe, target, commands)
        except ProbeError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("not reached")


async def _check_once(probe: Probe, target: Target, commands: ProbeCommands) -> Finding:
    within = probe.timeoutSeconds or 1  # the API's default, for manifests that are not defaulted
    if probe.exec is not None:
        command = static_command(probe.exec.command or (), target.container.env or ())
        return await commands.check(target.container_id, command, within)
    if probe.httpGet is not None:
        return await _check_http(probe.httpGet, target, within)
    if probe.tcpSocket is not None:
        port = _port(probe.tcpSocket.port, target.container)
        return await check_tcp(probe.tcpSocket.host or target.pod_ip, port, within)
    if probe.grpc is not None:
        service = probe.grpc.service or ""
        return await check_grpc(target.pod_ip, probe.grpc.port, service, within)
    raise ProbeError(f"missing probe handler for {target.container.name}")


async def _check_http(action: HTTPGetAction, target: Target, within: int) -> Finding:
    try:
        request = http_request(action, target.container, target.pod_ip, "probe")
    except HandlerError as exc:
        raise ProbeError(str(exc)) from exc
    try:
        response = await http_get(request, within)
    except BodyError as exc:
        # Upstream returns Failure together with an error here, and the error counts.
        raise ProbeError(str(exc), "failure") from exc
    except HandlerError as exc:
        return Finding(False, str(exc))
    if not 200 <= response.status < 400:
        # Without the body, as upstream: it may contain secrets, and this text goes into an event.
        return Finding(False, f"HTTP probe failed with statuscode: {response.status}")
    body = response.body.decode("utf-8", "replace")
    # A redirect to another host is not followed: it proves that the container answers.
    if response.status >= 300:
        return Finding(True, f"Probe terminated redirects, Response body: {body}", is_warning=True)
    return Finding(True, body)


async def check_tcp(host: str, port: int, within: float = math.inf) -> Finding:
    """Open and close a TCP connection."""
    with trio.move_on_after(within):
        try:
            connection = await connect(host, port)
        except DialError as exc:
            return Finding(False, str(exc))
        connection.finish()
        return Finding(True)
    return Finding(False, f"dial tcp {join_host_port(host, port)}: i/o timeout")


def _port(port: int | str, container: Container) -> int:
    try:
        return container_port(port, container)
    except HandlerError as exc:
        raise ProbeError(str(exc)) from exc
