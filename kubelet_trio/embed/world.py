"""The seams between an embedded agent and the host: the real ones, or a test's fakes.

`World` has what only a test replaces, so that it is not in `KubeletConfig`: clocks, threads,
mounts, pidfds. `embed.build.real_world` and `kubelet_trio.testing.fake_world` return one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kubelet_trio.containers import LogWatch, inotify_watch
from kubelet_trio.cri import Runtime
from kubelet_trio.embed.config import KubeletConfig
from kubelet_trio.model import (
    Offload,
    SystemClock,
    WallClock,
    Watcher,
    open_watcher,
    thread_offload,
)

if TYPE_CHECKING:
    from kubelet_trio.agent import PodCgroupRemover
    from kubelet_trio.cgroups import CgroupDriver
    from kubelet_trio.containers import NodeSettings
    from kubelet_trio.managers import Machine
    from kubelet_trio.pleg import ExitWaiter
    from kubelet_trio.probes import ExecOrphans
    from kubelet_trio.supervision import ChildSpec
    from kubelet_trio.volumes import Mounter


@dataclass(frozen=True, slots=True)
class World:
    """The agent's seams to the host."""

    runtime: Runtime
    node: NodeSettings
    mounter: Mounter
    cgroups: Callable[[CgroupDriver], PodCgroupRemover]
    exit_waiter: ExitWaiter | None
    connection: ChildSpec | None = None
    exec_orphans: ExecOrphans | None = None  # None: the containers' processes are not visible
    clock: WallClock = field(default_factory=SystemClock)
    offload: Offload = thread_offload
    log_watch: Callable[[Path], AbstractAsyncContextManager[LogWatch]] = inotify_watch
    tmpfs_noswap: bool = False
    plugin_watcher: Callable[[], Watcher] = open_watcher
    machine: Callable[[], Machine] | None = None  # its topology; None: that of this host


def node_paths(node: NodeSettings, config: KubeletConfig) -> NodeSettings:
    """Return the node with directories and name from the configuration."""
    logs = config.root / "logs" if config.pod_logs_dir is None else Path(config.pod_logs_dir)
    return replace(
        node,
        node_name=(config.node_name or node.node_name).strip().lower(),
        root_dir=config.root,
        pod_logs_dir=logs / "pods",
        container_logs_dir=logs / "containers",
    )
