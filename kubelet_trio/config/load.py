"""Loads the settings: defaults, configuration file, drop-ins, then flags over all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubelet_trio.config.decode import decode_all, normalize
from kubelet_trio.config.errors import ConfigError
from kubelet_trio.config.files import as_file, read_files, read_text, reread, with_defaults
from kubelet_trio.config.flags import KubeletFlags, ParsedFlags, parse_flags
from kubelet_trio.config.places import locate
from kubelet_trio.config.support import moot_notes, unsupported
from kubelet_trio.config.table import Row
from kubelet_trio.config.types import KubeletConfiguration
from kubelet_trio.config.validate import validate, validate_flags
from kubelet_trio.config.walk import pick, put

# Flags of KubeletConfiguration fields that are not deprecated upstream.
_CURRENT = frozenset(
    {
        "v",
        "vmodule",
        "log-flush-frequency",
        "offline-pods",
        "flight-recorder-size",
        "provider-id",
        "seccomp-default",
        "fail-cgroupv1",
    }
)
# Flags without a field that upstream has deprecated or removed.
_GONE = frozenset(
    {
        "minimum-container-ttl-duration",
        "maximum-dead-containers-per-container",
        "maximum-dead-containers",
        "register-schedulable",
        "experimental-allocatable-ignore-eviction",
        "keep-terminated-pod-volumes",
        "pod-infra-container-image",
        "experimental-mounter-path",
        "application-metrics-count-limit",
        "boot-id-file",
        "container-hints",
        "containerd",
        "containerd-namespace",
        "enable-load-reader",
        "event-storage-age-limit",
        "event-storage-event-limit",
        "global-housekeeping-interval",
        "log-cadvisor-usage",
        "machine-id-file",
        "storage-driver-buffer-duration",
        "storage-driver-db",
        "storage-driver-host",
        "storage-driver-password",
        "storage-driver-secure",
        "storage-driver-table",
        "storage-driver-user",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one start of the agent.

    `notes` are remarks for the log: deprecated flags, settings without effect. `log_format` is
    `text`, `json`, or empty if not set. `given` has the settings that were set explicitly:
    top-level fields, and flags without a field as `--root-dir`.
    """

    config: KubeletConfiguration
    flags: KubeletFlags
    notes: tuple[str, ...] = ()
    log_format: str = ""
    given: frozenset[str] = frozenset()


def load_settings(argv: Sequence[str]) -> Settings:
    """Read the arguments after `run` and the files they name.

    Raises `ConfigError` with all problems: unknown flags and fields, bad values, invalid
    combinations, and settings that this agent does not support yet.
    """
    return settle(parse_flags(argv))


def settle(line: ParsedFlags) -> Settings:
    """Turn a parsed command line into settings. Raises `ConfigError`."""
    flags = _flags(line)
    try:
        return _settle(line, flags, read_files(flags.config, flags.config_dir))
    except ConfigError as exc:
        raise locate(exc.problems, reread(flags.config, flags.config_dir)) from exc


def check_file(path: Path, text: str) -> tuple[str, ...]:
    """Check the text of a configuration file alone, and return its notes. Raises `ConfigError`."""
    line = parse_flags([])
    try:
        return _settle(line, _flags(line), with_defaults(read_text(path, text))).notes
    except ConfigError as exc:
        raise locate(exc.problems, [as_file(path, text)]) from exc


def _settle(line: ParsedFlags, flags: KubeletFlags, content: dict[str, Any]) -> Settings:
    raw = normalize(content)
    log_format = str(pick(raw, "logging.format") or "")
    gates = raw.get("featureGates")
    for path, value in _fields(line).items():
        # Flags win over the file, field by field; feature gates are merged gate by gate
        # (kubeletConfigFlagPrecedence in cmd/kubelet/app/server.go; kubernetes/kubernetes#56171).
        if path == "featureGates" and isinstance(gates, dict):
            value = {**gates, **value}
        put(raw, path, value)
    # Not from `config`: its default hides whether the format was set.
    for row, value in line.values:
        if row.path == "logging.format":
            log_format = value
    config, malformed, left_out = decode_all(raw)
    problems = [*validate(config), *validate_flags(flags), *unsupported(config, flags)]
    # Fields that were left out have their defaults: problems with these are not the author's.
    problems = [*malformed, *(p for p in problems if not any(name in p for name in left_out))]
    if problems:
        raise ConfigError(problems)
    notes = (*_deprecated(line), *moot_notes(config, flags))
    given = frozenset({*raw, *(f"--{row.flag}" for row, _ in line.values if not row.path)})
    return Settings(config, flags, notes, log_format, given)


def _flags(line: ParsedFlags) -> KubeletFlags:
    given = {row.flag.replace("-", "_"): value for row, value in _joined(line) if not row.path}
    if root_dir := given.get("root_dir"):
        given["root_dir"] = os.path.abspath(root_dir)  # as in the other commands
    return replace(KubeletFlags(), **given)


def _fields(line: ParsedFlags) -> dict[str, Any]:
    return {row.path: value for row, value in _joined(line) if row.path}


def _joined(line: ParsedFlags) -> list[tuple[Row, Any]]:
    """Join repeated flags as pflag does: lists and maps grow, other values are replaced.

    So are taints: RegisterWithTaintsVar in pkg/util/flag.
    """
    joined: dict[str, tuple[Row, Any]] = {}
    for row, value in line.values:
        before = joined.get(row.flag, (row, None))[1]
        if row.path == "registerWithTaints":
            pass
        elif isinstance(before, list):
            value = [*before, *value]
        elif isinstance(before, dict):
            value = _union(before, value)
        joined[row.flag] = (row, value)
    return list(joined.values())


def _union(before: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    # A header may repeat: its values add up (ColonSeparatedMultimapStringString).
    lists = {k: [*before[k], *v] for k, v in value.items() if isinstance(v, list) and k in before}
    return {**before, **value, **lists}


def _deprecated(line: ParsedFlags) -> list[str]:
    notes = []
    for flag, row in {row.flag: row for row, _ in line.values}.items():
        if flag in _GONE:
            notes.append(f"--{flag} is deprecated and will go away")
        elif row.path and flag not in _CURRENT:
            notes.append(f"--{flag} is deprecated: set {row.path} in the --config file instead")
    return notes
