"""What devices put into the config of a container: the answers of its plugins, merged. Pure.

Source: deviceRunContainerOptions in pkg/kubelet/cm/devicemanager/pod_devices.go. Upstream takes
resources, variables and annotations in the random order of Go's maps; here they are sorted, so that
the same container always has the same config.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from kubelet_trio.managers.devices.generated.v1beta1 import ContainerAllocateResponse
from kubelet_trio.managers.devices.types import Shares
from kubelet_trio.managers.shares import DeviceMount, DeviceNode, DeviceOptions
from kubelet_trio.model import get_logger, parse_message

log = get_logger()

T = TypeVar("T")


def device_options(shares: Shares, container: str) -> DeviceOptions | None:
    """Return the options of a container's devices; None if it has none.

    Where two plugins contradict each other, the first of the resources by name wins, and the other
    is logged; `container` names the container there.
    """
    ordered = (share.response for _, share in sorted(shares.items(), key=lambda item: item[0]))
    responses = tuple(response for response in ordered if response is not None)
    return merged_options(responses, container) if responses else None


@lru_cache(maxsize=1024)  # asked for at each reconciliation, and answers of plugins may be large
def merged_options(responses: tuple[bytes, ...], container: str) -> DeviceOptions:
    """Return what the answers of plugins say together; `container` is for the log.

    Raises ValueError or EOFError for bytes that are none.
    """
    answers = [parse_message(ContainerAllocateResponse, response) for response in responses]
    nodes = (
        (d.container_path, DeviceNode(d.host_path, d.container_path, d.permissions))
        for answer in answers
        for d in answer.devices
    )
    mounts = (
        (m.container_path, DeviceMount(m.host_path, m.container_path, m.read_only))
        for answer in answers
        for m in answer.mounts
    )
    env = (item for answer in answers for item in sorted(answer.envs.items()))
    notes = (item for answer in answers for item in sorted(answer.annotations.items()))
    return DeviceOptions(
        env=_first(container, "environment variable", env),
        devices=tuple(_first(container, "device", nodes).values()),
        mounts=tuple(_first(container, "mount", mounts).values()),
        annotations=_first(container, "annotation", notes),
        cdi=tuple(dict.fromkeys(d.name for answer in answers for d in answer.cdi_devices)),
    )


def _first(container: str, kind: str, items: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the first item of each name; log those that differ from it."""
    found: dict[str, T] = {}
    for name, value in items:
        known = found.setdefault(name, value)
        if _host_path(known) != _host_path(value):
            log.error(
                "device.conflicting_setting",
                containerName=container,
                kind=kind,
                name=name,
                used=str(_host_path(known)),
                ignored=str(_host_path(value)),
            )
    return found


def _host_path(value: object) -> object:
    return value.host_path if isinstance(value, DeviceNode | DeviceMount) else value


def is_readable(response: bytes) -> bool:
    """Whether a plugin's answer, as a checkpoint has it, can be decoded."""
    try:
        parse_message(ContainerAllocateResponse, response)
    except (ValueError, EOFError):
        return False
    return True
