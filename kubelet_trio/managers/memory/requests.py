"""The memory that containers and pods ask for, and which pods have it kept on NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.guaranteed import has_pod_level_resources, is_guaranteed, nano
from kubelet_trio.managers.memory.state import HUGE_PAGES, MEMORY
from kubelet_trio.model import NANO, ContainerKind, PodContainer, pod_containers

_MAX = 2**63 - 1  # of Quantity.AsInt64

Sizes = dict[str, int]  # kind of memory to bytes


class RequestError(ValueError):
    """A request for memory that is no whole number of bytes below 2**63."""


def is_pinned(pod: Pod) -> bool:
    """Return whether a pod's containers get memory of their own: Guaranteed pods do.

    Not those with resources of the pod (`spec.resources`): that needs PodLevelResourceManagers,
    which is alpha. Raises ValueError for a quantity that does not parse.
    """
    return not has_pod_level_resources(pod) and is_guaranteed(pod)


def container_sizes(container: Container) -> Sizes:
    """Return the bytes that a container requests, by kind of memory. Raises `RequestError`."""
    requests = container.resources.requests if container.resources else None
    sizes = {}
    # Sorted, so that blocks always have the same order; upstream's order is random.
    for name, quantity in sorted((requests or {}).items()):
        if name == MEMORY or name.startswith(HUGE_PAGES):
            size, rest = divmod(nano(quantity), NANO)
            if rest or not 0 <= size <= _MAX:
                raise RequestError(
                    f"container {container.name!r}: {name} request {quantity} is not a whole "
                    "number of bytes below 2^63"
                )
            sizes[name] = size
    return sizes


def pod_sizes(pod: Pod) -> Sizes:
    """Return the bytes that a pod needs at any one time, by kind of memory.

    An init container runs together with the sidecars before it, all sidecars with the main
    containers (KEP-753). Raises `RequestError`.
    """
    init: Sizes = {}
    sidecars: Sizes = {}
    main: Sizes = {}
    for kind, container in _long_lived(pod):
        sizes = container_sizes(container)
        if kind is ContainerKind.MAIN:
            _add(main, sizes)
        elif PodContainer(kind, container).is_sidecar:
            _add(sidecars, sizes)
        else:
            for name, size in sizes.items():
                init[name] = max(init.get(name, 0), size + sidecars.get(name, 0))
    # As upstream: what no main container asks for is not looked at.
    return {
        name: max(size + sidecars.get(name, 0), init.get(name, 0)) for name, size in main.items()
    }


def _long_lived(pod: Pod) -> Iterator[PodContainer]:
    """Yield init and main containers; ephemeral ones request nothing."""
    return (c for c in pod_containers(pod) if c.kind is not ContainerKind.EPHEMERAL)


def _add(total: Sizes, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
