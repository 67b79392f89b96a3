"""containerd's configuration: what is in effect, and the drop-in that a kubelet needs.

containerd merges the files that `imports` names over the file that imports them, in order. Up to
2.0 a `[plugins.X]` table of a later file replaces the whole table of an earlier one (mergeConfig in
containerd's config.go), so the drop-in repeats the settings of the tables that it changes. The
main file gets one line, `imports`; everything else in it stays as it is, byte for byte.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

CONFIG = "/etc/containerd/config.toml"
DROP_IN_DIR = "/etc/containerd/conf.d"
DROP_IN = f"{DROP_IN_DIR}/50-kubelet-trio.toml"
IMPORTS = f"{DROP_IN_DIR}/*.toml"

# Tables of the CRI plugin, by version of the configuration: runtime, and images.
_CRI = "io.containerd.grpc.v1.cri"
_CRI_3, _IMAGES_3 = "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_DISABLED = re.compile(r"^(\s*disabled_plugins\s*=\s*)\[[^\]\n]*\]", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class ContainerdConfigError(Exception):
    """The configuration cannot be read, or not be changed safely; the message says the cure."""


@dataclass(frozen=True, slots=True)
class ContainerdFiles:
    """The files of containerd's configuration, and its version."""

    version: str = ""  # 1.6.20; empty if containerd is not installed
    main: str | None = None  # the text of config.toml; None if there is none
    imported: tuple[tuple[str, str], ...] = ()  # path and text of the files that it imports

    @property
    def is_installed(self) -> bool:
        """Whether there is a containerd."""
        return bool(self.version)


@dataclass(frozen=True, slots=True)
class CriSettings:
    """The settings of the CRI plugin that a node depends on; containerd's own defaults."""

    systemd_cgroup: bool = False
    bin_dir: str = "/opt/cni/bin"
    conf_dir: str = "/etc/cni/net.d"
    sandbox_image: str = ""  # "" is containerd's default
    is_disabled: bool = False


def effective(files: ContainerdFiles) -> CriSettings:
    """Return the settings in effect. Raises `ContainerdConfigError`, naming the file."""
    main = _parse(CONFIG, files.main or "")
    version, plugins = _version(files, main), _plugins(files)
    runtime = plugins.get(_CRI_3 if version >= 3 else _CRI, {})
    cni = runtime.get("cni", {})
    pinned = plugins.get(_IMAGES_3, {}).get("pinned_images", {})
    sandbox = pinned.get("sandbox", "") if version >= 3 else runtime.get("sandbox_image", "")
    runtimes = runtime.get("containerd", {}).get("runtimes", {})
    defaults = CriSettings()
    bin_dirs = cni.get("bin_dirs") or [cni.get("bin_dir") or defaults.bin_dir]
    return CriSettings(
        bool(runtimes.get("runc", {}).get("options", {}).get("SystemdCgroup", False)),
        str(bin_dirs[0]).rstrip("/"),
        str(cni.get("conf_dir") or defaults.conf_dir).rstrip("/"),
        str(sandbox),
        bool({"cri", _CRI} & set(main.get("disabled_plugins", ()))),
    )


def drop_in(
    files: ContainerdFiles, *, systemd_cgroup: bool, bin_dir: str, sandbox_image: str
) -> str:
    """Return the drop-in that makes these settings effective over all other files' settings.

    An empty `sandbox_image` leaves the image as it is. Raises `ContainerdConfigError`.
    """
    version = _version(files, _parse(CONFIG, files.main or ""))
    name = _CRI_3 if version >= 3 else _CRI
    without = tuple(entry for entry in files.imported if entry[0] != DROP_IN)
    plugins = _plugins(ContainerdFiles(files.version, files.main, without))
    runtime = deepcopy(plugins.get(name, {}))
    cni = runtime.setdefault("cni", {})
    if "bin_dirs" in cni:  # containerd 2.1 has a list, and refuses both
        cni["bin_dirs"] = [bin_dir]
    else:
        cni["bin_dir"] = bin_dir
    runtimes = runtime.setdefault("containerd", {}).setdefault("runtimes", {})
    runc = runtimes.setdefault("runc", {})
    runc.setdefault("runtime_type", "io.containerd.runc.v2")
    runc.setdefault("options", {})["SystemdCgroup"] = systemd_cgroup
    tables = {name: runtime}
    if sandbox_image and version >= 3:
        images = deepcopy(plugins.get(_IMAGES_3, {}))
        images.setdefault("pinned_images", {})["sandbox"] = sandbox_image
        tables[_IMAGES_3] = images
    elif sandbox_image:
        runtime["sandbox_image"] = sandbox_image
    head = (
        "# Written by `kubelet-trio install`: `kubelet-trio uninstall` removes it.\n"
        "# containerd replaces whole [plugins] tables: other files' settings are repeated here.\n"
    )
    return head + dump_toml({"version": version, "plugins": tables})


