"""`kubelet-trio validate`: checks manifests and KubeletConfigurations without an agent."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kubelet_trio.cli.tables import printable
from kubelet_trio.config import ConfigError, check_file
from kubelet_trio.model import Position, excerpt, pod_key
from kubelet_trio.sources import (
    MAX_MANIFEST_SIZE,
    FieldError,
    ManifestError,
    error_line,
    is_ignored,
    load_manifest,
    manifest_name,
)

STDIN = "-"
_SHOWN_STDIN = "<stdin>"
# Not indented, except in JSON: a ConfigMap may hold a configuration.
_CONFIG = re.compile(r"""^["']?kind["']?\s*:\s*["']?KubeletConfiguration\b""", re.MULTILINE)
_JSON_CONFIG = re.compile(
    r"""\s*\{.*["']?\bkind["']?\s*:\s*["']?KubeletConfiguration\b""", re.DOTALL
)
_SECRET = re.compile(r"\bkind[\"']?\s*:\s*[\"']?(Secret|List)\b")


@dataclass(slots=True)
class Checked:
    """One file, what it has, and what is wrong with it."""

    file: str
    kind: str = "manifest"  # or KubeletConfiguration
    objects: list[dict[str, str]] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    text: str = ""  # for excerpts; empty if it may be secret


def validate(paths: Iterable[str], output: str | None, *, strict: bool) -> int:
    """Check files, print what is wrong, and return the exit code: 1 for any error.

    With `strict` a warning counts as an error.
    """
    checked = [_check(path) for path in _files(paths)]
    _find_duplicates(checked)
    failed = any(each.errors or (strict and each.warnings) for each in checked)
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(_document(checked, failed))).decode())
        return int(failed)
    for each in checked:
        for line in _lines(each):
            print(line)
    errors = sum(len(each.errors) for each in checked)
    objects = sum(len(each.objects) for each in checked)
    print(
        f"{_number(len(checked), 'file')}, {_number(objects, 'object')}, "
        f"{_number(errors, 'error')}",
        file=sys.stderr,
    )
    return int(failed)


def manifest_files(directory: str) -> list[str]:
    """Return the manifests of a directory, as the agent would read them. Raises OSError."""
    names = sorted(name for name in os.listdir(directory) if not is_ignored(name))
    paths = [os.path.join(directory, name) for name in names]
    return [path for path in paths if not os.path.isdir(path)]


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if path != STDIN and os.path.isdir(path):
            yield from manifest_files(path)
        else:
            yield path


def _check(path: str) -> Checked:
    shown = _SHOWN_STDIN if path == STDIN else path
    try:
        data = _read(path)
    except OSError as exc:
        message = f"cannot be read: {exc.strerror or exc}"
        return Checked(shown, errors=[FieldError("", message)])
    text = data.decode("utf-8-sig", "replace")
    checked = Checked(shown, text="" if _SECRET.search(text) else text)
    if _CONFIG.search(text) or _JSON_CONFIG.match(text):
        _check_config(path, text, checked)
    else:
        _check_manifest(data, checked)
    return checked


def _read(path: str) -> bytes:
    if path == STDIN:
        return sys.stdin.buffer.read(MAX_MANIFEST_SIZE + 1)
    with open(path, "rb") as file:
        return file.read(MAX_MANIFEST_SIZE + 1)


def _check_manifest(data: bytes, checked: Checked) -> None:
    try:
        # The node's name is only a part of the pods' names and UIDs.
        manifest = load_manifest(data, checked.file, node_name="node")
    except ManifestError as exc:
        checked.errors += exc.errors
        return
    for pod in manifest.pods:
        key = pod_key(pod)
        name = manifest_name(pod, "node")
        checked.objects.append({"kind": "Pod", "namespace": key.namespace, "name": name})
    for each in manifest.objects:
        meta = each.metadata
        checked.objects.append(
            {
                "kind": type(each).__name__,
                "namespace": (meta and meta.namespace) or "",
                "name": (meta and meta.name) or "",
            }
        )


def _check_config(path: str, text: str, checked: Checked) -> None:
    checked.kind = "KubeletConfiguration"
    try:
        notes = check_file(Path(checked.file if path == STDIN else path), text)
    except ConfigError as exc:
        checked.errors += [
            FieldError("", problem.message, 0, problem.line, problem.column)
            for problem in exc.located
        ]
    else:
        checked.objects.append({"kind": checked.kind, "namespace": "", "name": ""})
        checked.warnings += notes


def _find_duplicates(checked: Iterable[Checked]) -> None:
    """Note names that two files give: the agent runs the pod of the first alone."""
    first: dict[tuple[str, str, str], str] = {}
    for each in checked:
        for found in each.objects if each.kind == "manifest" else ():
            key = (found["kind"], found["namespace"], found["name"])
            if key in first:
                whose = "this file" if first[key] == each.file else first[key]
                message = f"Duplicate value: {found['kind']} {key[1]}/{key[2]} is also in {whose}"
                each.errors.append(FieldError("metadata.name", message))
            first.setdefault(key, each.file)


def _lines(checked: Checked) -> Iterator[str]:
    for error in checked.errors:
        yield printable(error_line(checked.file, error))
        if error.line and checked.text:
            for line in excerpt(checked.text, Position(error.line, error.column)).split("\n"):
                yield f"    {line}"
    for warning in checked.warnings:
        yield printable(f"{checked.file}: warning: {warning}")


def _document(checked: Iterable[Checked], failed: bool) -> dict[str, Any]:
    return {
        "valid": not failed,
        "files": [
            {
                "file": each.file,
                "kind": each.kind,
                "valid": not each.errors,
                "objects": each.objects,
                "errors": [
                    {
                        "line": error.line,
                        "column": error.column,
                        "document": error.document,
                        "field": error.field,
                        "message": error.message,
                    }
                    for error in each.errors
                ],
                "warnings": each.warnings,
            }
            for each in checked
        ],
    }


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
