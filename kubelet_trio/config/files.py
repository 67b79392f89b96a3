"""Reads configuration files strictly, and merges drop-ins over the main one.

A drop-in directory has `*.conf` files, at any depth. They are applied in the lexical order of
their paths as JSON merge patches (RFC 7386). Each needs its own apiVersion and kind.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from kubelet_trio.config.errors import ConfigError
from kubelet_trio.config.places import File
from kubelet_trio.config.types import GROUP_VERSION, KIND
from kubelet_trio.config.walk import pick, put
from kubelet_trio.model import DEFAULT_EVICTION_HARD, check_yaml_depth

_DEEPEST, _MOST_VALUES = 50, 100_000
# A relative path is relative to the directory of its file (KubeletConfigurationPathRefs in
# pkg/kubelet/apis/config/helpers.go).
_PATHS = (
    "staticPodPath",
    "podLogsDir",
    "resolvConf",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "authentication.x509.clientCAFile",
    "volumePluginDir",
)


def read_files(config: str, config_dir: str) -> dict[str, Any]:
    """Return the merged settings of --config and --config-dir, as decoded JSON.

    Raises `ConfigError` with every unreadable or malformed file.
    """
    merged: dict[str, Any] = {}
    problems: list[str] = []
    for number, path in enumerate(_paths(config, config_dir)):
        try:
            raw = read_file(path)
            merged = merge_patch(merged, raw if number or not config else with_defaults(raw))
        except ConfigError as exc:
            problems += exc.problems
    if problems:
        raise ConfigError(problems)
    return merged


def reread(config: str, config_dir: str) -> list[File]:
    """Return path, text and decoded content of each file that can be read, for `locate`."""
    found: list[File] = []
    with contextlib.suppress(ConfigError):
        for path in _paths(config, config_dir):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found.append(as_file(path, path.read_text()))
    return found


def as_file(path: Path, text: str) -> File:
    """Return a file for `locate`."""
    try:
        return str(path), text, _decode(path, text)
    except ConfigError:
        return str(path), text, None


def _paths(config: str, config_dir: str) -> list[Path]:
    files = [Path(config)] if config else []
    return files + (_drop_ins(Path(config_dir)) if config_dir else [])


def read_file(path: Path) -> dict[str, Any]:
    """Read one file of a KubeletConfiguration, YAML or JSON. Raises `ConfigError`."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError([f"{path}: {exc.strerror if isinstance(exc, OSError) else exc}"]) from exc
    return read_text(path, text)


def read_text(path: Path, text: str) -> dict[str, Any]:
    """Read the text of a file. Raises `ConfigError`."""
    raw = _decode(path, text)
    problems = [
        f"{path}: {name} must be {wanted}, and is {raw.get(name, 'missing')}"
        for name, wanted in (("apiVersion", GROUP_VERSION), ("kind", KIND))
        if raw.get(name) != wanted
    ]
    if problems:
        raise ConfigError(problems)
    # Before the merge: afterwards the directory of the file is unknown.
    for name in _PATHS:
        value = pick(raw, name)
        if isinstance(value, str) and value and not value.startswith("/"):
            put(raw, name, str(path.parent.absolute() / value))
    return raw


def with_defaults(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the content of --config with the defaults of evictionHard, as far as it takes them.

    Drop-ins are merged into these, and flags replace them (loadConfigFile).
    """
    given = raw.get("evictionHard")
    fills_up = raw.get("mergeDefaultEvictionSettings") is True and isinstance(given, dict)
    if given is not None and not fills_up:
        return raw
    return {**raw, "evictionHard": {**DEFAULT_EVICTION_HARD, **(given or {})}}


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386) and return the result; null removes a key."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _drop_ins(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise ConfigError([f"--config-dir {directory}: no such directory"])
    found = []
    for where, inner, names in os.walk(directory):
        inner.sort()
        found += [Path(where, name) for name in names if name.endswith(".conf")]
    # Paths compare part by part, which is the order of filepath.WalkDir in
    # mergeKubeletConfigurations (cmd/kubelet/app/server.go): `a/x.conf` before `a.conf`.
    return sorted(path for path in found if path.is_file())


def _check_size(value: Any) -> None:
    """Raise ValueError if aliases make a value endless, or far larger than its text."""
    waiting, count = [(value, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            raise ValueError(
                f"expected at most {_DEEPEST} levels and {_MOST_VALUES} values, aliases followed"
            )
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list | tuple | set):
            waiting += [(item, depth + 1) for item in inner]


def _decode(path: Path, text: str) -> dict[str, Any]:
    import yaml  # deferred: only a configuration file needs it

    # PyYAML has CSafeLoader only if it was built with libyaml.
    class StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """A loader that refuses duplicate keys, as upstream."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            self.flatten_mapping(node)
            # Only scalars: the value of any other key is a list, which Counter cannot hash.
            names = Counter(k.value for k, _ in node.value if isinstance(k.value, str))
            for key in (key for key, count in names.items() if count > 1):
                raise yaml.constructor.ConstructorError(
                    None, None, f'duplicate field "{key}"', node.start_mark
                )
            mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
            return mapping

    try:
        check_yaml_depth(text)
        raw = yaml.load(text, StrictLoader)  # a safe loader, made stricter
        _check_size(raw)
    # ValueError: a number with thousands of digits, an invalid date.
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError([f"{path}: {' '.join(str(exc).split())}"]) from exc
    if not isinstance(raw, Mapping):
        raise ConfigError([f"{path}: is not a {KIND}"])
    return dict(raw)
