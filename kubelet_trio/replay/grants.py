"""What plugins and drivers put into the config of a container, as words that are compared. Pure.

Of variables and mounts only those count that a plugin's answer names: others depend on the machine.
Values of variables are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kubelet_trio.cri import v1
from kubelet_trio.managers import AllocateAnswer


class Grants:
    """What plugins have given to any container of a life."""

    def __init__(self, answers: Iterable[AllocateAnswer]) -> None:
        answers = list(answers)
        self._names = {name for answer in answers for name in answer.envs}
        self._paths = {m.container_path for answer in answers for m in answer.mounts}
        self._files = {d.container_path for answer in answers for d in answer.devices}

    def words(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield what the config of a container, as `granted_fields` has it, has of it."""
        for device in config.get("CDI_devices") or ():
            yield f"CDI device {device['name']}"
        for device in sorted(config.get("devices") or (), key=_path):
            if _path(device) in self._files:
                yield f"device {_path(device)} ({device['host_path']} {device['permissions']})"
        for mount in sorted(config.get("mounts") or (), key=_path):
            if _path(mount) in self._paths:
                access = "read only" if mount.get("readonly") else "writable"
                yield f"mount {_path(mount)} ({mount['host_path']}, {access})"
        names = {each["key"] for each in config.get("envs") or ()}
        if granted := sorted(names & self._names):
            yield f"variables {' '.join(granted)}"


def granted_fields(config: v1.ContainerConfig) -> dict[str, Any]:
    """Return what of a container's config is compared, as a recording has it."""
    return {
        "CDI_devices": [{"name": each.name} for each in config.CDI_devices],
        "devices": [
            {
                "container_path": each.container_path,
                "host_path": each.host_path,
                "permissions": each.permissions,
            }
            for each in config.devices
        ],
        "mounts": [
            {
                "container_path": each.container_path,
                "host_path": each.host_path,
                "readonly": each.readonly,
            }
            for each in config.mounts
        ],
        "envs": [{"key": each.key} for each in config.envs],
    }


def _path(given: Mapping[str, Any]) -> str:
    return str(given["container_path"])
