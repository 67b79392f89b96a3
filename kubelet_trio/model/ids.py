"""The identities that rooms hand each other, each a type of its own."""

from __future__ import annotations

from typing import NamedTuple, NewType

PodUid = NewType("PodUid", str)
SandboxId = NewType("SandboxId", str)
ContainerId = NewType("ContainerId", str)


class PodKey(NamedTuple):
    """Namespace and name: what a person calls a pod. Two UIDs may share it, one after the other."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
