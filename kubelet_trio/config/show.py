"""The configuration as text: the help of `run`, the tables of the docs, and JSON."""

from __future__ import annotations

import textwrap
from typing import Any

import msgspec
from msgspec.structs import replace

from kubelet_trio.config.flags import flag_type
from kubelet_trio.config.gates import EITHER, EVIDENCE, GATES, NOT_BUILT, WITHOUT_EFFECT
from kubelet_trio.config.support import default_of
from kubelet_trio.config.table import FIELDS, FLAGS, Row, Support
from kubelet_trio.config.types import KubeletConfiguration, encode_hook
from kubelet_trio.durations import Duration
from kubelet_trio.model import without_secrets

HIDDEN = "<hidden>"


def encode_config(config: KubeletConfiguration) -> bytes:
    """Return the configuration as upstream's JSON."""
    return msgspec.json.encode(config, enc_hook=encode_hook)


def encode_shown_config(config: KubeletConfiguration) -> bytes:
    """Return the configuration for /configz, without the secrets of the manifest URL."""
    # /configz is readable for more users than the file: the URL may contain a password.
    url = without_secrets(config.static_pod_url)
    hidden = {name: [HIDDEN] * len(each) for name, each in config.static_pod_url_header.items()}
    return encode_config(replace(config, static_pod_url=url, static_pod_url_header=hidden))


def run_help(width: int = 100) -> str:
    """Return the help of `kubelet-trio run`: every flag, what it does and its default."""
    parts = [
        "Usage: kubelet-trio run [flags]",
        "",
        *textwrap.wrap(
            "Run the node agent. It takes the flags of the Go kubelet; flags win over "
            "--config-dir, which wins over --config. A flag for a feature that is not "
            "built yet is refused by name.",
            width,
        ),
    ]
    for title, rows in (
        ("Flags", FLAGS),
        ("Flags of KubeletConfiguration fields (prefer --config)", FIELDS),
    ):
        parts += ["", f"{title}:"]
        for entry in sorted((e for e in rows if e.flag), key=lambda e: e.flag):
            parts += _flag_help(entry, width)
        if rows is FLAGS:
            parts += [
                "  -h, --help",
                "      this text",
                "      --version",
                "      print the version",
            ]
    return "\n".join(parts) + "\n"


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
        if name in WITHOUT_EFFECT or name in NOT_BUILT:
            may = "yes, without effect"
        upstream = "on" if value or name in NOT_BUILT else "off"
        behind = f"`{EVIDENCE[name]}`" if name in EVIDENCE else ""
        if name in NOT_BUILT:
            behind = f"not built: {NOT_BUILT[name]}"
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
    default = _plain(default_of(entry))
    kind = _kind(flag_type(entry))
    short = "  -v, --v" if entry.flag == "v" else f"      --{entry.flag}"
    head = f"{short} {kind}".rstrip() + (f" (default {default})" if default else "")
    text = entry.help
    if entry.support is not Support.YES:
        text += f" [{_support(entry)}]"
    if entry.path:
        text += f" [{entry.path}]"
    return [head, *textwrap.wrap(text, width, initial_indent=" " * 10, subsequent_indent=" " * 10)]


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
