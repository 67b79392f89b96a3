"""Manifests in few words: pods of busybox containers that stop at once when asked to."""

from __future__ import annotations

from typing import Any

from tests.harness.images import BUSYBOX
from tests.harness.pods import Json


def container(name: str, script: str, **fields: Any) -> Json:
    """Return a container that runs a shell script."""
    return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", script], **fields}


def forever(before: str = "true") -> str:
    """Return a script that does `before`, then runs until SIGTERM and exits 0."""
    # A first process has no default action for SIGTERM: without the trap it would not stop.
    return f"trap 'exit 0' TERM; {before}; while :; do sleep 1000 & wait $!; done"


def pod(name: str, *containers: Json, annotations: Json | None = None, **spec: Any) -> Json:
    """Return a pod in `default` with a grace period of 5 s; one idle container unless given."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": list(containers or (container("main", forever()),)),
            **spec,
        },
    }
