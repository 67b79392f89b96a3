"""A CRI client of its own, over grpcio: what the runtime says, not what the agent says."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc
from betterproto2 import Message

from kubelet_trio.cri import v1
from tests.harness.machine import PATIENCE

Reply = TypeVar("Reply", bound=Message)

CONTAINER_NAME = "io.kubernetes.container.name"
POD_NAME = "io.kubernetes.pod.name"
POD_UID = "io.kubernetes.pod.uid"


class CriClient:
    """Blocking calls on one runtime; `deadline` is in seconds and holds for each call."""

    def __init__(self, socket: Path, *, deadline: float = 30) -> None:
        # The authority is set because a socket's path is none that servers accept.
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=[
                ("grpc.default_authority", "localhost"),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.max_receive_message_length", 16 << 20),
            ],
        )
        self._deadline = deadline * PATIENCE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def version(self, wait: float) -> v1.VersionResponse:
        """Ask for the version, waiting up to `wait` seconds for the runtime to come up."""
        deadline = time.monotonic() + wait * PATIENCE
        while True:
            try:
                return self._call("Version", v1.VersionRequest(), v1.VersionResponse)
            except grpc.RpcError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def containers(self) -> Sequence[v1.Container]:
        """Return every container, in all states."""
        asked = v1.ListContainersRequest()
        return self._call("ListContainers", asked, v1.ListContainersResponse).containers

    def running(self) -> Sequence[v1.Container]:
        """Return the containers that run."""
        state = v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_RUNNING)
        asked = v1.ListContainersRequest(filter=v1.ContainerFilter(state=state))
        return self._call("ListContainers", asked, v1.ListContainersResponse).containers

    def image_names(self) -> set[str]:
        """Return the references by name of every image."""
        asked = v1.ListImagesRequest()
        reply = self._call("ListImages", asked, v1.ListImagesResponse, "ImageService")
        return {name for image in reply.images for name in image.repo_tags}

    def sandboxes(self) -> Sequence[v1.PodSandbox]:
        """Return every sandbox, in all states."""
        asked = v1.ListPodSandboxRequest()
        return self._call("ListPodSandbox", asked, v1.ListPodSandboxResponse).items

    def container_status(self, container: str) -> v1.ContainerStatus:
        """Return the status of one container, its times in ns of the runtime's clock."""
        asked = v1.ContainerStatusRequest(container_id=container)
        status = self._call("ContainerStatus", asked, v1.ContainerStatusResponse).status
        assert status is not None
        return status

    def container_pid(self, container: str) -> int:
        """Return the host's PID of a container's first process.

        Raises ProcessLookupError for a container that has ended: it has none, and a signal to
        PID 0 goes to the whole group of whoever sends it.
        """
        asked = v1.ContainerStatusRequest(container_id=container, verbose=True)
        info = self._call("ContainerStatus", asked, v1.ContainerStatusResponse).info
        pid = int(json.loads(info["info"])["pid"])
        if pid <= 0:
            raise ProcessLookupError(f"container {container} has ended")
        return pid

    def kill(self, container: str) -> None:
        """Kill a container's first process behind the agent's and the runtime's back."""
        os.kill(self.container_pid(container), signal.SIGKILL)

    def sandbox_status(self, sandbox: str) -> v1.PodSandboxStatus:
        asked = v1.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        status = self._call("PodSandboxStatus", asked, v1.PodSandboxStatusResponse).status
        assert status is not None
        return status

    def run(self, container: str, *command: str) -> str:
        """Run a command in a container and return what it wrote to stdout."""
        asked = v1.ExecSyncRequest(container_id=container, cmd=list(command), timeout=10)
        reply = self._call("ExecSync", asked, v1.ExecSyncResponse)
        if reply.exit_code:
            raise RuntimeError(f"{command} exited {reply.exit_code}: {reply.stderr!r}")
        return reply.stdout.decode()

    def exec_url(self, container: str, command: Sequence[str], streams: Sequence[str]) -> str:
        """Return where the runtime serves a command with these of stdin, stdout and stderr."""
        asked = v1.ExecRequest(
            container_id=container,
            cmd=list(command),
            stdin="stdin" in streams,
            stdout="stdout" in streams,
            stderr="stderr" in streams,
        )
        return self._call("Exec", asked, v1.ExecResponse).url

    def run_sandbox(self, config: v1.PodSandboxConfig) -> str:
        asked = v1.RunPodSandboxRequest(config=config)
        return self._call("RunPodSandbox", asked, v1.RunPodSandboxResponse).pod_sandbox_id

    def create_container(
        self, sandbox: str, config: v1.ContainerConfig, sandbox_config: v1.PodSandboxConfig
    ) -> str:
        asked = v1.CreateContainerRequest(
            pod_sandbox_id=sandbox, config=config, sandbox_config=sandbox_config
        )
        return self._call("CreateContainer", asked, v1.CreateContainerResponse).container_id

    def start_container(self, container: str) -> None:
        asked = v1.StartContainerRequest(container_id=container)
        self._call("StartContainer", asked, v1.StartContainerResponse)

    def stop_container(self, container: str, grace: int) -> None:
        """Stop a container, with so many seconds until it is killed."""
        asked = v1.StopContainerRequest(container, grace)
        self._call("StopContainer", asked, v1.StopContainerResponse)

    def stop_sandbox(self, sandbox: str) -> None:
        asked = v1.StopPodSandboxRequest(pod_sandbox_id=sandbox)
        self._call("StopPodSandbox", asked, v1.StopPodSandboxResponse)

    def update_container(self, container: str, resources: v1.LinuxContainerResources) -> None:
        """Change the limits of a container; what is 0 stays as it is."""
        asked = v1.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        self._call("UpdateContainerResources", asked, v1.UpdateContainerResourcesResponse)

    def remove_container(self, container: str) -> None:
        """Kill and remove a container."""
        self.stop_container(container, 0)
        asked = v1.RemoveContainerRequest(container)
        self._call("RemoveContainer", asked, v1.RemoveContainerResponse)

    def remove_sandbox(self, sandbox: str) -> None:
        """Stop and remove a sandbox with all that is in it."""
        self.stop_sandbox(sandbox)
        self.remove_stopped_sandbox(sandbox)

    def remove_stopped_sandbox(self, sandbox: str) -> None:
        remove = v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
        self._call("RemovePodSandbox", remove, v1.RemovePodSandboxResponse)

    def remove_all(self, within: float = 60) -> None:
        """Remove every sandbox; one that refuses (a start in flight) is asked again."""
        deadline = time.monotonic() + within * PATIENCE
        while left := self.sandboxes():
            for sandbox in left:
                try:
                    self.remove_sandbox(sandbox.id)
                except grpc.RpcError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)

    def _call(
        self, method: str, asked: Message, reply: type[Reply], service: str = "RuntimeService"
    ) -> Reply:
        call = self._channel.unary_unary(f"/runtime.v1.{service}/{method}", bytes, reply.parse)
        answered: Reply = call(asked, timeout=self._deadline)
        return answered


def live_containers(cri: CriClient, pod: str) -> dict[str, str]:
    """Return the running containers of the pod named so: container name -> id."""
    return {
        c.labels[CONTAINER_NAME]: c.id
        for c in cri.containers()
        if c.labels.get(POD_NAME) == pod and c.state == v1.ContainerState.CONTAINER_RUNNING
    }
