"""What an ephemeral container that was added on this node changes in a pod, and who gets none."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import EphemeralContainer, Pod

from kubelet_trio.model import pod_uid, spec
from kubelet_trio.pods import DebugRefusedError, check_debuggable, check_runnable
from kubelet_trio.pods.worker.debugging import with_added, without_added
from tests.agent.node import make_pod
from tests.pods.make import pod as api_pod

TOOLS = EphemeralContainer(name="tools", image="i", command=["sh"])


def names(pod: Pod) -> list[str]:
    return [container.name for container in spec(pod).ephemeralContainers or ()]


def test_without_additions_a_pod_stays_the_very_object() -> None:
    pod = make_pod()
    assert with_added(pod, ()) is pod
    assert without_added(pod, ()) is pod


def test_an_addition_is_laid_over_the_pod_once_and_taken_off_again() -> None:
    pod = make_pod()
    shown = with_added(with_added(pod, [TOOLS]), [TOOLS])
    assert names(shown) == ["tools"]
    assert pod_uid(shown) == pod_uid(pod)
    assert shown.metadata == pod.metadata
    assert without_added(shown, [TOOLS]) == pod


def test_those_of_the_source_stay_first() -> None:
    own = EphemeralContainer(name="own", image="i")
    pod = with_added(make_pod(), [own])
    assert names(with_added(pod, [TOOLS])) == ["own", "tools"]
    assert names(without_added(with_added(pod, [TOOLS]), [TOOLS])) == ["own"]


def test_a_static_pod_that_runs_may_be_given_containers() -> None:
    check_debuggable(make_pod(), is_ending=False)


@pytest.mark.parametrize(
    ("pod", "is_ending", "why"),
    [
        (None, False, "not on this node"),
        (make_pod(), True, "ending or has ended"),
        (api_pod("main"), False, "API server's.* kubectl debug -n ns p"),
    ],
)
def test_other_pods_are_refused(pod: Pod | None, is_ending: bool, why: str) -> None:
    with pytest.raises(DebugRefusedError, match=why):
        check_debuggable(pod, is_ending=is_ending)


@pytest.mark.parametrize(
    ("container", "why"),
    [
        (EphemeralContainer(name="d", command=["sh"], targetContainerName="web"), "no PID names"),
        (EphemeralContainer(name="d", image="i"), "no images whose entrypoint"),
    ],
)
def test_the_process_runtime_refuses_what_it_cannot_do(
    container: EphemeralContainer, why: str
) -> None:
    check_runnable(container, "containerd")
    with pytest.raises(DebugRefusedError, match=why):
        check_runnable(container, "process")


def test_the_process_runtime_runs_a_command() -> None:
    check_runnable(TOOLS, "process")
