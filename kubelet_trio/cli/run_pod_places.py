"""Where `run-pod` runs a pod: at the agent that answers, or in a kubelet of this process."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kubelet_trio.cli.client import AgentClient, ClientError, NoAgentError
from kubelet_trio.cli.manifests import Given, ManifestDirectory, read_given
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.cli.run_pod import Place, Placed
from kubelet_trio.sources import load_manifest

if TYPE_CHECKING:
    import trio

    from kubelet_trio.embed import KubeletConfig, RunningPod

_START = 60.0  # s for an embedded kubelet to listen
_POLL = 0.1  # s


class AtAgent:
    """A pod of the running agent, by a manifest of its own for each object."""

    def __init__(self, agent: AgentClient, status: Json, given: list[Given], origin: str) -> None:
        """Raises `ClientError` if the manifest has not exactly one pod."""
        self._agent, self._given = agent, given
        self._directory = ManifestDirectory.of_agent(status)
        self._node = str(status["node_name"])
        pods = [one for one in given if one.key.kind == "Pod"]
        if len(pods) != 1:
            raise ClientError(f"{origin}: expected one Pod, found {len(pods)}: give one file each")
        (self._pod,) = pods
        self._made: list[Given] = []

    @contextmanager
    def open(self) -> Iterator[Placed]:
        self._check_free()
        try:
            for one in sorted(self._given, key=lambda one: one is self._pod):
                # Before the write: a file that was half made is removed, too.
                if self._directory.find(one.key) is None:
                    self._made.append(one)
                self._directory.put(one, writes=True)
            path = self._directory.find(self._pod.key)
            assert path is not None
            yield self._placed(path[0])
        finally:
            self.end(at_once=False)

    def _check_free(self) -> None:
        """Raise `ClientError` if anything of that name is there already."""
        key = self._pod.key
        for one in self._given:
            found = self._directory.find(one.key)
            if found is not None and (one is self._pod or found[1] != one.value):
                raise ClientError(
                    f"{one.key} is in {found[0]} already: choose another name, or delete it first"
                )
            self._directory.put(one, writes=False)
        names = (f"{key.name}-{self._node}".lower(), key.name)
        for pod in self._agent.get("pods", namespace=key.namespace)["items"]:
            if (name := part(pod, "metadata").get("name")) in names:
                raise ClientError(
                    f"pod {name} is on this node already: choose another name, or wait for its end"
                )

    def _placed(self, path: Path) -> Placed:
        (pod,) = load_manifest(self._pod.content, str(path), node_name=self._node).pods
        meta = pod.metadata
        assert meta is not None
        assert meta.name
        assert meta.namespace
        assert meta.uid
        return Placed(self._agent, meta.namespace, meta.name, meta.uid, str(path))

    def check(self) -> None:
        """Do nothing: every request shows whether the agent answers."""

    def end(self, *, at_once: bool) -> bool:
        for one in self._made:
            self._directory.remove(one.key, [other.key for other in self._made], writes=True)
        return not at_once


class Embedded:
    """A pod of a kubelet in a thread of this process, with a temporary root directory.

    The thread runs trio and the pod; this class is used from the main thread.
    """

    def __init__(self, text: bytes, origin: str, runtime: str, *, allow_root: bool) -> None:
        self._text, self._origin, self._runtime = text, origin, runtime
        self._allow_root = allow_root
        self._placed: Placed | None = None
        self._failure: str = ""
        self._has_ended = False
        self._is_gone = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._graces: list[int | None] = []  # asked for, newest last
        self._asked: trio.Event | None = None
        self._leave: trio.Event | None = None

    @contextmanager
    def open(self) -> Iterator[Placed]:
        root = Path(tempfile.mkdtemp(prefix="kubelet-trio-"))
        thread = threading.Thread(target=self._run, args=(root,))
        thread.start()
        try:
            yield self._wait_placed()
        finally:
            self._tell(leave=True)
            thread.join()
            # Unless something may still run or be mounted there.
            if self._is_gone or self._placed is None:
                _remove(root)
            else:
                raise ClientError(f"the pod did not end in time: look for what it left in {root}")

    def _wait_placed(self) -> Placed:
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            self.check()
            if self._placed is not None:
                try:
                    self._placed.agent.get("version")
                except NoAgentError:
                    pass  # it does not listen yet
                else:
                    return self._placed
            time.sleep(_POLL)
        raise ClientError(f"the kubelet did not start in {_START:g} s")

    def check(self) -> None:
        """Raise `ClientError` if the kubelet has ended."""
        if self._has_ended:
            raise ClientError(self._failure or "the kubelet has ended")

    def end(self, *, at_once: bool) -> bool:
        self._graces.append(0 if at_once else None)
        self._tell(leave=False)
        return not self._has_ended

    def _tell(self, *, leave: bool) -> None:
        """Wake the thread; it may have ended."""
        import trio

        event = self._leave if leave else self._asked
        if self._token is None or event is None:
            # It looks at `_graces` when it gets there, and `_has_ended` says the rest.
            while leave and self._token is None and not self._has_ended:
                time.sleep(_POLL)
            event = self._leave if leave else self._asked
            if self._token is None or event is None:
                return
        try:
            self._token.run_sync_soon(event.set)
        except trio.RunFinishedError:
            return

    # In the thread

    def _run(self, root: Path) -> None:
        import logging

        import structlog
        import trio

        from kubelet_trio.cri import RuntimeCallError
        from kubelet_trio.embed import KubeletConfig, KubeletError, ManifestError

        # What concerns the pod is said by this command.
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
        config = KubeletConfig(
            root_dir=root,
            runtime=self._runtime,
            allow_root=self._allow_root,
            control_socket=True,
        )
        try:
            trio.run(self._serve, config)
        except ManifestError as exc:
            self._failure = str(exc).replace("embedded:", f"{self._origin}:")
        except (KubeletError, RuntimeCallError, OSError) as exc:
            self._failure = str(exc)
        finally:
            self._has_ended = True

    async def _serve(self, config: KubeletConfig) -> None:
        import trio

        from kubelet_trio.embed import open_kubelet

        self._asked, self._leave = trio.Event(), trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        text = self._text.decode("utf-8", "replace")
        async with open_kubelet(config) as kubelet, kubelet.run_pod(text) as running:
            agent = AgentClient(str(config.root))
            self._placed = Placed(agent, running.namespace, running.name, running.uid, "")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, running, nursery)
                await self._leave.wait()
                nursery.cancel_scope.cancel()
        self._is_gone = running.is_gone

    async def _obey(self, running: RunningPod, nursery: trio.Nursery) -> None:
        """Delete the pod each time that it is asked for, with the grace period of then."""
        import trio

        while True:
            assert self._asked is not None
            await self._asked.wait()
            self._asked = trio.Event()
            while self._graces:
                grace = self._graces.pop(0)
                nursery.start_soon(_delete, running, grace)


async def _delete(running: RunningPod, grace: int | None) -> None:
    from kubelet_trio.embed import KubeletClosedError

    # Then `run` has the reason.
    with suppress(KubeletClosedError):
        await running.delete(grace_period=grace)


def find_place(
    agent: AgentClient, text: bytes, origin: str, runtime: str | None, *, root: bool
) -> Place:
    """Return where to run a pod: without a `runtime`, at the agent if one reads manifests.

    Raises `ClientError`, also if the agent is another user's.
    """
    if runtime is None:
        try:
            status = agent.get("status")
        except NoAgentError:
            return Embedded(text, origin, "process", allow_root=root)
        if any(str(s.get("name", "")).startswith("file:") for s in items(status, "sources")):
            given = read_given(text, origin, str(status["node_name"]))
            return AtAgent(agent, status, given, origin)
    return Embedded(text, origin, runtime or "process", allow_root=root)


def _remove(root: Path) -> None:
    """Remove a temporary root directory, unless something is still mounted below it."""
    from kubelet_trio.volumes import read_mountinfo

    if any(Path(mount.path).is_relative_to(root) for mount in read_mountinfo()):
        raise ClientError(f"something is still mounted below {root}: it is not removed")
    shutil.rmtree(root, ignore_errors=True)
