"""`describe pod`, compared with a whole page; and tables that stay aligned."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.cli.describe import describe_pod
from kubelet_trio.cli.tables import Table, event_age, pod_row

NOW = 1_767_366_245.0  # 2026-01-02T15:04:05Z

POD: dict[str, Any] = {
    "metadata": {
        "name": "web-node1",
        "namespace": "default",
        "uid": "u1",
        "labels": {"app": "web", "tier": "front"},
        "annotations": {"kubernetes.io/config.source": "file"},
    },
    "spec": {
        "nodeName": "node1",
        "initContainers": [{"name": "init", "image": "busybox", "command": ["sh", "-c", "true"]}],
        "containers": [
            {
                "name": "web",
                "image": "nginx:1",
                "args": ["--x"],
                "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "1", "memory": "64Mi"}},
                "livenessProbe": {"httpGet": {"path": "/ok", "port": 80, "scheme": "HTTP"}},
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "etc", "mountPath": "/etc/x", "readOnly": True, "subPath": "x"},
                ],
            }
        ],
        "volumes": [
            {"name": "data", "emptyDir": {"medium": "Memory"}},
            {"name": "etc", "hostPath": {"path": "/etc", "type": "Directory"}},
        ],
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
    },
    "status": {
        "phase": "Running",
        "qosClass": "Burstable",
        "startTime": "2026-01-02T15:00:00Z",
        "hostIP": "192.0.2.1",
        "podIP": "10.88.0.2",
        "podIPs": [{"ip": "10.88.0.2"}],
        "conditions": [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": "False"},
        ],
        "initContainerStatuses": [
            {
                "name": "init",
                "imageID": "sha256:2",
                "containerID": "containerd://c0",
                "ready": True,
                "restartCount": 0,
                "state": {
                    "terminated": {
                        "reason": "Completed",
                        "exitCode": 0,
                        "startedAt": "2026-01-02T15:00:01Z",
                        "finishedAt": "2026-01-02T15:00:02Z",
                    }
                },
            }
        ],
        "containerStatuses": [
            {
                "name": "web",
                "imageID": "sha256:1",
                "containerID": "containerd://c2",
                "ready": False,
                "restartCount": 1,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                "lastState": {
                    "terminated": {
                        "reason": "Error",
                        "exitCode": 1,
                        "startedAt": "2026-01-02T15:00:03Z",
                        "finishedAt": "2026-01-02T15:00:04Z",
                    }
                },
            }
        ],
    },
}

PAGE = """\
Name:         web-node1
Namespace:    default
Priority:     0
Node:         node1/192.0.2.1
Start Time:   Fri, 02 Jan 2026 15:00:00 +0000
UID:          u1
Labels:       app=web
              tier=front
Annotations:  kubernetes.io/config.source: file
Status:       Running
IP:           10.88.0.2
IPs:
  IP:  10.88.0.2
