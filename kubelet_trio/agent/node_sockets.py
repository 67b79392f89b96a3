"""The gRPC APIs for programs on the node: `podresources` and `pods-api`, below `server`.

Few nodes have clients of these. Until the first one connects, each is a listening socket and a
task: gRPC, the messages and the service are imported with the first connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent.parts import Parts
from kubelet_trio.managers import NOTHING, ResourceUse
from kubelet_trio.model import TERMINAL_PHASES, PodUid, Purpose, metadata
from kubelet_trio.pods import PodStage
from kubelet_trio.server import SERVING, Port, peer_name
from kubelet_trio.supervision import ChildSpec

if TYPE_CHECKING:
    from kubelet_trio.agent.core import Agent
    from kubelet_trio.grpc import Server

_DIRECTORY_MODE = 0o750  # setupDataDirs in pkg/kubelet


def node_socket_children(agent: Agent) -> tuple[ChildSpec, ...]:
    """Return the children of `server` that serve the sockets."""
    settings, root = agent.settings.sockets, agent.settings.node.root_dir
    children = []
    if settings.pod_resources:
        path, load = root / "pod-resources" / "kubelet.sock", partial(_pod_resources, agent)
        children.append(_child(agent, "podresources", path, load))
    if settings.pods_api:
        path, load = root / "pods-api" / "pods-api.sock", partial(_pods_api, agent)
        children.append(_child(agent, "pods-api", path, load))
    return tuple(children)


def _child(agent: Agent, name: str, path: Path, load: Callable[[], Server]) -> ChildSpec:
    port = agent.ports.unix(name, "--root-dir", path)
    serve = partial(_serve, port, path, load, partial(_make_directory, agent, path.parent))
    return ChildSpec(name, serve, policy=SERVING, note=port.problem)


async def _make_directory(agent: Agent, path: Path) -> None:
    def make() -> None:
        path.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)

    await agent.seams.offload_for(Purpose.RECORDS)(make)


async def _serve(
    port: Port,
    path: Path,
    load: Callable[[], Server],
    prepare: Callable[[], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    listeners = await port.listen(task_status.started, prepare)
    server: Server | None = None

    async def serve_client(stream: trio.SocketStream) -> None:
        nonlocal server
        if server is None:
            server = load()
        with structlog.contextvars.bound_contextvars(client=peer_name(stream)):
            await server.serve_stream(stream)

    try:
        await trio.serve_listeners(serve_client, listeners)
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    # unix(7): a socket's file stays after the socket is closed.
    path.unlink(missing_ok=True)


def _pod_resources(agent: Agent) -> Server:
    from kubelet_trio.managers import pod_resources_server

    use_active_pods = agent.settings.sockets.use_active_pods
    view = AgentResources(agent.parts)
    return pod_resources_server(view, agent.meter, use_active_pods=use_active_pods)


def _pods_api(agent: Agent) -> Server:
    from kubelet_trio.server import pods_api_server

    watches = agent.parts.reports.watches
    assert watches is not None  # made with the same setting: see `compose`
    return pods_api_server(lambda: agent.pods.value, watches)


class AgentResources:
    """What the containers of an agent hold, for the pod resources API (`ResourcesView`)."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def pods(self, *, active_only: bool) -> Iterator[Pod]:
        """Yield the desired pods."""
        for uid, pod in self._parts.pods.desired.value.value.pods.items():
            if not active_only or self._is_active(uid, pod):
                yield pod

    def active_pod(self, namespace: str, name: str) -> Pod | None:
        """Return the active pod of a name."""
        for pod in self.pods(active_only=True):
            if (metadata(pod).namespace, metadata(pod).name) == (namespace, name):
                return pod
        return None

    def container_use(self, uid: PodUid, container: str) -> ResourceUse:
        """Return what a container holds."""
        use = self._managed(uid, container)
        claims = self._parts.supplies.claims
        pod = self._parts.pods.desired.value.value.pods.get(uid)
        if claims is None or pod is None:
            return use
        return replace(use, claims=claims.uses(pod, container))

    def _managed(self, uid: PodUid, container: str) -> ResourceUse:
        managers = self._parts.supplies.managers
        if managers is None:
            return NOTHING
        from kubelet_trio.managers import held_by

        return held_by(managers, uid, container)

    def allocatable(self) -> ResourceUse:
        """Return what the managers may hand out."""
        managers = self._parts.supplies.managers
        if managers is None:
            return NOTHING
        from kubelet_trio.managers import for_containers

        return for_containers(managers)

    def _is_active(self, uid: PodUid, pod: Pod) -> bool:
        worker = self._parts.workers.get(uid)
        known = self._parts.reports.statuses.pods.value.get(uid, pod)
        phases = {p.status.phase or "" for p in (pod, known) if p.status is not None}
        return is_active(worker.stage if worker is not None else None, phases)


def is_active(stage: PodStage | None, phases: Set[str]) -> bool:
    """Whether a pod counts as active: the reverse of isPodInactive in pkg/kubelet.

    Args:
        stage: of the pod's worker; None: it has none yet.
        phases: of its object and of its newest status.
    """
    if stage is PodStage.TERMINATED:
        return False
    return stage is PodStage.TERMINATING or not phases & TERMINAL_PHASES
