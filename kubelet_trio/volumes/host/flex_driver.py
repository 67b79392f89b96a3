"""Calls of a FlexVolume driver, a program on the host that answers with a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubelet_trio.volumes.tools import LIMIT, MAX_EXCERPT, ToolResult, run_tool

_SUCCESS = "Success"
_NOT_SUPPORTED = "Not supported"


@dataclass(frozen=True, slots=True)
class FlexAnswer:
    """A driver's successful answer; None instead of it says that a call is not supported."""

    device: str = ""
    capabilities: Mapping[str, object] = field(default_factory=dict)

    def can(self, capability: str) -> bool:
        """Whether the driver has a capability, such as `attach` or `fsgroup`."""
        # The default of all that the agent uses (defaultCapabilities in pkg/volume/flexvolume).
        return self.capabilities.get(capability, True) is True


@dataclass(frozen=True, slots=True)
class FlexDriver:
    """A driver and its calls. They block."""

    name: str  # vendor/driver, or driver
    program: Path
    limit: float = LIMIT  # seconds for one call

    def call(self, command: str, *arguments: str) -> FlexAnswer | None:
        """Call the driver; return its answer, or None if it does not support the command.

        Raises OSError if it fails, cannot be run, or answers with anything else.
        """
        done = run_tool([self.program], (command, *arguments), self.limit)
        return _answer(self, command, done)


def _answer(driver: FlexDriver, command: str, done: ToolResult) -> FlexAnswer | None:
    # An answer counts whatever the exit status, as in the Go kubelet (DriverCall.Run).
    found = _decode(done.output)
    if found is None:
        raise OSError(
            f"{command} command of FlexVolume driver {driver.name} failed: {done.ending}, "
            f"and its output is no answer: {done.output.strip()[:200]}"
        )
    status, message = found.get("status"), str(found.get("message") or "")[:MAX_EXCERPT]
    if status == _NOT_SUPPORTED:
        return None
    if status != _SUCCESS:
        raise OSError(
            f"{command} command failed, status: {str(status)[:MAX_EXCERPT]}, reason: {message}"
        )
    if done.code != 0:
        raise OSError(f"{command} command of FlexVolume driver {driver.name}: {done.ending}")
    device, capabilities = found.get("device"), found.get("capabilities")
    return FlexAnswer(
        device=device if isinstance(device, str) else "",
        capabilities=_lower(capabilities) if isinstance(capabilities, dict) else {},
    )


def _decode(output: str) -> dict[str, Any] | None:
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        return None
    return _lower(found) if isinstance(found, dict) else None


def _lower(found: dict[str, Any]) -> dict[str, Any]:
    # Go's decoder takes names in any case, and drivers rely on it.
    return {name.lower(): value for name, value in found.items()}
