"""Parses the Go kubelet's command line by the rules of pflag.

`--flag=value`, `--flag value`, `--bool`, `--bool=false`, `-v=2`, `-v 2`, `-v2`; `_` in a long
name means `-`; `--` ends the flags. All problems are collected, each with its flag. The result
is a list of (row, value) in the given order; `load` puts the values into the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from kubelet_trio.config.errors import ConfigError
from kubelet_trio.config.removed import removal
from kubelet_trio.config.table import BY_FLAG, Row
from kubelet_trio.config.types import KubeletConfiguration
from kubelet_trio.config.values import parse_value
from kubelet_trio.config.walk import leaves
from kubelet_trio.durations import Duration

_SHORT = {"v": "v", "h": "help"}
_ADDRESSES = frozenset({"address", "healthz-bind-address"})
_BARE = frozenset({"help", "help-all", "version", "check"})
_RAW_VERSION = "raw"
_TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")  # as strconv.ParseBool reads them


@dataclass(frozen=True, slots=True)
class KubeletFlags:
    """Settings that exist only as flags. `node_ip` has one address or two."""

    config: str = ""
    config_dir: str = ""
    root_dir: str = "/var/lib/kubelet"
    hostname_override: str = ""
    node_ip: str = ""
    crash_loop_backoff_base: Duration = field(default=Duration(10))
    crash_loop_backoff_exempt_clean_exits: bool = False
    process_allow_root: bool = False
    remove_pods_on_exit: bool = False
    keep_kernel_settings: bool = False
    ui_port: int = 0
    ui_actions: bool = False
    image_gc_keep: list[str] = field(default_factory=list)
    kubeconfig: str = ""
    bootstrap_kubeconfig: str = ""
    cert_dir: str = "/var/lib/kubelet/pki"
    cloud_provider: str = ""
    node_labels: dict[str, str] = field(default_factory=dict)
    lock_file: str = ""
    exit_on_lock_contention: bool = False
    runtime_cgroups: str = ""
    image_credential_provider_config: str = ""
    image_credential_provider_bin_dir: str = ""
    pod_infra_container_image: str = ""
    housekeeping_interval: Duration = field(default=Duration(10))
    max_housekeeping_interval: Duration = field(default=Duration(15))
    minimum_container_ttl_duration: Duration = field(default=Duration(0))
    maximum_dead_containers_per_container: int = 1
    maximum_dead_containers: int = -1
    register_schedulable: bool = True
    experimental_allocatable_ignore_eviction: bool = False
    keep_terminated_pod_volumes: bool = False
    experimental_mounter_path: str = ""
    application_metrics_count_limit: int = 100
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    container_hints: str = "/etc/cadvisor/container_hints.json"
    containerd: str = "/run/containerd/containerd.sock"
    containerd_namespace: str = "k8s.io"
    enable_load_reader: bool = False
    event_storage_age_limit: str = "default=0"
    event_storage_event_limit: str = "default=0"
    global_housekeeping_interval: Duration = field(default=Duration(60))
    log_cadvisor_usage: bool = False
    machine_id_file: str = "/etc/machine-id,/var/lib/dbus/machine-id"
    storage_driver_buffer_duration: Duration = field(default=Duration(60))
    storage_driver_db: str = "cadvisor"
    storage_driver_host: str = "localhost:8086"
    storage_driver_password: str = "root"  # cAdvisor's default; not used here
    storage_driver_secure: bool = False
    storage_driver_table: str = "stats"
    storage_driver_user: str = "root"


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """A parsed command line."""

    values: tuple[tuple[Row, Any], ...] = ()
    wants_help: bool = False
    wants_version: bool = False
    wants_raw_version: bool = False
    wants_all_help: bool = False  # `--help-all`
    wants_check: bool = False


def flag_type(row: Row) -> Any:
    """Return the Python type of a flag's value."""
    return _FIELD_TYPES[row.path] if row.path else _FLAG_TYPES[row.flag.replace("-", "_")]


