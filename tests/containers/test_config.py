from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lightkube.models.core_v1 import EnvVar, Lifecycle

from kubelet_trio.containers import (
    ContainerConfigError,
    ContainerInputs,
    container_config,
)
from kubelet_trio.cri import v1
from kubelet_trio.model import ContainerId, ContainerKind, PodContainer
from kubelet_trio.sources.validation.handlers import STOP_SIGNALS
from tests.containers.make import NODE, container, main, pod, sized


def config(inputs: ContainerInputs | None = None, **fields: Any) -> v1.ContainerConfig:
    spec = container(**fields)
    return container_config(pod(spec), main(spec), NODE, inputs or ContainerInputs())


def security(made: v1.ContainerConfig) -> v1.LinuxContainerSecurityContext:
    assert made.linux is not None
    assert made.linux.security_context is not None
    return made.linux.security_context


def test_command_args_and_env_are_expanded() -> None:
    made = config(
        command=["sh", "-c"],
        args=["echo $(GREETING) $$(GREETING) $(OTHER)"],
        env=[EnvVar("GREETING", value="hello")],
    )
    assert made.command == ["sh", "-c"]
    assert made.args == ["echo hello $(GREETING) $(OTHER)"]
    assert [(e.key, e.value) for e in made.envs] == [("GREETING", b"hello")]


def test_an_image_is_told_by_its_ref_and_as_the_pod_names_it() -> None:
    made = config(ContainerInputs(image_ref="sha256:1"))
    assert made.image == v1.ImageSpec(image="sha256:1", user_specified_image="busybox")
    assert config().image == v1.ImageSpec(image="busybox", user_specified_image="busybox")


def test_attempt_log_path_and_terminal() -> None:
    made = config(
        ContainerInputs(restart_count=3), workingDir="/w", stdin=True, stdinOnce=True, tty=True
    )
    assert made.metadata == v1.ContainerMetadata(name="main", attempt=3)
    assert made.log_path == "main/3.log"
    assert made.annotations["io.kubernetes.container.restartCount"] == "3"
    assert (made.working_dir, made.stdin, made.stdin_once, made.tty) == ("/w", True, True, True)


def test_the_message_file_is_mounted_after_the_volumes() -> None:
    data = v1.Mount(container_path="/data", host_path="/host/data")
    inputs = ContainerInputs(mounts=(data,), termination_log_host_path="/host/log")
    made = config(inputs, terminationMessagePath="/dev/termination-log")
    assert made.mounts == [
        data,
        v1.Mount(container_path="/dev/termination-log", host_path="/host/log"),
    ]
    assert config(inputs).mounts == [data]


def test_block_volumes_are_devices_of_the_container() -> None:
    device = v1.Device(container_path="/dev/xvda", host_path="/host/link", permissions="mrw")
    assert config(ContainerInputs(devices=(device,))).devices == [device]
    assert config().devices == []


def test_defaults_of_the_security_context() -> None:
    made = security(config())
    assert made.seccomp == v1.SecurityProfile(profile_type=v1.SecurityProfileProfileType.Unconfined)
    assert (made.run_as_user, made.run_as_username) == (None, "")  # the image says
    assert (made.privileged, made.no_new_privs, made.readonly_rootfs) == (False, False, False)
    assert "/proc/kcore" in made.masked_paths
    assert "/proc/sys" in made.readonly_paths


def test_the_images_user_is_the_default() -> None:
    assert security(config(ContainerInputs(image_uid=7))).run_as_user == v1.Int64Value(value=7)
    by_name = security(config(ContainerInputs(image_username="nobody")))
    assert (by_name.run_as_user, by_name.run_as_username) == (None, "nobody")


def test_an_ephemeral_container_joins_its_targets_processes() -> None:
    spec = container("debug")
    inputs = ContainerInputs(target_container_id=ContainerId("c-1"))
    joined = PodContainer(ContainerKind.EPHEMERAL, spec)
    options = security(container_config(pod(), joined, NODE, inputs)).namespace_options
    assert options is not None
    assert (options.pid, options.target_id) == (v1.NamespaceMode.TARGET, "c-1")
    shared = pod(shareProcessNamespace=True)
    options = security(container_config(shared, joined, NODE, inputs)).namespace_options
    assert options is not None
    assert (options.pid, options.target_id) == (v1.NamespaceMode.POD, "")


def test_a_quantity_that_is_none_is_an_error_of_the_container() -> None:
    spec = sized(limits={"memory": "1Gb"})
    with pytest.raises(ContainerConfigError, match="'1Gb' is not a quantity"):
        container_config(pod(spec), main(spec), NODE, ContainerInputs())


def stop_signal(name: str | None, *, gate: bool = True) -> v1.Signal:
    spec = container(lifecycle=Lifecycle(stopSignal=name))
    node = replace(NODE, stop_signals=gate)
    return container_config(pod(spec), main(spec), node, ContainerInputs()).stop_signal


@pytest.mark.parametrize("name", sorted(STOP_SIGNALS))
def test_a_stop_signal_has_a_name_of_cris_own(name: str) -> None:
    made = stop_signal(name)
    assert (made.name or "").replace("PLUS", "+").replace("MINUS", "-") == name
    assert stop_signal(name, gate=False) == v1.Signal.RUNTIME_DEFAULT


def test_no_stop_signal_is_up_to_the_runtime() -> None:
    spec = container()
    node = replace(NODE, stop_signals=True)
    made = container_config(pod(spec), main(spec), node, ContainerInputs())
    assert made.stop_signal == v1.Signal.RUNTIME_DEFAULT
    # A pod of an API server with more signals than this agent knows.
    assert stop_signal(None) == stop_signal("SIGNEW") == v1.Signal.RUNTIME_DEFAULT
