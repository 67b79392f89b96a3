"""Changes a container's resources: in its cgroup, and in its config on disk. Blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process import cgroup, store
from kubelet_trio.cri.process.launch import resources_of
from kubelet_trio.cri.resources import merged_resources
from kubelet_trio.model import parse_message


def change_resources(
    directory: Path,
    cgroups: Sequence[Path],
    config: v1.ContainerConfig,
    asked: v1.LinuxContainerResources,
) -> v1.ContainerConfig:
    """Change the container in `directory`; return its new config.

    Raises OSError; cgroup and config are then as before.
    """
    before = resources_of(config)
    after = merged_resources(before, asked)
    changed = parse_message(v1.ContainerConfig, bytes(config))
    changed.linux = changed.linux or v1.LinuxContainerConfig()
    changed.linux.resources = after
    written = cgroup.change_cgroup(cgroups, before, after)
    try:
        store.update_container(directory, changed)
    except OSError:
        cgroup.set_back(written)
        raise
    return changed
