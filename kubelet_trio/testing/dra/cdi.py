"""CDI specifications, as drivers write them for container runtimes.

Source: the Container Device Interface's SPEC.md, version 0.6.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class CdiEdits:
    """What a container gets with a device.

    Attributes:
        env: variables.
        nodes: paths of device nodes in the container, and on the host.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


def write_cdi_spec(directory: Path, name: str, kind: str, devices: Mapping[str, CdiEdits]) -> Path:
    """Write a specification, all of it or nothing; return its path.

    Args:
        directory: of the runtime, such as /var/run/cdi.
        name: of the file, without `.json`.
        kind: `vendor.com/class`.
        devices: what containers get, by the devices' names.
    """
    directory.mkdir(parents=True, exist_ok=True)
    spec = {
        "cdiVersion": "0.6.0",
        "kind": kind,
        "devices": [
            {"name": device, "containerEdits": _edits(edits)} for device, edits in devices.items()
        ],
    }
    path = directory / f"{name}.json"
    aside = directory / f".{name}.new"  # runtimes read `*.json` and `*.yaml`
    aside.write_bytes(msgspec.json.encode(spec))
    os.replace(aside, path)
    return path


def remove_cdi_spec(directory: Path, name: str) -> None:
    """Remove a specification, if there is one."""
    (directory / f"{name}.json").unlink(missing_ok=True)


def _edits(edits: CdiEdits) -> dict[str, Any]:
    found: dict[str, Any] = {"env": [f"{name}={value}" for name, value in edits.env.items()]}
    if edits.nodes:
        found["deviceNodes"] = [
            {"path": path, "hostPath": host} for path, host in edits.nodes.items()
        ]
    return found
