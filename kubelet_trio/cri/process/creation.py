"""Making a container: all that has to be settled and on disk before it can be started.

Blocking, and so called through `Offload`.
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
from kubelet_trio.cri.process.entries import Container, Sandbox
from kubelet_trio.cri.process.identity import Identity, decide_identity
from kubelet_trio.model import ContainerId, open_directory

_LIMITS = "CPU and memory limits"
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes containers under one root directory, as one user."""

    root_dir: Path  # the agent's own: below it other users find nothing that is not opened
    own: Identity
    allow_root: bool
    tell: Callable[[str, str], None]  # what of a container's wishes is not applied, and why

    def make(self, sandbox: Sandbox, config: v1.ContainerConfig) -> Container:
        """Make a container. Raises `RefusedError`, or OSError."""
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
        for wish in launch.unapplied(config):
            self.tell(wish, "containers are processes of this host")
        place = self._make_cgroup(sandbox, container_id, config)
        facts = store.ContainerFacts(
            id=container_id,
            created_at=time.time_ns(),
            uid=identity.uid,
            gid=identity.gid,
            groups=identity.groups,
            log_path=spec.log,
            cgroups=tuple(map(str, place.directories)),
        )
        spec = msgspec.structs.replace(
            spec,
            cgroup_procs=place.procs,
            cgroup_kill=place.kill_file,
            oom_file=place.oom_file,
        )
        try:
            store.make_work_dir(directory, identity, switch_user=switch_user)
            store.write_container(directory, facts, config, spec)
            if identity.uid != self.own.uid:
                self._open_way(directory)
                for mount in config.mounts:
                    self._open_way(Path(mount.host_path))
        except OSError:
            cgroup.remove_cgroup(place.directories)
            with suppress(OSError):
                store.remove(directory)
            raise
        return Container(directory, facts, config, sandbox)

    def _make_cgroup(
        self, sandbox: Sandbox, container_id: ContainerId, config: v1.ContainerConfig
    ) -> cgroup.Place:
        linux = sandbox.config.linux or v1.LinuxPodSandboxConfig()
        resources = launch.resources_of(config)
        limited = resources.memory_limit_in_bytes > 0 or resources.cpu_quota > 0
        if not linux.cgroup_parent:
            if limited:
                self.tell(_LIMITS, "the pod has no cgroup")
            return cgroup.Place(())
        try:
            place = cgroup.make_cgroup(linux.cgroup_parent, container_id, resources)
        except OSError as exc:
            if limited:
                self.tell(_LIMITS, f"no cgroup can be made: {exc.strerror}")
            return cgroup.Place(())
        for failure in place.failures:
            self.tell("a resource limit", failure)
        return place

    def _open_way(self, path: Path) -> None:
        """Let another user reach something that lies under our own directory.

        In a container it would be mounted where anybody can go. Here the way leads through
        directories that are closed to all but root, so these become searchable (not listable).
        """
        for parent in path.parents:
            if parent == self.root_dir or self.root_dir in parent.parents:
                depth = len(parent.relative_to(self.root_dir).parts)
                # Containers may write to some of these: no link leads to another directory.
                directory = open_directory(parent, own=depth) if depth else os.open(parent, _ROOT)
                try:
                    mode = os.fstat(directory).st_mode
                    if mode & 0o011 != 0o011:
                        os.fchmod(directory, (mode | 0o011) & 0o7777)
                finally:
                    os.close(directory)