"""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_a_pod_is_described_in_kubectls_sections() -> None:
    events = [
        {
            "type": "Warning",
            "reason": "BackOff",
            "message": "Back-off restarting failed container",
            "count": 3,
            "firstTimestamp": "2026-01-02T15:00:05Z",
            "lastTimestamp": "2026-01-02T15:03:55Z",
            "source": {"component": "kubelet"},
        }
    ]
    page = describe_pod(POD, events, NOW)
    for part in (
        "Init Containers:\n  init:\n    Container ID:   containerd://c0\n",
        "    Command:\n      sh\n      -c\n      true\n",
        "    State:          Terminated\n      Reason:       Completed\n      Exit Code:    0\n"
        "      Started:      Fri, 02 Jan 2026 15:00:01 +0000\n",
        "Containers:\n  web:\n",
        "    Port:           80/TCP\n    Host Port:      8080/TCP\n    Args:\n      --x\n",
        "    State:          Waiting\n      Reason:       CrashLoopBackOff\n"
        "      Message:      back-off 10s\n"
        "    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    1\n",
        "    Ready:          False\n    Restart Count:  1\n",
        "    Limits:\n      cpu:     1\n      memory:  64Mi\n",
        "    Liveness:       http-get http://:80/ok delay=0s timeout=1s period=10s #success=1 "
        "#failure=3\n",
        "    Environment:\n      A:     1\n      NODE:  (v1:spec.nodeName)\n",
        '    Mounts:\n      /data from data (rw)\n      /etc/x from etc (ro,path="x")\n',
        "Conditions:\n  Type         Status\n  Initialized  True\n  Ready        False\n",
        "Volumes:\n  data:\n"
        "    Type:       EmptyDir (a temporary directory that shares a pod's lifetime)\n"
        "    Medium:     Memory\n    SizeLimit:  <unset>\n",
        "  etc:\n    Type:          HostPath (bare host directory volume)\n"
        "    Path:          /etc\n    HostPathType:  Directory\n",
        "QoS Class:         Burstable\nNode-Selectors:    <none>\n"
        "Tolerations:       :NoExecute op=Exists\n",
        "Events:\n"
        "  Type     Reason   Age               From     Message\n"
        "  ----     ------   ----              ----     -------\n"
        "  Warning  BackOff  10s (x3 over 4m)  kubelet  Back-off restarting",
    ):
        assert part in page, part
    assert page.startswith(PAGE)


def test_a_pod_with_nothing_is_described_too() -> None:
    page = describe_pod({"metadata": {"name": "x"}}, [], NOW)
    assert "Labels:       <none>\n" in page
    assert "Volumes:           <none>\n" in page
    assert page.endswith("Events:            <none>\n")


def test_a_pod_that_leaves_says_its_grace() -> None:
    meta = {"deletionTimestamp": "2026-01-02T15:04:00Z", "deletionGracePeriodSeconds": 30}
    page = describe_pod({"metadata": meta, "status": {"phase": "Running"}}, [], NOW)
    assert "Terminating (grace period 30s)" in page


@pytest.mark.parametrize(
    ("probe", "shown"),
    [
        ({"exec": {"command": ["true"]}}, "exec ['true'] delay=0s"),
        ({"tcpSocket": {"port": 80}}, "tcp-socket :80 delay=0s"),
        ({"grpc": {"port": 9, "service": "s"}}, "grpc <pod>:9 s delay=0s"),
    ],
)
def test_every_kind_of_probe_is_shown(probe: dict[str, Any], shown: str) -> None:
    spec = {"containers": [{"name": "a", "startupProbe": probe}]}
    assert f"    Startup:        {shown}" in describe_pod({"spec": spec}, [], NOW)


def test_columns_only_ever_grow() -> None:
    table = Table(("A", "B"))
    assert table.rows([("x", "y"), ("long", "z")]) == ["x      y", "long   z"]
    assert table.rows([("y", "z")]) == ["y      z"]
    assert table.header() == "A      B"


def test_a_static_pod_is_as_old_as_its_start() -> None:
    assert pod_row(POD, NOW)[5] == "4m5s"


def test_a_static_pods_age_goes_on_when_the_agent_starts_anew() -> None:
    seen = {"type": "PodScheduled", "lastTransitionTime": "2026-01-02T15:00:00Z"}
    status = {"startTime": "2026-01-02T15:04:00Z", "conditions": [seen]}
    assert pod_row({"status": status}, NOW)[5] == "4m5s"


def test_an_event_that_came_often_says_so() -> None:
    once = {"lastTimestamp": "2026-01-02T15:04:00Z", "count": 1}
    assert event_age(once, NOW) == "5s"
    often = {**once, "firstTimestamp": "2026-01-02T15:00:05Z", "count": 4}
    assert event_age(often, NOW) == "5s (x4 over 4m)"


HOSTILE = "\x1b]0;owned\x07\x9b2J\r\u202eok"


def test_what_a_container_wrote_does_not_steer_the_terminal() -> None:
    ended = {"message": HOSTILE, "exitCode": 1}
    status = {"containerStatuses": [{"name": "a", "state": {"terminated": ended}}]}
    events = [{"reason": HOSTILE, "message": f"one\n{HOSTILE}"}]
    page = describe_pod({"spec": {"containers": [{"name": "a"}]}, "status": status}, events, NOW)
    assert "\\x1b]0;owned\\x07\\x9b2J\\r\\u202eok" in page
    assert all(c.isprintable() or c == "\n" for c in page)


def test_a_table_does_not_steer_the_terminal_and_stays_aligned() -> None:
    assert Table(("A", "B")).rows([("\x1b[2J", "x"), ("y", "z")]) == [
        "\\x1b[2J   x",
        "y         z",
    ]


def resizing(**reasons: str | None) -> list[dict[str, Any]]:
    return [{"type": f"PodResize{t}", "status": "True", "reason": r} for t, r in reasons.items()]


@pytest.mark.parametrize(
    ("status", "cells"),
    [
        ({}, ("<none>", "<none>", "<none>")),
        ({"resources": {}, "conditions": []}, ("<none>", "<none>", "<none>")),
        (
            {
                "allocatedResources": {"cpu": "500m", "memory": "64Mi"},
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            },
            ("500m/2", "64Mi/-", "<none>"),
        ),
        ({"resources": {"limits": {"memory": "1Gi"}}}, ("<none>", "-/1Gi", "<none>")),
        ({"conditions": resizing(Pending="Deferred")}, ("<none>", "<none>", "Deferred")),
        ({"conditions": resizing(Pending="Infeasible")}, ("<none>", "<none>", "Infeasible")),
        ({"conditions": resizing(InProgress=None)}, ("<none>", "<none>", "InProgress")),
        ({"conditions": resizing(InProgress="Error")}, ("<none>", "<none>", "Error")),
        (
            {"conditions": resizing(InProgress=None, Pending="Deferred")},
            ("<none>", "<none>", "Deferred,InProgress"),
        ),
    ],
)
def test_a_wide_row_has_the_resources_and_the_resize_of_a_pod(
    status: dict[str, Any], cells: tuple[str, str, str]
) -> None:
    assert pod_row({"status": status}, NOW, wide=True)[-3:] == cells
