"""Creating a container: everything that must be decided and on disk before it can start.

Blocks: callers use an `Offload`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process import cgroup, launch, store
from kubelet_trio.cri.process.identity import Identity, decide_identity
from kubelet_trio.cri.process.registry import Container, Sandbox
from kubelet_trio.model import ContainerId, open_directory

_LIMITS = "CPU and memory limits"
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ContainerCreator:
    """Creates containers below one root directory."""

    root_dir: Path  # the agent's directory, closed to other users except where we open it
    own: Identity  # the agent's user
    allow_root: bool
    # Called with each setting of a container that is not applied, and the reason.
    report_unapplied: Callable[[str, str], None]

    def create(self, sandbox: Sandbox, config: v1.ContainerConfig) -> Container:
        """Create a container. Raises `RefusedError` and OSError."""
        container_id = ContainerId(store.new_id())
        directory = sandbox.directory / container_id
        security = launch.security_of(config)
        identity, account = decide_identity(security, self.own, allow_root=self.allow_root)
        switch_user = self.own.uid == 0
        spec = launch.make_spec(
            container_id,
            config,
            sandbox.config,
            identity,
            account,
            workdir=str(directory / store.WORK),
            switch_user=switch_user,
        )
        for setting in launch.unapplied(config):
            self.report_unapplied(setting, "containers are processes of this host")
        own_cgroup = self._make_cgroup(sandbox, container_id, config)
        facts = store.ContainerFacts(
            id=container_id,
            created_at=time.time_ns(),
            uid=identity.uid,
            gid=identity.gid,
            groups=identity.groups,
            log_path=spec.log,
            cgroups=tuple(map(str, own_cgroup.directories)),
        )
        spec = msgspec.structs.replace(
            spec,
            cgroup_procs=own_cgroup.procs,
            cgroup_kill=own_cgroup.kill_file,
            oom_file=own_cgroup.oom_file,
        )
        try:
            store.make_work_dir(directory, identity, switch_user=switch_user)
            store.write_container(directory, facts, config, spec)
            if identity.uid != self.own.uid:
                self._make_reachable(directory)
                for mount in config.mounts:
                    self._make_reachable(Path(mount.host_path))
        except OSError:
            cgroup.remove_cgroup(own_cgroup.directories)
            with suppress(OSError):
                store.remove(directory)
            raise
        return Container(directory, facts, config, sandbox)

    def _make_cgroup(
        self, sandbox: Sandbox, container_id: ContainerId, config: v1.ContainerConfig
    ) -> cgroup.ContainerCgroup:
        linux = sandbox.config.linux or v1.LinuxPodSandboxConfig()
        resources = launch.resources_of(config)
        limited = resources.memory_limit_in_bytes > 0 or resources.cpu_quota > 0
        if not linux.cgroup_parent:
            if limited:
                self.report_unapplied(_LIMITS, "the pod has no cgroup")
            return cgroup.ContainerCgroup(())
        try:
            made = cgroup.make_cgroup(linux.cgroup_parent, container_id, resources)
        except OSError as exc:
            if limited:
                self.report_unapplied(_LIMITS, f"no cgroup can be made: {exc.strerror}")
            return cgroup.ContainerCgroup(())
        for failure in made.failures:
            self.report_unapplied("a resource limit", failure)
        return made

    def _make_reachable(self, path: Path) -> None:
        """Let another user reach a path below our root directory.

        With another runtime it would be mounted into the container. Here a process walks down
        from our root directory, which is closed to all but root: the directories on the way
        become searchable, not listable.
        """
        for parent in path.parents:
            if parent == self.root_dir or self.root_dir in parent.parents:
                depth = len(parent.relative_to(self.root_dir).parts)
                # Containers can write to some of these directories: follow no symbolic link.
                directory = open_directory(parent, own=depth) if depth else os.open(parent, _ROOT)
                try:
                    mode = os.fstat(directory).st_mode
                    if mode & 0o011 != 0o011:
                        os.fchmod(directory, (mode | 0o011) & 0o7777)
                finally:
                    os.close(directory)
