from __future__ import annotations

from typing import Any

import pytest

from tests.sources.make import container, manifest, problems

C = "spec.containers[0]"
EXEC = {"exec": {"command": ["true"]}}
GET = {"httpGet": {"port": 80}}


def of(name: str, **probe: Any) -> dict[str, Any]:
    fields: Any = {f"{name}Probe": probe}
    return manifest(containers=[container(**fields)])


def hook(name: str, handler: Any, **spec: Any) -> dict[str, Any]:
    return manifest(containers=[container(lifecycle={name: handler})], **spec)


def init(policy: str | None = None, **fields: Any) -> dict[str, Any]:
    return manifest(initContainers=[container("init", restartPolicy=policy, **fields)])


@pytest.mark.parametrize(
    "raw",
    [
        of("liveness", **EXEC, terminationGracePeriodSeconds=1),
        of("readiness", **GET, successThreshold=5, initialDelaySeconds=9),
        of("readiness", httpGet={"port": "web", "httpHeaders": [{"name": "X-A", "value": "b"}]}),
        of("startup", tcpSocket={"port": "web", "host": "other.example"}),
        of("liveness", grpc={"port": 9000}),
        hook("postStart", {"sleep": {"seconds": 0}}),
        hook("preStop", {"sleep": {"seconds": 30}}),
        hook("preStop", {"httpGet": {"port": 443, "scheme": "HTTPS"}}),
        init("Always", livenessProbe=EXEC, lifecycle={"preStop": EXEC}),
        manifest(
            containers=[container(lifecycle={"stopSignal": "SIGRTMIN+15"})], os={"name": "linux"}
        ),
    ],
)
def test_what_upstream_takes_is_taken(raw: dict[str, Any]) -> None:
    assert problems(raw) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (of("liveness"), f"{C}.livenessProbe: Required value: must specify a handler type"),
        (
            of("readiness", **EXEC, **GET),
            f"{C}.readinessProbe.httpGet: Forbidden: may not specify more than 1 handler type",
        ),
        (of("startup", exec={}), f"{C}.startupProbe.exec.command: Required value"),
        (
            of("liveness", **EXEC, successThreshold=2),
            f"{C}.livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            of("startup", **EXEC, successThreshold=2),
            f"{C}.startupProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            of("readiness", **EXEC, terminationGracePeriodSeconds=5),
            f"{C}.readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: "
            "must not be set for readinessProbes",
        ),
        (
            of("liveness", **EXEC, terminationGracePeriodSeconds=0),
            f"{C}.livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: "
            "must be greater than 0",
        ),
        (
            of("liveness", **EXEC, timeoutSeconds=-1),
            f"{C}.livenessProbe.timeoutSeconds: Invalid value: -1: "
            "must be greater than or equal to 0",
        ),
        (
            of("liveness", httpGet={"port": 0}),
            f"{C}.livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535",
        ),
        (
            of("liveness", tcpSocket={"port": "Web"}),
            f'{C}.livenessProbe.tcpSocket.port: Invalid value: "Web": must be lower case',
        ),
        (
            of("liveness", grpc={"port": 70000}),
            f"{C}.livenessProbe.grpc.port: Invalid value: 70000: must be between 1 and 65535",
        ),
        (
            of("liveness", httpGet={"port": 80, "scheme": "FTP"}),
            f'{C}.livenessProbe.httpGet.scheme: Unsupported value: "FTP"',
        ),
        (
            of("liveness", httpGet={"port": 80, "httpHeaders": [{"name": "a b", "value": ""}]}),
            f'{C}.livenessProbe.httpGet.httpHeaders: Invalid value: "a b"',
        ),
        (hook("preStop", {}), f"{C}.lifecycle.preStop: Required value"),
        (
            hook("preStop", {**EXEC, "sleep": {"seconds": 1}}),
            f"{C}.lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type",
        ),
        (
            hook("preStop", {"sleep": {"seconds": 6}}, terminationGracePeriodSeconds=5),
            f"{C}.lifecycle.preStop.sleep: Invalid value: 6: "
            "must be non-negative and less than terminationGracePeriodSeconds (5)",
        ),
        (
            hook("postStart", {"sleep": {"seconds": -1}}),
            f"{C}.lifecycle.postStart.sleep: Invalid value: -1",
        ),
        (
            manifest(containers=[container(lifecycle={"stopSignal": "SIGTERM"})]),
            f"{C}.lifecycle.stopSignal: Forbidden: "
            "may not be set for containers with empty `spec.os.name`",
        ),
        (
            manifest(
                containers=[container(lifecycle={"stopSignal": "TERM"})], os={"name": "linux"}
            ),
            f'{C}.lifecycle.stopSignal: Unsupported value: "TERM"',
        ),
        (
            init(livenessProbe=EXEC),
            "spec.initContainers[0].livenessProbe: Forbidden: "
            "may not be set for init containers without restartPolicy=Always",
        ),
        (
            init(lifecycle={"preStop": EXEC}),
            "spec.initContainers[0].lifecycle: Forbidden: "
            "may not be set for init containers without restartPolicy=Always",
        ),
        (
            init("Always", readinessProbe={"exec": {}}),
            "spec.initContainers[0].readinessProbe.exec.command: Required value",
        ),
    ],
)
def test_what_upstream_refuses_is_refused_with_its_path(raw: dict[str, Any], expected: str) -> None:
    (problem,) = problems(raw)
    assert problem.startswith(expected)
