"""`kubelet-trio run --check`: says what `run` would do with these flags, and starts nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kubelet_trio.cli.host import host_facts
from kubelet_trio.cli.validate import manifest_files, validate
from kubelet_trio.config import startup_refusals

if TYPE_CHECKING:
    from kubelet_trio.config import Settings


def check_run(settings: Settings) -> int:
    """Print what the agent would do, and return 1 if it would refuse to start or a manifest."""
    config, flags = settings.config, settings.flags
    refusals = startup_refusals(config, host_facts(config))
    rows: list[tuple[str, str]] = [
        ("root directory", flags.root_dir),
        ("runtime", config.container_runtime_endpoint),
        ("manifests", config.static_pod_path or "none"),
        ("manifest URL", "set" if config.static_pod_url else "none"),
        ("cluster", flags.kubeconfig or "none: standalone"),
        ("configuration", ", ".join(filter(None, (flags.config, flags.config_dir))) or "none"),
    ]
    for name, value in rows:
        print(f"{name + ':':17}{value}")
    for note in settings.notes:
        print(f"note: {note}")
    code = _check_manifests(config.static_pod_path)
    for refusal in refusals:
        print(f"error: {refusal}", file=sys.stderr)
    return 1 if refusals or code else 0


def _check_manifests(path: str) -> int:
    if not path or not os.path.exists(path):
        return 0  # as `run`: no pods until it exists
    try:
        files: Sequence[str] = manifest_files(path) if os.path.isdir(path) else [path]
    except OSError as exc:
        print(f"error: {path} cannot be read: {exc.strerror or exc}", file=sys.stderr)
        return 1
    return validate(files, None, strict=False)
