from __future__ import annotations

import pytest

from kubelet_trio.containers import container_record, sandbox_record
from kubelet_trio.containers.labels import container_annotations, container_labels
from kubelet_trio.cri import v1
from kubelet_trio.model import ConfiguredResources, ContainerState, ImageMount, SandboxId
from tests.containers.make import container, main, pod

SECOND = 10**9
SANDBOX = SandboxId("s-1")


def status(state: v1.ContainerState, **fields: object) -> v1.ContainerStatus:
    spec = container(terminationMessagePath="/dev/termination-log")
    of_pod = pod(spec)
    message = v1.ContainerStatus(
        id="c-1",
        metadata=v1.ContainerMetadata(name="main", attempt=2),
        state=state,
        created_at=10 * SECOND,
        started_at=11 * SECOND,
        finished_at=12 * SECOND,
        exit_code=3,
        image=v1.ImageSpec(image="busybox:1"),
        image_ref="busybox@sha256:1",
        image_id="sha256:1",
        reason="Error",
        message="boom",
        labels=container_labels(of_pod, spec),
        annotations=container_annotations(of_pod, main(spec), 2),
        mounts=[
            v1.Mount(container_path="/data", host_path="/host/data"),
            v1.Mount(container_path="/dev/termination-log", host_path="/host/log"),
        ],
        log_path="/var/log/pods/x/main/2.log",
        user=v1.ContainerUser(linux=v1.LinuxContainerUser(uid=1, gid=2, supplemental_groups=[3])),
    )
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def test_an_exited_containers_record_has_all_of_it() -> None:
    record = container_record(status(v1.ContainerState.CONTAINER_EXITED), SANDBOX, pid=0)
    assert record.state is ContainerState.EXITED
    assert (record.id, record.name, record.sandbox_id, record.attempt) == ("c-1", "main", "s-1", 2)
    assert (record.created_at, record.started_at, record.finished_at) == (10.0, 11.0, 12.0)
    assert (record.exit_code, record.reason, record.message) == (3, "Error", "boom")
    assert (record.image, record.image_id) == ("busybox:1", "busybox@sha256:1")
    assert record.termination_message_path == "/host/log"
    assert record.log_path == "/var/log/pods/x/main/2.log"
    assert record.user == (1, 2, (3,))
    assert record.hash == record.annotations["io.kubernetes.container.hash"]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (v1.Signal.RUNTIME_DEFAULT, ""),  # of a runtime that knows no stop signals
        (v1.Signal.SIGTERM, "SIGTERM"),
        (v1.Signal.SIGRTMINPLUS3, "SIGRTMIN+3"),
        (v1.Signal.SIGRTMAXMINUS14, "SIGRTMAX-14"),
        (v1.Signal.SIGRTMAX, "SIGRTMAX"),
        (v1.Signal(99), ""),  # of a newer CRI
    ],
)
def test_the_stop_signal_has_the_apis_name(told: v1.Signal, name: str) -> None:
    exited = status(v1.ContainerState.CONTAINER_EXITED, stop_signal=told)
    assert container_record(exited, SANDBOX).stop_signal == name


def test_mounted_images_are_known_by_their_paths() -> None:
    mounts = [
        v1.Mount(container_path="/data", host_path="/host/data"),
        v1.Mount(container_path="/a", image=v1.ImageSpec(image="app:1")),
        v1.Mount(container_path="/b", image=v1.ImageSpec(image="app:2", image_ref="app@sha256:2")),
    ]
    running = status(v1.ContainerState.CONTAINER_RUNNING, mounts=mounts)
    assert container_record(running, SANDBOX).image_mounts == (
        ImageMount("/a", "app:1"),
        ImageMount("/b", "app:2", "app@sha256:2"),
    )


def test_a_running_containers_record_has_no_end() -> None:
    record = container_record(status(v1.ContainerState.CONTAINER_RUNNING), SANDBOX, pid=42)
    assert (record.exit_code, record.reason, record.message, record.finished_at) == (0, "", "", 0.0)
    assert (record.started_at, record.pid) == (11.0, 42)


def test_a_created_container_has_not_started() -> None:
    record = container_record(status(v1.ContainerState.CONTAINER_CREATED), SANDBOX)
    assert (record.state, record.started_at) == (ContainerState.CREATED, 0.0)


def test_the_runtimes_attempt_stands_in_for_a_missing_annotation() -> None:
    message = status(v1.ContainerState.CONTAINER_RUNNING, annotations={}, labels={})
    record = container_record(message, SANDBOX)
    assert (record.attempt, record.name, record.termination_message_path) == (2, "main", "")


def test_a_time_of_never_is_zero() -> None:
    message = status(v1.ContainerState.CONTAINER_EXITED, finished_at=0, started_at=-(10**18))
    record = container_record(message, SANDBOX)
    assert (record.started_at, record.finished_at) == (0.0, 0.0)


def sandbox(mode: v1.NamespaceMode, *ips: str) -> v1.PodSandboxStatus:
    return v1.PodSandboxStatus(
        id="s-1",
        metadata=v1.PodSandboxMetadata(name="web", uid="u-1", namespace="default", attempt=4),
        state=v1.PodSandboxState.SANDBOX_READY,
        created_at=5 * SECOND,
        network=v1.PodSandboxNetworkStatus(
            ip=ips[0] if ips else "", additional_ips=[v1.PodIp(ip=ip) for ip in ips[1:]]
        ),
        linux=v1.LinuxPodSandboxStatus(
            namespaces=v1.Namespace(options=v1.NamespaceOption(network=mode))
        ),
    )


def test_a_sandboxes_record_lists_its_primary_ip_first() -> None:
    record = sandbox_record(sandbox(v1.NamespaceMode.POD, "10.0.0.2", "fd00::2"))
    assert record.ips == ("10.0.0.2", "fd00::2")
    assert (record.ready, record.attempt, record.created_at) == (True, 4, 5.0)
    assert not record.host_network


def test_a_sandbox_on_the_hosts_network_has_no_ips_of_its_own() -> None:
    record = sandbox_record(sandbox(v1.NamespaceMode.NODE, "192.168.1.1"))
    assert record.host_network
    assert record.ips == ()


def test_a_sandbox_that_stopped_is_not_ready() -> None:
    message = sandbox(v1.NamespaceMode.POD)
    message.state = v1.PodSandboxState.SANDBOX_NOTREADY
    message.network = None
    record = sandbox_record(message)
    assert (record.ready, record.ips) == (False, ())


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (None, None),
        (v1.ContainerResources(), None),
        (v1.ContainerResources(linux=v1.LinuxContainerResources()), ConfiguredResources()),
        (
            v1.ContainerResources(
                linux=v1.LinuxContainerResources(
                    cpu_shares=512,
                    cpu_quota=50_000,
                    cpu_period=100_000,
                    memory_limit_in_bytes=1 << 26,
                    memory_swap_limit_in_bytes=1 << 27,
                    oom_score_adj=900,
                )
            ),
            ConfiguredResources(512, 50_000, 100_000, 1 << 26),
        ),
        (
            v1.ContainerResources(
                linux=v1.LinuxContainerResources(cpu_quota=-1, memory_limit_in_bytes=-1)
            ),
            ConfiguredResources(cpu_quota=-1, memory_limit=-1),
        ),
    ],
)
def test_a_record_has_the_resources_that_are_reported(
    reported: v1.ContainerResources | None, expected: ConfiguredResources | None
) -> None:
    message = status(v1.ContainerState.CONTAINER_RUNNING, resources=reported)
    assert container_record(message, SANDBOX).resources == expected
