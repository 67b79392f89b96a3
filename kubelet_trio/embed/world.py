"""The seams of an embedded agent: what it stands on, the real world or a test's fakes.

`World` is what `KubeletConfig` does not say because no program but a test chooses it:
clocks, threads, mounts, pidfds. `kubelet_trio.testing.fake_world` is the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kubelet_trio.containers import LogWatch, inotify_watch
from kubelet_trio.cri import Runtime
from kubelet_trio.model import Offload, SystemClock, WallClock, thread_offload

if TYPE_CHECKING:
    from kubelet_trio.agent import PodCgroupRemover
    from kubelet_trio.cgroups import CgroupDriver
    from kubelet_trio.containers import NodeSettings
    from kubelet_trio.pleg import ExitWaiter
    from kubelet_trio.probes import ExecOrphans
    from kubelet_trio.supervision import ChildSpec
    from kubelet_trio.volumes import Mounter


@dataclass(frozen=True, slots=True)
class World:
    """What the agent stands on."""

    runtime: Runtime
    node: NodeSettings
    mounter: Mounter
    cgroups: Callable[[CgroupDriver], PodCgroupRemover]
    exit_waiter: ExitWaiter | None
    connection: ChildSpec | None = None
    exec_orphans: ExecOrphans | None = None  # None: containers' processes are not ours to see
    clock: WallClock = field(default_factory=SystemClock)
    offload: Offload = thread_offload
    log_watch: Callable[[Path], AbstractAsyncContextManager[LogWatch]] = inotify_watch
    tmpfs_noswap: bool = False
