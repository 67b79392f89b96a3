"""Messages of CRI are read as they were written, every type of them."""

from __future__ import annotations

import inspect

import betterproto2
import pytest

from kubelet_trio.cri import v1
from kubelet_trio.recorder import read_body, read_message, write_message

assert inspect.isclass(v1.VersionRequest)  # executes the module
TYPES = sorted(
    name
    for name, found in vars(v1).items()
    if inspect.isclass(found) and issubclass(found, betterproto2.Message)
)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_read_as_it_was_written(name: str) -> None:
    message_type: type[betterproto2.Message] = getattr(v1, name)
    assert read_message(message_type, read_body(write_message(message_type()))) == message_type()
    assert read_message(message_type, {}) == message_type()


def test_nested_messages_enums_maps_and_bytes() -> None:
    config = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main", attempt=2),
        envs=[v1.KeyValue(key="A", value="ä\n".encode())],
        mounts=[v1.Mount(propagation=v1.MountPropagation.PROPAGATION_BIDIRECTIONAL)],
        labels={"a": "b"},
        linux=v1.LinuxContainerConfig(resources=v1.LinuxContainerResources(cpu_quota=-1)),
    )
    assert read_message(v1.ContainerConfig, read_body(write_message(config))) == config
    answer = v1.ExecSyncResponse(stdout=b"\xff\0", exit_code=3)
    assert read_message(v1.ExecSyncResponse, read_body(write_message(answer))) == answer


def test_what_is_not_of_the_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\$\.attempt"):
        read_message(v1.ContainerMetadata, {"attempt": "two"})
