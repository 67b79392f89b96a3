"""Observes the node for its status: the machine, the runtime, the pressures on it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import trio
from lightkube.models.core_v1 import (
    ContainerImage,
    NodeFeatures,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    NodeSystemInfo,
)
from trio_util import AsyncValue

from kubelet_trio.cri import RuntimeCallError, RuntimeState, v1
from kubelet_trio.model import WallClock, get_logger
from kubelet_trio.node.addresses import own_problem
from kubelet_trio.node.conditions import RuntimeWatch
from kubelet_trio.node.types import NodeIdentity, NodeResources, NodeView, Pressure

log = get_logger()

# Seconds for which a list of images is recent enough for the node's status.
_IMAGES_AGE = 30.0
_IMAGES_LIMIT = 5.0  # seconds for the list of images, less than a report may take

_SEMANTIC = re.compile(r"v?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)")
_GENERIC = re.compile(r"\s*v?(\d+(?:\.\d+)+)")


@dataclass(slots=True)
class NodeObserver:
    """Makes the `NodeView` of which the node's status is made. One task calls it.

    Attributes:
        identity: the node's settings.
        resources: returns its capacity, with the devices of plugins.
        info: describes the machine, given the runtime's name and version.
        host_ips: its addresses.
        declared: the features that it declares.
        clock: wall time.
        runtime: the runtime as last seen.
        pressure: the node's pressures.
        problems: reasons for which the node is not ready, besides the runtime's.
        list_images: lists the images on the node.
        volumes_in_use: returns the volumes to report as used; None: as in the last status.
    """

    identity: NodeIdentity
    resources: Callable[[], NodeResources]
    info: Callable[[str], NodeSystemInfo]
    host_ips: tuple[str, ...]
    declared: tuple[str, ...]
    clock: WallClock
    runtime: AsyncValue[RuntimeState]
    pressure: AsyncValue[Pressure]
    problems: Sequence[Callable[[], str | None]]
    list_images: Callable[[], Awaitable[list[v1.Image]]]
    volumes_in_use: Callable[[], tuple[str, ...] | None] = lambda: None
    _watch: RuntimeWatch = field(default_factory=RuntimeWatch)
    _address_problem: str | None = None  # as last logged
    _images: tuple[ContainerImage, ...] | None = None
    _images_at: float = -_IMAGES_AGE

    async def observe(self) -> NodeView:
        """Return the node as it is now."""
        runtime, now = self.runtime.value, trio.current_time()
        others = (problem() for problem in self.problems)
        not_ready = [*self._watch.problems(runtime, now), *(p for p in others if p is not None)]
        version = f"{runtime.name}://{go_version(runtime.version) or 'Unknown'}"
        return NodeView(
            now=self.clock.time(),
            host_ips=self.host_ips,
            address_problem=self._check_node_ips(),
            resources=self.resources(),
            info=self.info(version),
            not_ready=tuple(not_ready),
            pressure=self.pressure.value,
            images=await self._known_images(runtime, now),
            handlers=_handlers(runtime),
            features=_features(runtime),
            declared=self.declared,
            volumes_in_use=self.volumes_in_use(),
        )

    def _check_node_ips(self) -> str | None:
        """Return why `--node-ip` cannot be the node's address now: interfaces come and go."""
        problems = (own_problem(ip) for ip in self.identity.node_ips)
        problem = next((p for p in problems if p is not None), None)
        if problem is not None and problem != self._address_problem:
            log.error("node.address_refused", error=f"--node-ip: {problem}")
        self._address_problem = problem
        return problem

    async def _known_images(
        self, runtime: RuntimeState, now: float
    ) -> tuple[ContainerImage, ...] | None:
        if not runtime.is_ready or now < self._images_at + _IMAGES_AGE:
            return self._images
        # A node is not to be lost for a runtime that hangs on this alone.
        with trio.move_on_after(_IMAGES_LIMIT) as limit:
            try:
                self._images = largest_first(await self.list_images())
            except RuntimeCallError as exc:
                log.info("node.images_failed", error=str(exc))
        if limit.cancelled_caught:
            log.info("node.images_failed", error=f"no answer within {_IMAGES_LIMIT:g}s")
        self._images_at = now
        return self._images


def largest_first(found: Iterable[v1.Image]) -> tuple[ContainerImage, ...]:
    """Return images in the order of a node's status, whatever the runtime's: those of one size by
    ID (ByImageSize in pkg/kubelet/util/sliceutils).

    The scheduler's ImageLocality scores by size: the largest images matter most.
    """
    ordered = sorted(found, key=lambda image: (image.size, image.id), reverse=True)
    return tuple(
        ContainerImage(names=[*i.repo_digests, *i.repo_tags], sizeBytes=i.size) for i in ordered
    )


def go_version(text: str) -> str:
    """Return a runtime's version as upstream parses it: of `1.6.20~ds1` the numbers alone."""
    found = _SEMANTIC.fullmatch(text) or _GENERIC.match(text)
    return found[1] if found is not None else text


def _handlers(runtime: RuntimeState) -> tuple[NodeRuntimeHandler, ...]:
    return tuple(
        NodeRuntimeHandler(
            name=name,
            features=NodeRuntimeHandlerFeatures(
                recursiveReadOnlyMounts=name in runtime.recursive_read_only,
                userNamespaces=name in runtime.user_namespaces,
            ),
        )
        for name in sorted(runtime.handlers)
    )


def _features(runtime: RuntimeState) -> NodeFeatures | None:
    # Upstream leaves the field out where the runtime names no feature.
    can = runtime.supplemental_groups_policy
    return NodeFeatures(supplementalGroupsPolicy=True) if can else None
