"""A pod's own files on the host: its directories, hosts file, message files, logs and links.

All of this blocks, so it is called through `Offload`, and may raise OSError. Every call may be
repeated: a directory that exists, a link that is right and a log that is gone are no errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.containers import (
    NodeSettings,
    has_hosts,
    hosts_content,
    hosts_mount,
    link_log,
    log_link,
    make_directories,
    make_log_directory,
    make_termination_log,
    mounts_own_hosts,
    next_restart_count,
    pod_log_directory,
    remove_pod_logs,
    unlink_logs,
    write_hosts,
)
from kubelet_trio.cri import v1
from kubelet_trio.model import ContainerId, pod_uid, spec

_NODE_HOSTS = Path("/etc/hosts")


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """The files that were made for one new instance of a container."""

    mounts: tuple[v1.Mount, ...]
    termination_log: str  # path on the host
    attempt: int  # the instance's restart count


@dataclass(frozen=True, slots=True)
class PodFiles:
    """The files of one pod on one node."""

    pod: Pod
    node: NodeSettings

    @property
    def directory(self) -> Path:
        return self.node.pod_dir(pod_uid(self.pod))

    @property
    def log_directory(self) -> Path:
        return pod_log_directory(self.node.pod_logs_dir, self.pod)

    def prepare(self) -> None:
        """Make the directories that the sandbox's config names."""
        make_directories(self.directory)
        make_log_directory(self.log_directory, own=1)

    def container_files(
        self,
        container: Container,
        pod_ips: tuple[str, ...],
        attempt: int = 0,
        *,
        counts_logs: bool = False,
    ) -> ContainerFiles:
        """Make the files that a new instance of a container mounts next to its volumes.

        `counts_logs`: the instance of a container of which the runtime knows no other has a higher
        restart count than all whose logs are there.
        """
        logs = self.log_directory / container.name
        make_log_directory(logs)
        # As calcRestartCountByLogDir of pkg/kubelet: no instance may write to an earlier one's log.
        if counts_logs:
            attempt = max(attempt, next_restart_count(logs))
        mounts: tuple[v1.Mount, ...] = ()
        if not mounts_own_hosts(container):
            self.write_hosts(pod_ips)
            mounts = (hosts_mount(self.directory, selinux=self.node.selinux),)
        message = make_termination_log(self.directory, container.name)
        return ContainerFiles(mounts, str(message), attempt)

    def write_hosts(self, pod_ips: tuple[str, ...]) -> None:
        """Write the hosts file, but only if it changes: a running container may be reading it."""
        node_hosts = ""
        if spec(self.pod).hostNetwork:  # nodeHostsFileContent of pkg/kubelet
            node_hosts = _NODE_HOSTS.read_text("utf-8", "replace")
        content = hosts_content(self.pod, self.node, pod_ips, node_hosts)
        if not has_hosts(self.directory, content):
            write_hosts(self.directory, content)

    def link_log(self, container: str, log: str, container_id: ContainerId) -> None:
        """Make the link by which old log collectors find a container's log.

        `log`: its path below the pod's log directory.
        """
        link = log_link(self.node.container_logs_dir, self.pod, container, container_id)
        link_log(link, self.log_directory / log)

    def remove_logs(self) -> None:
        """Remove the pod's logs and the links to them."""
        self.unlink_logs()
        remove_pod_logs(self.log_directory)

    def unlink_logs(self) -> None:
        """Remove the links to the pod's logs only."""
        unlink_logs(self.node.container_logs_dir, self.pod, self.log_directory)
