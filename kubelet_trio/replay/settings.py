"""The settings of a replayed agent: the recorded ones, in the replay's own directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from kubelet_trio.agent import AgentSettings
from kubelet_trio.containers import NodeSettings
from kubelet_trio.gc import ImagePolicy, LogRotationPolicy
from kubelet_trio.recorder import RecordingError

T = TypeVar("T")

# What only the machine can tell, or nobody looks at: as of an agent that is not told of it.
_OFF = frozenset(
    {
        *("image_gc", "log_rotation", "own_node", "sockets"),
        *("recorder_size", "system_cgroups", "pull_verification", "stats_from_runtime", "gates"),
    }
)


def agent_settings(facts: Mapping[str, Any], top: Path) -> AgentSettings:
    """Return the settings of a recorded agent.

    What needs the machine is off: image collection, log rotation, managers of devices.

    Args:
        facts: the body of START.
        top: the replay's directory.

    Raises `RecordingError`: a setting has another form than this version's.
    """
    told = {k: v for k, v in (facts.get("settings") or {}).items() if k not in _OFF}
    name = str(facts.get("node") or "node")
    node = _node(told.pop("node", None) or {}, name, top)
    found = AgentSettings(node, instance=str(facts.get("instance") or ""))
    return replace(
        _filled(found, told),
        node=node,
        image_gc=ImagePolicy(high_threshold=100),
        log_rotation=LogRotationPolicy(max_size=-1),
    )


def _node(told: Mapping[str, Any], name: str, top: Path) -> NodeSettings:
    return replace(
        _filled(NodeSettings(name, str(told.get("hostname") or name)), told),
        root_dir=top / "root",
        pod_logs_dir=top / "logs" / "pods",
        container_logs_dir=top / "logs" / "containers",
        volume_plugin_dir=top / "exec",
        selinux=False,  # labels are of the machine's files
        resolver_file="",  # as it was when the agent began
    )


def _filled(settings: T, told: Mapping[str, Any]) -> T:
    """Return settings with the recorded values of the fields that this version has."""
    kind: Any = type(settings)
    types = get_type_hints(kind)
    changes = {}
    for each in fields(kind):
        if each.name not in told:
            continue
        try:
            changes[each.name] = msgspec.convert(
                told[each.name], types[each.name], strict=False, dec_hook=_decode
            )
        except (msgspec.ValidationError, TypeError) as exc:
            raise RecordingError(f"START: settings: {each.name}: {exc}") from exc
    changed: T = replace(settings, **changes)  # type: ignore[type-var]
    return changed


def _decode(kind: type, value: Any) -> Any:
    if issubclass(kind, Path):
        return Path(value)
    raise TypeError(f"a setting of {kind.__name__}")
