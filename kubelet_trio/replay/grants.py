"""What plugins and drivers put into the config of a container, as words that are compared. Pure.

Of variables, annotations and mounts only those count that a plugin's answer names: others depend
on the machine. The value of a variable is not recorded: a digest stands for it in an answer and in
the configs, and the replayed agent passes on that of the answer. Older recordings have none: there
only the names are compared.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kubelet_trio.cri import v1
from kubelet_trio.managers import AllocateAnswer

_UNTOLD = "*left out*"  # an older recording: nothing stands for the value
_MOST = 4  # devices that are named


class Grant(NamedTuple):
    """What a plugin has given with devices."""

    ids: frozenset[str]
    answer: AllocateAnswer


class Grants:
    """What plugins have given to any container of a life."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        grants = list(grants)
        answers = [each.answer for each in grants]
        self._paths = {m.container_path for answer in answers for m in answer.mounts}
        self._files = {d.container_path for answer in answers for d in answer.devices}
        self._notes = {name for answer in answers for name in answer.annotations}
        # The devices with which each value was given, by variable.
        self._values: dict[str, dict[str, set[str]]] = {}
        for ids, answer in grants:
            for name, value in answer.envs.items():
                self._values.setdefault(name, {}).setdefault(value, set()).update(ids)

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
        for name, text in sorted((config.get("annotations") or {}).items()):
            if name in self._notes:
                yield f"annotation {name}={text}"
        variables = {each["key"]: each.get("value") or "" for each in config.get("envs") or ()}
        if granted := sorted(variables.keys() & self._values.keys()):
            words = (self._variable(name, variables[name]) for name in granted)
            yield f"variables {' '.join(words)}"

    def _variable(self, name: str, encoded: str) -> str:
        values = self._values[name]
        if _UNTOLD in values:
            return name
        value = b64decode(encoded).decode(errors="replace")
        if value not in values:
            return f"{name} (not from a plugin)"
        ids = sorted(values[value])
        devices = ", ".join([*ids[:_MOST], *(["..."] if len(ids) > _MOST else [])])
        return f"{name} (as for {devices}: {value.removeprefix(_UNTOLD).strip()})"


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
        "annotations": dict(config.annotations),
        "envs": [
            {"key": each.key, "value": b64encode(each.value).decode()} for each in config.envs
        ],
    }


def _path(given: Mapping[str, Any]) -> str:
    return str(given["container_path"])
