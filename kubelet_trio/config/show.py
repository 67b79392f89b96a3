"""The configuration as text: the help of `run`, the tables of the docs, and JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from kubelet_trio.config.flags import flag_type
from kubelet_trio.config.gates import EITHER, EVIDENCE, GATES, WITHOUT_EFFECT
from kubelet_trio.config.support import default_of
from kubelet_trio.config.table import FIELDS, FLAGS, Row, Support
from kubelet_trio.config.types import KubeletConfiguration, encode_hook
from kubelet_trio.durations import Duration
from kubelet_trio.model import without_secrets

HIDDEN = "<hidden>"
# Names of headers that carry credentials, as Authorization, Cookie, X-Api-Key, PRIVATE-TOKEN.
_CREDENTIAL = re.compile(
    "auth|cookie|credential|key|pass|secret|session|signature|token", re.IGNORECASE
)


def encode_config(config: KubeletConfiguration) -> bytes:
    """Return the configuration as upstream's JSON."""
    return msgspec.json.encode(config, enc_hook=encode_hook)


def encode_shown_config(config: KubeletConfiguration) -> bytes:
    """Return the configuration for /configz, without the secrets of the manifest URL.

    The values of its headers are hidden where the header's name tells of a credential.
    """
    # /configz is readable for more users than the file: the URL may contain a password.
    url = without_secrets(config.static_pod_url)
    headers = {
        name: [HIDDEN] * len(values) if _CREDENTIAL.search(name) else values
        for name, values in config.static_pod_url_header.items()
    }
    return encode_config(replace(config, static_pod_url=url, static_pod_url_header=headers))


# What most people set, in the order in which they meet it.
_COMMON = (
    *("config", "pod-manifest-path", "container-runtime-endpoint", "root-dir", "kubeconfig"),
    *("hostname-override", "node-ip", "ui-port", "process-allow-root", "v"),
)
# The groups of `--help-all`: a flag belongs to the first group with a beginning of its name.
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Logging", ("log", "v", "vmodule")),
    (
        "Eviction and garbage collection",
        ("eviction", "image-gc", "minimum-", "maximum-", "kernel-"),
    ),
    ("Container runtime and images", ("container-", "image-", "runtime-", "registry", "serialize")),
    (
        "API server and the node's object",
        (
            *("kube-api", "kubeconfig", "bootstrap", "cert-dir", "rotate", "register", "node-"),
            *("provider", "cloud", "event-", "hostname", "offline", "enable-controller"),
        ),
    ),
    (
        "Ports: kubelet API, health and the page",
        (
            *("address", "port", "read-only", "tls", "client-ca", "auth", "anonymous"),
            *("enable-", "contention", "streaming", "healthz", "ui-"),
        ),
    ),
    (
        "Resources, cgroups and managers",
        (
            *("cgroup", "cpu-", "memory-", "topology-", "kube-reserved", "system-", "reserved-"),
            *(
                "enforce",
                "qos",
                "kubelet-cgroups",
                "oom-",
                "max-open",
                "fail-",
                "protect",
                "keep-k",
            ),
        ),
    ),
    (
        "Pods and where they come from",
        (
            *("pod", "manifest", "file-", "http-", "sync-", "max-pods", "runonce", "crash-"),
            *("allowed", "seccomp", "remove-pods", "process-"),
        ),
    ),
    (
        "Network and volumes",
        ("cluster-", "resolv", "hairpin", "iptables", "make-", "volume", "local"),
    ),
    ("The agent", ("config", "root-dir", "feature", "lock", "exit", "housekeeping")),
)
_WITHOUT_EFFECT = "Accepted as by the Go kubelet, without effect or only with the default"


def run_help(width: int = 100, *, every: bool = False) -> str:
    """Return the help of `kubelet-trio run`: the common flags, or `every` flag by its group."""
    rows = {row.flag: row for row in (*FLAGS, *FIELDS) if row.flag}
    parts = [
        "Usage: kubelet-trio run [flags]",
        "",
        *textwrap.wrap(
            "Run the node agent. It takes the flags of the Go kubelet; flags win over "
            "--config-dir, which wins over --config. A flag for a feature that is not "
            "built yet is refused by name. In [brackets]: the field of KubeletConfiguration, "
            "which is to be preferred.",
            width,
        ),
    ]
    groups = _grouped(rows) if every else {"Common flags": [rows[name] for name in _COMMON]}
    for title, members in groups.items():
        parts += ["", f"{title}:"]
        for row in members:
            parts += _flag_help(row, width)
    parts += ["", "Help:", "  -h, --help", "          the common flags"]
    parts += ["      --help-all", f"          all {len(rows)} flags, by group"]
    parts += ["      --version", "          print the version"]
    parts += ["      --check", "          say what would be run, or refused, and start nothing"]
    if not every:
        parts += ["", "Examples:"]
        parts += ["  kubelet-trio run --config=/etc/kubernetes/kubelet.yaml"]
        parts += [
            "  kubelet-trio run --container-runtime-endpoint=process --pod-manifest-path=$PWD"
        ]
    return "\n".join(parts) + "\n"


