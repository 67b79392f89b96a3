"""Facts about the node that the rules of volumes depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


def _no_labels() -> None:
    """Return None: there is no object of the node."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about the node, its runtime and its kernel.

    Attributes:
        allocatable: the allocatable resources, in nano-units by name.
        memory_allocatable: the allocatable memory in bytes; 0: unknown.
        tmpfs_noswap: whether the kernel's tmpfs has the option `noswap`.
        selinux: whether the node labels files for containers.
        labels: the labels of the node's object; None: there is no object.
        recursive_read_only: whether a runtime handler ("": the default one) supports recursive
            read-only mounts.
        no_image_volumes: why the runtime cannot mount images; "" if it can.
    """

    allocatable: Mapping[str, int] = field(default_factory=dict)
    memory_allocatable: int = 0
    tmpfs_noswap: bool = False
    selinux: bool = False
    labels: Callable[[], Mapping[str, str] | None] = _no_labels
    recursive_read_only: Callable[[str], bool] = lambda _handler: False
    no_image_volumes: Callable[[], str] = lambda: ""
