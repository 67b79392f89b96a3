"""What sandboxes and containers there are: found on disk once, and kept up to date.

The disk is the truth that agents share; this is the running agent's view of it. Only the
runtime that owns a registry writes to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from kubelet_trio.cri._errors import NotFoundError, RuntimeCallError
from kubelet_trio.cri.process import lives, store
from kubelet_trio.cri.process.entries import Container, Sandbox
from kubelet_trio.model import ContainerId, Offload, PodUid, SandboxId


class Registry:
    """The sandboxes and containers below one state directory, oldest first."""

    def __init__(self, state_dir: Path, offload: Offload) -> None:
        self.sandboxes: dict[SandboxId, Sandbox] = {}
        self.containers: dict[ContainerId, Container] = {}
        self.boot = ""  # what names this boot of the machine, once loaded
        self._state_dir = state_dir
        self._offload = offload
        self._loading = trio.Lock()
        self._loaded = False
        self._reserved: set[tuple[str, str]] = set()  # names of what is being made

    async def load(self) -> None:
        """Find, the first time, what an earlier agent has left."""
        if self._loaded:
            await trio.lowlevel.checkpoint()
            return
        async with self._loading:
            if self._loaded:
                return
            self.boot = await self._offload(lives.boot_id)
            sandboxes = await self._offload(_load_all, self._state_dir, self.boot)
            self.sandboxes = {sandbox.facts.id: sandbox for sandbox in sandboxes}
            for sandbox in sandboxes:
                self.containers.update(sandbox.containers)
            await self.observe(self.containers.values())
            self._loaded = True

    async def observe(self, containers: Iterable[Container]) -> None:
        """Look how containers stand; one that is over stays so."""
        live = [c for c in containers if c.life.state != lives.EXITED]
        if not live:
            await trio.lowlevel.checkpoint()
            return
        asked = [(container.directory, container.id) for container in live]
        for container, life in zip(
            live, await self._offload(_read_lives, asked, self.boot), strict=True
        ):
            container.learn(life)

    def sandbox(self, call: str, sandbox_id: SandboxId) -> Sandbox:
        if sandbox_id not in self.sandboxes:
            raise NotFoundError(call, f'sandbox "{sandbox_id}": not found')
        return self.sandboxes[sandbox_id]

    def ready_sandbox(self, call: str, sandbox_id: SandboxId) -> Sandbox:
        sandbox = self.sandbox(call, sandbox_id)
        if not sandbox.ready:
            raise RuntimeCallError(call, f"sandbox {sandbox_id} is not running")
        return sandbox

    async def find(self, call: str, container_id: ContainerId) -> Container:
        """Return a container as it stands now. Raises `NotFoundError`."""
        await self.load()
        container = self.containers.get(container_id)
        if container is not None:
            await self.observe([container])
        if container_id not in self.containers:
            raise NotFoundError(call, f'container "{container_id}": not found')
        return self.containers[container_id]

    async def find_running(self, call: str, container_id: ContainerId) -> Container:
        container = await self.find(call, container_id)
        if container.life.state != lives.RUNNING:
            raise RuntimeCallError(call, f"container {container_id} is not running")
        return container

    async def of_pod(self, uid: PodUid | None) -> list[Container]:
        """Return the containers of a pod, or all, as they stand now."""
        await self.load()
        asked = [c for c in self.containers.values() if uid in (None, c.sandbox.uid)]
        await self.observe(asked)
        return [c for c in asked if c.id in self.containers]

    def add(self, container: Container) -> None:
        container.sandbox.containers[container.id] = container
        self.containers[container.id] = container

    def drop(self, container: Container) -> None:
        container.sandbox.containers.pop(container.id, None)
        self.containers.pop(container.id, None)

    @contextmanager
    def reserve(self, call: str, kind: str, name: str) -> Iterator[None]:
        """Keep a name while it is being taken: the other who wants it meanwhile fails."""
        key = (kind, name)
        if key in self._reserved:
            raise RuntimeCallError(call, f'the {kind} "{name}" is being made')
        self._reserved.add(key)
        try:
            yield
        finally:
            self._reserved.discard(key)


def _load_all(state_dir: Path, boot: str) -> list[Sandbox]:
    store.make_state_dir(state_dir)
    found = []
    for directory, facts, config in store.load_sandboxes(state_dir):
        sandbox = Sandbox(directory, facts, config, boot)
        for place, container_facts, container_config in store.load_containers(directory):
            container = Container(place, container_facts, container_config, sandbox)
            sandbox.containers[container.id] = container
        found.append(sandbox)
    return found


def _read_lives(asked: Sequence[tuple[Path, ContainerId]], boot: str) -> list[lives.Life]:
    return [lives.read_life(directory, container_id, boot) for directory, container_id in asked]