def run_flag_groups() -> Mapping[str, list[tuple[str, str]]]:
    """Return every flag of `run` with what it does, by the title of its group."""
    rows = {row.flag: row for row in (*FLAGS, *FIELDS) if row.flag}
    return {
        title: [_flag_entry(row) for row in members] for title, members in _grouped(rows).items()
    }


def _grouped(rows: Mapping[str, Row]) -> dict[str, list[Row]]:
    """Return all flags by the title of their group, sorted."""
    groups: dict[str, list[Row]] = {title: [] for title, _ in _GROUPS[::-1]}
    groups[_WITHOUT_EFFECT] = []
    for flag, row in sorted(rows.items()):
        if row.support in (Support.YES, Support.API):
            title = next((t for t, starts in _GROUPS if flag.startswith(starts)), "The agent")
        else:
            title = _WITHOUT_EFFECT
        groups[title].append(row)
    return groups


def field_table() -> str:
    """Return the Markdown table of KubeletConfiguration's fields."""
    lines = [
        "| field | flag | default | support | what it does |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in FIELDS:
        flag = f"`{_dashed(entry.flag)}`" if entry.flag else ""
        lines.append(
            f"| `{entry.path}` | {flag} | {_default(entry)} | {_support(entry)} | {entry.help} |"
        )
    return "\n".join(lines)


def flag_table() -> str:
    """Return the Markdown table of the flags that have no field."""
    return "\n".join(
        [
            "| flag | default | support | what it does |",
            "| --- | --- | --- | --- |",
            *(f"| `{_dashed(e.flag)}` | {_default(e)} | {_support(e)} | {e.help} |" for e in FLAGS),
        ]
    )


def gate_table() -> str:
    """Return the Markdown table of feature gates."""
    lines = ["| gate | upstream | here | may be changed | by |", "| --- | --- | --- | --- | --- |"]
    for name, value in sorted(GATES.items()):
        may = "yes" if name in EITHER else "no"
        if name in WITHOUT_EFFECT:
            may = "yes, without effect"
        upstream = "on" if value else "off"
        behind = f"`{EVIDENCE[name]}`" if name in EVIDENCE else ""
        lines.append(f"| `{name}` | {upstream} | {'on' if value else 'off'} | {may} | {behind} |")
    return "\n".join(lines)


def _support(entry: Row) -> str:
    if entry.support is Support.YES:
        return "yes"
    if entry.support is Support.API:
        return "with an API server"
    if entry.support is Support.MOOT:
        return f"accepted, no effect: {entry.why}"
    return f"only the default: {entry.why}"


def _default(entry: Row) -> str:
    text = _plain(default_of(entry))
    return f"`{text}`" if text else ""


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value)) or "[]"
    return "" if value is None else str(value)


def _dashed(flag: str) -> str:
    return f"-{flag}" if len(flag) == 1 else f"--{flag}"


def _flag_help(entry: Row, width: int) -> list[str]:
    head, text = _flag_entry(entry)
    lines = textwrap.wrap(text, width, initial_indent=" " * 10, subsequent_indent=" " * 10)
    return [f"{'' if head.startswith('-v,') else '    '}  {head}", *lines]


def _flag_entry(entry: Row) -> tuple[str, str]:
    """Return a flag with its kind and default, and what it does."""
    default = _plain(default_of(entry))
    kind = _kind(flag_type(entry))
    short = "-v, --v" if entry.flag == "v" else f"--{entry.flag}"
    head = f"{short} {kind}".rstrip() + (f" (default {default})" if default else "")
    text = entry.help
    if entry.support is not Support.YES:
        text += f" [{_support(entry)}]"
    if entry.path:
        text += f" [{entry.path}]"
    return head, text


def _kind(kind: Any) -> str:
    names = {str: "string", bool: "", int: "int", float: "float", Duration: "duration"}
    if kind in names:
        return names[kind]
    text = str(kind)
    if text.startswith("list"):
        return "strings"
    if text.startswith("dict"):
        return "key=value,..."
    return "int" if "int" in text else ""
