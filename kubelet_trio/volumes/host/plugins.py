"""The kinds of volume that work through programs of the host, each imported when it is first used.

Most nodes have none of them, and their modules cost memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from kubelet_trio.model import EventSink, Offload, Purpose, offload_for
from kubelet_trio.volumes.attaching import (
    AttachController,
    AttachedVolumes,
    HostPlugin,
    KindInUse,
)
from kubelet_trio.volumes.keyed import LeftCalls
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.ownership import Walks
from kubelet_trio.volumes.spec import AsyncKind, AsyncVolumePlugin, VolumeSpec
from kubelet_trio.volumes.tools import HostTools, Tools

if TYPE_CHECKING:
    from kubelet_trio.volumes.loop import BlockDevices

P = ParamSpec("P")
T = TypeVar("T")

_BUILT_IN = "kubernetes.io~"  # a FlexVolume driver's directory has its vendor's name instead


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What plugins of disks, drivers and file servers are made from."""

    root_dir: Path
    mounter: Mounter
    offload: Offload
    tools: Tools = field(default_factory=HostTools)
    devices: BlockDevices | None = None  # the host's block devices; None: the kernel's
    walks: Walks = field(default_factory=Walks)
    events: EventSink | None = None
    node_name: str = ""
    flex_dir: Path = Path("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")  # volumePluginDir
    controller: AttachController | None = None  # None: nobody else attaches volumes
    calls: LeftCalls = field(default_factory=LeftCalls)

    @property
    def pods_dir(self) -> Path:
        return self.root_dir / "pods"

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work of a volume, which may hang for minutes. Raises what `fn` raises.

        A caller that is cancelled leaves it running: work that changes something needs a lock of
        `KeyedLocks(self.calls)`, which is held until the work has returned.
        """
        offload = offload_for(self.offload, Purpose.DEVICES)
        return await self.calls.run(offload, fn, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class HostKind:
    """A kind of volume: where its code is, and what it leaves on disk."""

    module: str  # of kubelet_trio.volumes.host
    factory: str  # of an `AsyncVolumePlugin`, from a `PluginContext`
    plugin: str  # the name of its directory below `plugins/kubernetes.io`
    unique_name: str = ""  # the function that names it for the attach controller; "": not attached
    names_on_disk: str = ""  # the function that returns such names of what is on disk

    def owns(self, directory: str) -> bool:
        """Whether a directory of a pod's volumes, or of its devices, is of this kind."""
        if self.plugin == "flexvolume":  # has a directory for each driver
            return not directory.startswith(_BUILT_IN)
        return directory == f"{_BUILT_IN}{self.plugin}"


# By the field of a Volume or of a PersistentVolumeSpec.
HOST_KINDS: Mapping[str, HostKind] = {
    "fc": HostKind("fibre_channel", "make_fibre_channel", "fc", "fc_unique_name", "fc_on_disk"),
    "flexVolume": HostKind("flex", "make_flex", "flexvolume", "flex_unique_name", "flex_on_disk"),
    "iscsi": HostKind("iscsi", "make_iscsi", "iscsi", "iscsi_unique_name", "iscsi_on_disk"),
    "local": HostKind("local", "make_local", "local-volume"),
    "nfs": HostKind("nfs", "make_nfs", "nfs"),
}


def host_kinds(context: PluginContext) -> list[AsyncKind]:
    """Return the kinds for a `VolumeManager`."""
    return [_kind(context, kind, facts) for kind, facts in HOST_KINDS.items()]


def _kind(context: PluginContext, kind: str, facts: HostKind) -> AsyncKind:
    base = context.root_dir / "plugins/kubernetes.io"
    has_remains = partial(_has_remains, base, facts.plugin)
    if context.controller is None or not facts.unique_name:
        return AsyncKind(kind, facts.owns, has_remains, partial(_make, kind, context))
    on_disk = partial(_names_on_disk, facts, base / facts.plugin)
    in_use = KindInUse(context.controller, on_disk, context.offload)

    def make() -> AsyncVolumePlugin:
        name = cast("Callable[[VolumeSpec], str]", _function(facts, facts.unique_name))
        return AttachedVolumes(_make(kind, context), in_use, name)

    return AsyncKind(kind, facts.owns, has_remains, make, in_use.restore)


def _names_on_disk(facts: HostKind, base: Path) -> frozenset[str]:
    # Without any, its module is not imported.
    if not _has_remains(base.parent, facts.plugin):
        return frozenset()
    return cast("frozenset[str]", _function(facts, facts.names_on_disk)(base))


def _has_remains(base: Path, plugin: str) -> bool:
    # Of local volumes, raw devices are in a directory with the escaped name.
    return (base / plugin).is_dir() or base.with_name(f"{_BUILT_IN}{plugin}").is_dir()


def unique_name(spec: VolumeSpec) -> str | None:
    """Return a volume's name in `volumesInUse` and `volumesAttached`; None if it is not attached.

    Raises ValueError.
    """
    facts = HOST_KINDS.get(spec.kind)
    if facts is None or not facts.unique_name:
        return None
    return cast("str", _function(facts, facts.unique_name)(spec))


def _make(kind: str, context: PluginContext) -> HostPlugin:
    facts = HOST_KINDS[kind]
    return cast("HostPlugin", _function(facts, facts.factory)(context))


def _function(facts: HostKind, name: str) -> Callable[[Any], object]:
    module = importlib.import_module(f"kubelet_trio.volumes.host.{facts.module}")
    return cast("Callable[[Any], object]", getattr(module, name))
