from __future__ import annotations

from lightkube.models.core_v1 import (
    ContainerPort,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
)

from kubelet_trio.containers import container_info, pod_identity
from kubelet_trio.containers.labels import (
    CONTAINER_PORTS,
    PRE_STOP_HANDLER,
    container_annotations,
    container_labels,
    pod_labels_of,
    sandbox_annotations,
    sandbox_labels,
)
from tests.containers.make import container, main, pod


def test_container_labels_are_exactly_four() -> None:
    assert container_labels(pod(meta={"labels": {"app": "x"}}), container()) == {
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "u-1",
        "io.kubernetes.container.name": "main",
    }


def test_sandbox_labels_are_the_pods_and_three() -> None:
    labels = sandbox_labels(pod(meta={"labels": {"app": "x"}}))
    assert labels == {
        "app": "x",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "u-1",
    }
    assert pod_labels_of(labels) == {"app": "x"}


def test_sandbox_annotations_are_the_pods() -> None:
    assert sandbox_annotations(pod(meta={"annotations": {"a": "b"}})) == {"a": "b"}


def test_annotations_of_a_plain_container() -> None:
    spec = container(
        image="bar", terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File"
    )
    assert container_annotations(pod(terminationGracePeriodSeconds=30), main(spec), 3) == {
        "io.kubernetes.container.hash": container_annotations(pod(), main(spec), 0)[
            "io.kubernetes.container.hash"
        ],
        "io.kubernetes.container.restartCount": "3",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    }


def test_hash_is_lower_case_hex_without_padding() -> None:
    spec = container("foo", image="bar")
    annotations = container_annotations(pod(spec), main(spec), 0)
    assert annotations["io.kubernetes.container.hash"] == "11a6d6d6"


def test_annotations_read_back_as_they_were_written() -> None:
    hook = LifecycleHandler(exec=ExecAction(command=["sh", "-c", "sleep 1"]))
    ports = [ContainerPort(containerPort=80, hostPort=8080, protocol="TCP", name="http")]
    spec = container(
        ports=ports,
        lifecycle=Lifecycle(preStop=hook),
        terminationMessagePath="/m",
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    of_pod = pod(spec, meta={"deletionGracePeriodSeconds": 5}, terminationGracePeriodSeconds=60)
    annotations = container_annotations(of_pod, main(spec), 7)
    assert annotations[CONTAINER_PORTS] == (
        '[{"containerPort":80,"hostPort":8080,"name":"http","protocol":"TCP"}]'
    )
    assert annotations[PRE_STOP_HANDLER] == '{"exec":{"command":["sh","-c","sleep 1"]}}'
    info = container_info(annotations)
    assert (info.restart_count, info.ports, info.pre_stop) == (7, tuple(ports), hook)
    assert (info.termination_grace_period, info.deletion_grace_period) == (60, 5)
    assert info.termination_message_path == "/m"
    assert info.termination_message_policy == "FallbackToLogsOnError"


def test_annotations_that_do_not_parse_count_as_absent() -> None:
    info = container_info(
        {
            "io.kubernetes.container.restartCount": "many",
            "io.kubernetes.container.ports": "{",
            "io.kubernetes.container.preStopHandler": "[]",
            "io.kubernetes.pod.terminationGracePeriod": "",
        }
    )
    assert (info.restart_count, info.ports, info.pre_stop) == (0, (), None)
    assert info.termination_grace_period is None


def test_an_object_without_a_uid_is_no_pods() -> None:
    assert pod_identity({"io.kubernetes.pod.name": "web"}) is None
    identity = pod_identity(container_labels(pod(), container()))
    assert identity == ("u-1", "default", "web")
