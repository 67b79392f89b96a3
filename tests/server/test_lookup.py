"""Which instance's log is meant, in every state a container may be in."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.server.errors import LogUnavailableError
from kubelet_trio.server.lookup import find_pod, log_container_id
from tests.server.fake_view import make_pod

RUNNING = {"running": {"startedAt": "2026-01-02T15:04:06Z"}}
ENDED = {"terminated": {"exitCode": 1, "containerID": "containerd://old"}}
BARE = {"terminated": {"exitCode": 1}}
WHAT = 'container "web" in pod "web-node1"'


def pod_with(state: Any, last: Any = None, container_id: str = "containerd://c1") -> Any:
    status = {
        "name": "web",
        "image": "i",
        "imageID": "",
        "ready": False,
        "restartCount": 1,
        "containerID": container_id,
        "state": state,
        "lastState": last or {},
    }
    return make_pod(status={"containerStatuses": [status]})


@pytest.mark.parametrize(
    ("state", "last", "previous", "expected"),
    [
        (RUNNING, None, False, "c1"),
        (RUNNING, ENDED, False, "c1"),
        (RUNNING, ENDED, True, "old"),
        (ENDED, None, False, "old"),
        (BARE, ENDED, False, "old"),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED, False, "old"),
    ],
)
def test_the_log_is_that_of_the_instance_meant(
    state: Any, last: Any, previous: bool, expected: str
) -> None:
    assert log_container_id(pod_with(state, last), "web", previous=previous) == expected


@pytest.mark.parametrize(
    ("state", "last", "previous", "message"),
    [
        (RUNNING, None, True, f"previous terminated {WHAT} not found"),
        (RUNNING, BARE, True, f"previous terminated {WHAT} not found"),
        (BARE, None, False, f"{WHAT} is terminated"),
        ({"waiting": {"reason": "X"}}, BARE, False, f"{WHAT} is terminated"),
        (
            {"waiting": {"reason": "ErrImagePull"}},
            None,
            False,
            f"{WHAT} is waiting to start: image can't be pulled",
        ),
        (
            {"waiting": {"reason": "ImagePullBackOff"}},
            None,
            False,
            f"{WHAT} is waiting to start: trying and failing to pull image",
        ),
        (
            {"waiting": {"reason": "ContainerCreating"}},
            None,
            False,
            f"{WHAT} is waiting to start: ContainerCreating",
        ),
        ({}, None, False, f"{WHAT} is waiting to start - no logs yet"),
    ],
)
def test_a_log_that_is_not_there_is_said_in_the_kubelets_words(
    state: Any, last: Any, previous: bool, message: str
) -> None:
    with pytest.raises(LogUnavailableError) as caught:
        log_container_id(pod_with(state, last), "web", previous=previous)
    assert str(caught.value) == message


def test_init_and_ephemeral_containers_have_logs_too() -> None:
    def status(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "image": "i",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "containerID": f"containerd://{name}-1",
            "state": RUNNING,
        }

    pod = make_pod(
        status={
            "initContainerStatuses": [status("init")],
            "ephemeralContainerStatuses": [status("debug")],
        }
    )
    assert log_container_id(pod, "init", previous=False) == "init-1"
    assert log_container_id(pod, "debug", previous=False) == "debug-1"


def test_an_exact_name_goes_before_one_with_the_node() -> None:
    pods = [make_pod("a-node1", uid="static"), make_pod("a", uid="other")]
    found = find_pod(pods, "default", "a", "Node1")
    assert found is pods[1]
    assert find_pod(pods[:1], "default", "a", "Node1") is pods[0]
    assert find_pod(pods, "kube-system", "a", "node1") is None
