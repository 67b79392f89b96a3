"""The runtimes that the conformance tests run against, and programs that all of them know.

A program is a shell script for runtimes with processes, and a behaviour for the one
without. What a runtime cannot show is declared in `lacks`, and tests that need it are
skipped by that name.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import trio

from kubelet_trio.cri import ExecResult, Runtime, v1
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.behaviour import Behaviour
from kubelet_trio.testing.objects import FakeContainer
from kubelet_trio.testing.runtime import FakeExec

UID_LABEL = "io.kubernetes.pod.uid"
EXITED = v1.ContainerState.CONTAINER_EXITED
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Program:
    """Something that a container does."""

    script: str
    behaviour: Behaviour = field(default_factory=Behaviour)

    @property
    def command(self) -> list[str]:
        return ["sh", "-c", self.script]


FOREVER = Program("trap 'exit 143' TERM; while :; do sleep 1000 & wait $!; done")
STUBBORN = Program("trap '' TERM; while :; do sleep 1; done", Behaviour(ignores_sigterm=True))


def exits(code: int, before: str = "true") -> Program:
    """A program that does `before`, where there are processes, and exits with a code."""
    return Program(f"{before}; exit {code}", Behaviour(exits_after=0.0, exit_code=code))


async def wait_exited(runtime: Runtime, container_id: ContainerId) -> v1.ContainerStatus:
    """Return the status of a container once it says that it has exited."""
    with trio.fail_after(_PATIENCE):
        while True:
            status, _ = await runtime.container_status(container_id)
            if status.state == EXITED:
                return status
            await trio.sleep(0.01)


async def eventually(check: Callable[[], object]) -> None:
    """Ask again and again, for what nobody announces, until `check` holds."""
    with trio.fail_after(_PATIENCE):
        while not check():  # noqa: ASYNC110  # see above
            await trio.sleep(0.005)


class Client(Protocol):
    """Opens a client of a case's runtime, as an agent would that has just been started."""

    def __call__(self) -> AbstractAsyncContextManager[Runtime]: ...


class Case:
    """One runtime under test, and the sandboxes that a test makes in it."""

    def __init__(
        self, name: str, open_client: Client, logs: Path, image: str, lacks: Iterable[str] = ()
    ) -> None:
        self.name = name
        self.open_client = open_client
        self.image = image
        self.lacks = frozenset(lacks)
        self.logs = logs
        self._numbers = itertools.count()
        self._uid_prefix = os.urandom(4).hex()
        self.runtime: Runtime

    @asynccontextmanager
    async def opened(self) -> Any:
        """Have a client; afterwards remove every sandbox that the test made."""
        async with self.open_client() as self.runtime:
            yield self
            with trio.fail_after(30):
                for sandbox_id, sandbox in (
                    await self.runtime.list_pod_sandboxes()
                ).entries.items():
                    if sandbox.labels.get(UID_LABEL, "").startswith(self._uid_prefix):
                        await self.runtime.remove_pod_sandbox(SandboxId(sandbox_id))

    def new_uid(self) -> PodUid:
        return PodUid(f"{self._uid_prefix}-{next(self._numbers)}")

    def sandbox_config(self, uid: PodUid | None = None, attempt: int = 0) -> v1.PodSandboxConfig:
        uid = uid or self.new_uid()
        network = v1.NamespaceOption(network=v1.NamespaceMode.NODE)
        return v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(
                name=f"pod-{uid}", namespace="default", uid=uid, attempt=attempt
            ),
            log_directory=str(self.logs),
            labels={UID_LABEL: uid, "colour": "green"},
            annotations={"note": "kept"},
            linux=v1.LinuxPodSandboxConfig(
                security_context=v1.LinuxSandboxSecurityContext(namespace_options=network)
            ),
        )

    def container_config(
        self,
        program: Program,
        name: str = "main",
        attempt: int = 0,
        *,
        resources: v1.LinuxContainerResources | None = None,
        **fields: Any,
    ) -> v1.ContainerConfig:
        fields.setdefault("command", program.command)
        network = v1.NamespaceOption(network=v1.NamespaceMode.NODE)
        return v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name=name, attempt=attempt),
            image=v1.ImageSpec(image=self.image),
            labels={"io.kubernetes.container.name": name},
            annotations={"io.kubernetes.container.hash": "abc"},
            log_path=f"{name}-{attempt}-{next(self._numbers)}.log",
            linux=v1.LinuxContainerConfig(
                security_context=v1.LinuxContainerSecurityContext(namespace_options=network),
                resources=resources,
            ),
            **fields,
        )

    async def sandbox(self) -> Box:
        """Run a sandbox of a new pod."""
        config = self.sandbox_config()
        return Box(self, await self.runtime.run_pod_sandbox(config), config)

    async def wait_exited(self, container_id: ContainerId) -> v1.ContainerStatus:
        return await wait_exited(self.runtime, container_id)

    async def kill(self, container_id: ContainerId) -> None:
        """Kill a container's process behind the runtime's back."""
        if isinstance(self.runtime, FakeRuntime):
            self.runtime.kill(container_id)
            return
        _, pid = await self.runtime.container_status(container_id, verbose=True)
        assert pid > 0, "the container has ended"
        os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Box:
    """A sandbox of a test."""

    case: Case
    id: SandboxId
    config: v1.PodSandboxConfig

    @property
    def uid(self) -> PodUid:
        assert self.config.metadata is not None
        return PodUid(self.config.metadata.uid)

    async def create(
        self, program: Program, name: str = "main", attempt: int = 0, **fields: Any
    ) -> ContainerId:
        config = self.case.container_config(program, name, attempt, **fields)
        return await self.case.runtime.create_container(self.id, config, self.config)

    async def start(
        self, program: Program, name: str = "main", attempt: int = 0, **fields: Any
    ) -> ContainerId:
        container_id = await self.create(program, name, attempt, **fields)
        await self.case.runtime.start_container(container_id)
        return container_id

    async def log_of(self, container_id: ContainerId) -> list[bytes]:
        """Return the lines of an ended container's log, without their times."""
        status = await self.case.wait_exited(container_id)
        lines = Path(status.log_path).read_bytes().splitlines()
        return [line.split(b" ", 1)[1] for line in lines]


def fake_behaviour(programs: Iterable[Program]) -> Callable[[v1.ContainerConfig], Behaviour]:
    known = {tuple(program.command): program.behaviour for program in programs}

    def behave(config: v1.ContainerConfig) -> Behaviour:
        command = tuple(config.command)
        if command == ("/no/such/program",):
            return Behaviour(start_error="no such file or directory")
        if command in known:
            return known[command]
        code = int(command[-1].rpartition("exit ")[2]) if "exit " in command[-1] else 0
        return Behaviour(exits_after=0.0, exit_code=code)

    return behave


def fake_exec(container: FakeContainer, command: list[str]) -> FakeExec:
    if "sleep" in command[-1]:
        return FakeExec(takes=1000.0)
    return FakeExec(result=ExecResult(b"out\n", b"err\n", 7))
