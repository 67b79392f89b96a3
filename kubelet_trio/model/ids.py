"""Identities as distinct types, shared by all rooms."""

from __future__ import annotations

from typing import Any, NamedTuple, NewType

PodUid = NewType("PodUid", str)
SandboxId = NewType("SandboxId", str)
ContainerId = NewType("ContainerId", str)

# Python makes a new object of 216 bytes for each `frozenset()`, and a pod has several.
NOTHING: frozenset[Any] = frozenset()


class PodKey(NamedTuple):
    """Namespace and name of a pod. Two pods (UIDs) may have the same, one after the other."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
