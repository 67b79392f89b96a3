"""The embedded kubelet: a whole agent inside another program's task.

    async with open_kubelet(config) as kubelet:
        async with kubelet.run_pod(pod) as running:
            await running.wait_ready()

The agent's tree runs in a nursery of `open_kubelet` (see `session`). Nothing here is global: no
signal handlers, no logging setup, no process-wide settings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.embed.config import KubeletConfig
from kubelet_trio.embed.core import Core, describe_failure, run_handles
from kubelet_trio.embed.errors import (
    KubeletFailedError,
    PodExistsError,
    PodNotFoundError,
)
from kubelet_trio.embed.intake import PodLike, fresh_uid, read_pod, read_pods, with_uid
from kubelet_trio.embed.resize import with_spec_of
from kubelet_trio.embed.running import RunningPod
from kubelet_trio.embed.session import RaiseOutside, Session
from kubelet_trio.embed.source import EmbeddedSource, WantedPod
from kubelet_trio.embed.streams import EventStream, PodWatch
from kubelet_trio.embed.world import World
from kubelet_trio.model import (
    PodKey,
    PodUid,
    metadata,
    pod_key,
    pod_uid,
    rfc3339,
    thread_offload,
)
from kubelet_trio.sources import mark_seen
from kubelet_trio.supervision import ChildSpec, TreeNode

if TYPE_CHECKING:
    from kubelet_trio.agent import Agent
    from kubelet_trio.server import AgentStatus


class Kubelet:
    """A kubelet that runs inside this program; `open_kubelet` returns it."""

    def __init__(self, core: Core[RunningPod], config: KubeletConfig) -> None:
        """Internal: programs call `open_kubelet`."""
        self._core = core
        self._config = config

    def __repr__(self) -> str:
        return f"<Kubelet {self.instance} in {self._config.root}>"

    @property
    def instance(self) -> str:
        """The mark of its pods on the runtime (annotation `kubelet-trio/instance`)."""
        return self._config.instance_id

    @property
    def node_name(self) -> str:
        return self._core.world.node.node_name

    @property
    def pods(self) -> AsyncValue[Mapping[PodUid, Pod]]:
        """All pods by UID, each with its newest status. The mapping is replaced, never changed."""
        return self._core.agent.pods

    def tree(self) -> TreeNode:
        """Return the live supervision tree, with restarts and last errors."""
        return self._core.agent.tree()

    def status(self) -> AgentStatus:
        """Return the state of the agent, its runtime and its sources, in one page."""
        return self._core.agent.status()

    # Pods

    @asynccontextmanager
    async def run_pod(self, pod: PodLike, *, keep: bool = False) -> AsyncIterator[RunningPod]:
        """Run a pod for as long as the block lasts.

        Leaving the block, normally, by an exception or by a cancellation, takes the pod down
        in order and waits for that: its grace period and 10 s at the most. The exception is
        raised unchanged.

        Args:
            pod: exactly one pod: see `PodLike`. It starts now; the call does not wait for it.
            keep: let it run on when the block is left, and when the program ends; `get`
                finds it when the kubelet is opened again. A running pod of that name is taken
                over, resized or replaced, as by `apply`.

        Raises:
            ManifestError: the pod is invalid; each error has its field path.
            TypeError: the value is of a type that no pod can be read from.
            PodExistsError: a pod of that name exists.
            KubeletClosedError: the kubelet has ended.
        """
        await trio.lowlevel.checkpoint()
        read, manifest = read_pod(
            pod, node_name=self.node_name, instance=self.instance, is_known=self._is_wanted
        )
        # A new UID: the same pod run twice must not inherit records of the first run.
        if not keep:
            read = with_uid(read, fresh_uid())
        (running,) = self._put([WantedPod(read, manifest.objects, keep=keep)])
        if keep:
            await self._wait_kept()
            yield running
            return
        self._core.scoped[running.uid] = read
        try:
            yield running
        finally:
            # ASYNC102: `end_pod` is shielded, with a deadline.
            await self._core.end_pod(running.pod)  # noqa: ASYNC102

    async def apply(self, pods: PodLike | Iterable[PodLike]) -> tuple[RunningPod, ...]:
        """Run these pods, in addition to all others, until they are deleted.

        A running pod that has not changed is left alone. One that has changed in amounts of CPU
        and memory only is resized in place (see `RunningPod.wait_resized`). Any other changed
        pod is taken down and started again. They outlive the program, as with `keep`. Returns
        their handles once they are recorded, not when they run. If one pod is invalid, none is
        run.

        Raises:
            ManifestError: a pod is invalid; each error has its field path.
            TypeError: a value is of a type that no pod can be read from.
            PodExistsError: a pod of that name belongs to a `run_pod` block.
            KubeletClosedError: the kubelet has ended.
        """
        await trio.lowlevel.checkpoint()
        manifest = read_pods(
            pods, node_name=self.node_name, instance=self.instance, is_known=self._is_wanted
        )
        # All pods of the kubelet see the objects, so one of them carries them.
        wanted = [
            WantedPod(pod, manifest.objects if place == 0 else (), keep=True)
            for place, pod in enumerate(manifest.pods)
        ]
        running = self._put(wanted)
        await self._wait_kept()
        return running

    async def delete(
        self, name: str, namespace: str = "default", *, grace_period: int | None = None
    ) -> None:
        """End a pod and wait until it is completely removed; see `RunningPod.delete`.

        Raises:
            PodNotFoundError: there is no such pod.
            KubeletClosedError: the kubelet has ended.
        """
        await self.get(name, namespace).delete(grace_period=grace_period)

    def get(self, name: str, namespace: str = "default") -> RunningPod:
        """Return the handle on a pod by its name, from any source.

        Raises:
            PodNotFoundError: there is none; a pod that is being removed does not count.
        """
        key = PodKey(namespace, name)
        wanted = self._core.source.wanted.get(key)
        if wanted is not None:
            return self._handle(wanted.pod)
        # Static pods of `manifests` have the node's name appended.
        static = PodKey(namespace, f"{name}-{self.node_name}")
        for pod in self.pods.value.values():
            if pod_key(pod) in (key, static) and metadata(pod).deletionTimestamp is None:
                return self._handle(pod)
        raise PodNotFoundError(f"there is no pod {key}")

    def watch(self) -> PodWatch:
        """Return an async iterator over changes of pods, starting with all current ones."""

        async def changed(seen: Mapping[PodUid, Pod]) -> bool:
            return await self._core.until_ended(
                partial(self.pods.wait_value, lambda pods: pods is not seen)
            )

        return PodWatch(lambda: self.pods.value, changed)

    def events(self) -> EventStream:
        """Return an async iterator over events (core/v1 Event), starting with those kept."""
        ring = self._core.agent.events

        async def newer(seen: int) -> bool:
            return await self._core.until_ended(
                partial(ring.version.wait_value, lambda version: version > seen)
            )

        return EventStream(ring, newer)

    # Internal

    def _is_wanted(self, uid: PodUid) -> bool:
        return any(one.uid == uid for one in self._core.source.wanted.values())

    def _put(self, wanted: list[WantedPod]) -> tuple[RunningPod, ...]:
        """Put pods into the source and return their handles.

        Synchronous: no cancellation can come between the put and the handle.
        """
        self._core.check_open()
        for one in wanted:
            self._check_free(one)
        seen = rfc3339(self._core.world.clock.time())
        placed = []
        for one in wanted:
            before = self._core.source.wanted.get(one.key)
            # The same pod: keep its object, with the time when it was first seen.
            if before is not None and before.uid == one.uid:
                pod = with_spec_of(before.pod, one.pod)
                placed.append(WantedPod(pod, one.objects, one.keep))
            else:
                placed.append(WantedPod(mark_seen(one.pod, seen), one.objects, one.keep))
        self._core.source.put(placed)
        return tuple(self._handle(one.pod) for one in placed)

    def _check_free(self, one: WantedPod) -> None:
        before = self._core.source.wanted.get(one.key)
        if before is not None and not (before.keep and one.keep):
            raise PodExistsError(f"there is a pod {one.key} already")

    def _handle(self, pod: Pod) -> RunningPod:
        uid = pod_uid(pod)
        if uid not in self._core.handles:
            handle = self._core.handles[uid] = RunningPod(self._core, pod)
            handle.update(self.pods.value.get(uid))
        return self._core.handles[uid]

    async def _wait_kept(self) -> None:
        source = self._core.source
        version = source.version
        if not await self._core.until_ended(partial(source.wait_saved, version)):
            raise self._core.closed_error()


@asynccontextmanager
async def open_kubelet(
    config: KubeletConfig, *, world: World | None = None
) -> AsyncIterator[Kubelet]:
    """Run a kubelet in this program for as long as the block lasts.

    When the block is left, by a cancellation or an exception as well, first the pods of open
    `run_pod` blocks end, then the agent; kept pods run on. The exception is raised unchanged.

    Args:
        config: settings of the kubelet.
        world: for tests: fakes to run on; see `kubelet_trio.testing.fake_world`.

    Raises:
        KubeletFailedError: it could not start (for example, another kubelet uses its
            directory), or one of its parts kept failing; the block is cancelled then.
        TypeError: `config` is not a `KubeletConfig`.
    """
    if not isinstance(config, KubeletConfig):
        raise TypeError(
            "open_kubelet: expected a KubeletConfig, such as KubeletConfig(root_dir=...), "
            f"not {type(config).__name__}"
        )
    core, session = await _open(config, world)
    # Safe for `Cancelled`, too: here it can only come from a scope around `open_kubelet`, since
    # the scopes of the block and of the nursery are inside `RaiseOutside`.
    with RaiseOutside() as outside:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(session.run), name="embedded kubelet")
            if not core.ended.value:
                with outside.catch(), session.body:
                    yield Kubelet(core, config)
                await session.close()
    if core.failure is not None:
        raise KubeletFailedError(describe_failure(core.failure)) from core.failure


async def _open(config: KubeletConfig, world: World | None) -> tuple[Core[RunningPod], Session]:
    """Read what was kept, and build the agent. Raises KubeletFailedError."""
    try:
        if world is None:
            world = await thread_offload(_find_world, config)
        # These imports take long. `real_world` has done them in a thread, so that the program's
        # event loop was not blocked; only with a test's world they run here.
        from kubelet_trio.embed.build import build_agent
        from kubelet_trio.managers import load_claims, load_managers
        from kubelet_trio.pods import load_records

        source = EmbeddedSource(config.root, world.offload)
        records = await world.offload(load_records, config.root / "pods")
        loaded = await world.offload(
            load_managers,
            config.managers,
            config.root,
            world.machine,
            device_plugins=config.plugins,
        )
        claims = await world.offload(load_claims, config.root) if config.plugins else {}
        await source.load()
    except (OSError, ValueError) as exc:
        raise KubeletFailedError(str(exc)) from exc
    handles: dict[PodUid, RunningPod] = {}

    def companions(agent: Agent) -> tuple[ChildSpec, ...]:
        return (ChildSpec("handles", partial(run_handles, agent, handles)),)

    agent = build_agent(config, world, source, records, companions, loaded, claims)
    core = Core(world, source, agent, handles)
    return core, Session(core)


def _find_world(config: KubeletConfig) -> World:
    from kubelet_trio.embed.build import real_world

    return real_world(config)


# The return type of `run_pod`, for signatures in programs.
PodScope = AbstractAsyncContextManager[RunningPod]