def main_file(files: ContainerdFiles) -> str:
    """Return config.toml as it must be for the drop-in; equal to `files.main` if it is already.

    Adds `imports`, and enables the CRI plugin, which the packages of Docker disable. Raises
    `ContainerdConfigError` if that cannot be done without touching anything else.
    """
    if files.main is None:
        version = _version(files, {})
        return (
            "# Written by `kubelet-trio install`: settings that are not here are containerd's own\n"
            f'version = {version}\nimports = ["{IMPORTS}"]\n'
        )
    before = _parse(CONFIG, files.main)
    version = _version(files, before)
    wanted, text = deepcopy(before), files.main
    disabled = before.get("disabled_plugins", [])
    if {"cri", _CRI} & set(disabled):
        wanted["disabled_plugins"] = [name for name in disabled if name not in ("cri", _CRI)]
        text = _DISABLED.sub(lambda m: m[1] + _value(wanted["disabled_plugins"]), text, count=1)
    imports = before.get("imports", [])
    if IMPORTS not in imports and DROP_IN not in imports:
        wanted["imports"] = [*imports, IMPORTS]
        text = _with_imports(text, wanted["imports"], is_new="imports" not in before)
    if int(before.get("version", 0)) < 2 and "version" not in before:
        wanted["version"] = version  # a file without one is of version 1
        text = f"version = {version}\n{text}"
    try:
        is_right = tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise ContainerdConfigError(
            f"{CONFIG} cannot be changed safely: write `imports = {_value(wanted.get('imports'))}` "
            f"at its top{', without cri in disabled_plugins' if disabled else ''}, and try again"
        )
    return text


def _with_imports(text: str, imports: Sequence[str], *, is_new: bool) -> str:
    line = f"imports = {_value(list(imports))}"
    if not is_new:
        return re.sub(
            r"^\s*imports\s*=\s*\[[^\]]*\]", lambda _: line, text, count=1, flags=re.MULTILINE
        )
    # A key belongs to the table above it: the line stands before the first table.
    table = _TABLE.search(text)
    if table is None:
        return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n"
    at = text.rfind("\n", 0, table.start() + len(table[0])) + 1
    return f"{text[:at]}{line}\n\n{text[at:]}"


def _version(files: ContainerdFiles, main: Mapping[str, Any]) -> int:
    """Return the version to write. Raises `ContainerdConfigError` for plugins of version 1."""
    version = int(main.get("version", 0))
    if version >= 2:
        return version
    if "plugins" in main:  # whose names are others in version 1
        raise ContainerdConfigError(
            f"{CONFIG} is of version 1, which containerd 2 does not read: "
            "`containerd config migrate` prints it as a newer one"
        )
    return 3 if files.version.partition(".")[0] not in ("", "0", "1") else 2


def _plugins(files: ContainerdFiles) -> dict[str, dict[str, Any]]:
    """Return the tables of `plugins`, the later file's in place of the earlier's."""
    found: dict[str, dict[str, Any]] = {}
    for path, text in ((CONFIG, files.main or ""), *files.imported):
        found |= _parse(path, text).get("plugins", {})
    return found


def _parse(path: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ContainerdConfigError(f"{path}: {exc}") from exc


def imported_patterns(text: str) -> list[str]:
    """Return the paths and patterns that a file imports. Raises `ContainerdConfigError`."""
    return [str(pattern) for pattern in _parse(CONFIG, text).get("imports", [])]


def dump_toml(table: Mapping[str, Any]) -> str:
    """Return a table as TOML. Values are those of `tomllib`, without dates."""
    lines: list[str] = []
    _dump(table, (), lines)
    return "\n".join(lines) + "\n"


def _dump(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
    if path and (plain or not table):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            _dump(value, (*path, key), lines)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    # TOML allows no control character in a basic string.
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\u{ord(m[0]):04x}", escaped) + '"'