_FIELD_TYPES = {path: leaf.type for path, leaf in leaves(KubeletConfiguration)}
_FLAG_TYPES = get_type_hints(KubeletFlags)


def parse_flags(argv: Sequence[str]) -> ParsedFlags:
    """Read the arguments after `run`. Raises `ConfigError` with all problems."""
    problems: list[str] = []
    values: list[tuple[Row, Any]] = []
    bare: dict[str, str] = {}
    for name, text in _tokens(argv, problems):
        if name in _BARE:
            bare[name] = text
            problems += _bare_problems(name, text)
            continue
        row = BY_FLAG[name]
        # IPVar in pkg/util/flag: no address means no change, as of a script's empty variable.
        if name in _ADDRESSES and not text:
            continue
        try:
            values.append((row, parse_value(row.flag, flag_type(row), text)))
        except ValueError as exc:
            problems.append(f'invalid argument "{text}" for "--{name}" flag: {exc}')
    # `--help` wins over wrong flags: the user may be looking for the right one.
    wants_all = "help-all" in bare
    wants_help = wants_all or "help" in bare
    if problems and not wants_help:
        raise ConfigError(problems)
    version = bare.get("version", "")
    return ParsedFlags(
        tuple(values),
        wants_help=wants_help,
        wants_version=version.lower() in _TRUE,
        wants_raw_version=version == _RAW_VERSION,
        wants_all_help=wants_all,
        wants_check=bare.get("check", "").lower() in _TRUE,
    )


def _bare_problems(name: str, text: str) -> Iterator[str]:
    # verflag takes a version, too: what it is to call itself. Only what it is can be said here.
    if text.lower() in (*_TRUE, *_FALSE) or (name == "version" and text == _RAW_VERSION):
        return
    values = "true, false or raw" if name == "version" else "true or false"
    yield f'invalid argument "{text}" for "--{name}" flag: expected {values}'


def _tokens(argv: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each known flag with the text of its value; a bare bool has `true`."""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            # The kubelet takes no positional arguments (NewKubeletCommand).
            problems.extend(f'unknown command "{extra}"' for extra in rest)
            return
        split = _split(word, problems)
        if split is None:
            continue
        name, text = split
        if name not in BY_FLAG and name not in _BARE:
            problems.append(_unknown(name))
            # The word after an unknown flag is most likely its value: do not report it, too.
            if text is None and rest and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        # NoOptDefVal in pflag: a bool never takes the next word as its value.
        if text is None and _is_bool(name):
            text = "true"
        elif text is None:
            if not rest:
                problems.append(f"flag needs an argument: --{name}")
                return
            text = rest.pop(0)
        yield name, text


def _split(word: str, problems: list[str]) -> tuple[str, str | None] | None:
    """Split `--name=value`, `-v2` and their like; anything else is a problem."""
    if word.startswith("--"):
        name, sign, text = word[2:].partition("=")
        if not name or name.startswith("-"):
            problems.append(f"bad flag syntax: {word}")
            return None
        # WordSepNormalizeFunc (component-base/cli/flag): --node_ip is --node-ip.
        return name.replace("_", "-"), text if sign else None
    if word.startswith("-") and len(word) > 1:
        name = _SHORT.get(word[1], "")
        if not name:
            problems.append(f"unknown shorthand flag: '{word[1]}' in {word}{_dashes(word)}")
            return None
        text = word[2:].removeprefix("=")
        return name, text or None
    problems.append(f'unknown command "{word}"')
    return None


def _dashes(word: str) -> str:
    name = word[1:].partition("=")[0]
    return f" (did you mean --{name}?)" if name in BY_FLAG else ""


def _unknown(name: str) -> str:
    if gone := removal(name):
        return gone
    import difflib  # deferred: only an error needs it

    close = difflib.get_close_matches(name, BY_FLAG, n=1)
    return f"unknown flag: --{name}" + (f" (did you mean --{close[0]}?)" if close else "")


def _is_bool(name: str) -> bool:
    if name in _BARE:
        return True
    kind = flag_type(BY_FLAG[name])
    return kind is bool or kind == bool | None
