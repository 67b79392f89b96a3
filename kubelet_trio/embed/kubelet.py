"""The embedded kubelet: a whole agent inside another program's task.

    async with open_kubelet(config) as kubelet:
        async with kubelet.run_pod(pod) as running:
            await running.wait_ready()

The agent's tree runs in a nursery of `open_kubelet` (see `life`). What the program's block
raised is kept aside while that ends and raised again behind the nursery: it comes out as it
was, not in a group. That is safe for `Cancelled` too, since it can only stem from a scope
around `open_kubelet`: the body's and the nursery's own lie within.

Nothing here is global: no signal handlers, no logging set up, no process-wide settings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.embed._errors import (
    KubeletFailedError,
    PodExistsError,
    PodNotFoundError,
)
from kubelet_trio.embed.config import KubeletConfig
from kubelet_trio.embed.core import Core, describe_failure
from kubelet_trio.embed.intake import PodLike, fresh_uid, read_pod, read_pods, with_seen, with_uid
from kubelet_trio.embed.life import Aside, Life
from kubelet_trio.embed.running import RunningPod
from kubelet_trio.embed.source import EmbeddedSource, Wanted
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
from kubelet_trio.supervision import ChildSpec, TreeNode

if TYPE_CHECKING:
    from kubelet_trio.server import AgentStatus


class Kubelet:
    """An agent that runs inside this program. Made by `open_kubelet`."""

    def __init__(self, core: Core, config: KubeletConfig) -> None:
        """Not for programs: `open_kubelet` makes it."""
        self._core = core
        self._config = config

    def __repr__(self) -> str:
        return f"<Kubelet {self.instance} in {self._config.root}>"

    @property
    def instance(self) -> str:
        """What its pods are marked with on the runtime (annotation `kubelet-trio/instance`)."""
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
        """Return how the agent, its runtime and its sources are, in one page."""
        return self._core.agent.status()

    # Pods

    @asynccontextmanager
    async def run_pod(self, pod: PodLike, *, keep: bool = False) -> AsyncIterator[RunningPod]:
        """Run a pod for as long as the block lasts.

        Leaving the block takes the pod down in order and waits for that, whether it is left
        normally, by an exception or by a cancellation: its grace period and 10 s at the
        most. The exception goes on unchanged.

        Args:
            pod: exactly one pod: see `PodLike`. It starts at once; nothing is waited for.
            keep: let it run on when the block is left, and when the program ends; it is
                found again by `get` when the kubelet is opened again. A pod of the same
                content that runs already is taken over, one of other content replaced.

        Raises:
            ManifestError: what is wrong with the pod, each with its field path.
            PodExistsError: there is a pod of that name.
            KubeletClosedError: the kubelet has ended.
        """
        await trio.lowlevel.checkpoint()
        read, manifest = read_pod(pod, node_name=self.node_name, instance=self.instance)
        if not keep:
            read = with_uid(read, fresh_uid())
        (running,) = self._put([Wanted(read, manifest.objects, keep=keep)])
        if keep:
            await self._wait_kept()
            yield running
            return
        self._core.scoped[running.uid] = read
        try:
            yield running
        finally:
            # Shielded, and bounded by the pod's grace: see there.
            await self._core.end_pod(running.pod)  # noqa: ASYNC102

    async def apply(self, pods: PodLike | Iterable[PodLike]) -> tuple[RunningPod, ...]:
        """Want these pods, beside all others, until they are deleted; return their handles.

        A pod that runs already and has not changed is left alone; one that has changed is
        taken down and started anew. They outlive the program, as with `keep`. Returns when
        that is recorded, not when they run. All of them, or none if one cannot be accepted.

        Raises:
            ManifestError: what is wrong with the pods, each with its field path.
            PodExistsError: a pod of that name belongs to a `run_pod` block.
            KubeletClosedError: the kubelet has ended.
        """
        await trio.lowlevel.checkpoint()
        manifest = read_pods(pods, node_name=self.node_name, instance=self.instance)
        # Objects go with the first pod: all pods of the kubelet see them anyway.
        wanted = [
            Wanted(pod, manifest.objects if place == 0 else (), keep=True)
            for place, pod in enumerate(manifest.pods)
        ]
        running = self._put(wanted)
        await self._wait_kept()
        return running

    async def delete(
        self, name: str, namespace: str = "default", *, grace_period: int | None = None
    ) -> None:
        """End a pod and wait until nothing is left of it; see `RunningPod.delete`.

        Raises:
            PodNotFoundError: there is no such pod.
            KubeletClosedError: the kubelet has ended.
        """
        await self.get(name, namespace).delete(grace_period=grace_period)

    def get(self, name: str, namespace: str = "default") -> RunningPod:
        """Return the handle on a pod of that name, whoever started it.

        Raises:
            PodNotFoundError: there is none; a pod that is being removed is none any more.
        """
        key = PodKey(namespace, name)
        wanted = self._core.source.wanted.get(key)
        if wanted is not None:
            return self._handle(wanted.pod)
        static = PodKey(namespace, f"{name}-{self.node_name}")
        for pod in self.pods.value.values():
            if pod_key(pod) in (key, static) and metadata(pod).deletionTimestamp is None:
                return self._handle(pod)
        raise PodNotFoundError(f"there is no pod {key}")

    def watch(self) -> PodWatch:
        """Return an async iterator over changes of pods, beginning with all that are there."""

        async def changed(seen: Mapping[PodUid, Pod]) -> bool:
            return await self._core.until_ended(
                partial(self.pods.wait_value, lambda pods: pods is not seen)
            )

        return PodWatch(lambda: self.pods.value, changed)

    def events(self) -> EventStream:
        """Return an async iterator over events (core/v1 Event), beginning with those kept."""
        ring = self._core.agent.events

        async def newer(seen: int) -> bool:
            return await self._core.until_ended(
                partial(ring.version.wait_value, lambda version: version > seen)
            )

        return EventStream(ring, newer)

    # How

    def _put(self, wanted: list[Wanted]) -> tuple[RunningPod, ...]:
        """Want pods, now: nothing is awaited, so that no cancellation can come between."""
        self._core.check_open()
        for one in wanted:
            self._check_free(one)
        seen = rfc3339(self._core.world.clock.time())
        placed = []
        for one in wanted:
            before = self._core.source.wanted.get(one.key)
            if before is not None and before.uid == one.uid:
                placed.append(Wanted(before.pod, one.objects, one.keep))
            else:
                placed.append(Wanted(with_seen(one.pod, seen), one.objects, one.keep))
        self._core.source.put(placed)
        return tuple(self._handle(one.pod) for one in placed)

    def _check_free(self, one: Wanted) -> None:
        before = self._core.source.wanted.get(one.key)
        if before is not None and not (before.keep and one.keep):
            raise PodExistsError(f"there is a pod {one.key} already")

    def _handle(self, pod: Pod) -> RunningPod:
        uid = pod_uid(pod)
        if uid not in self._core.handles:
            handle = self._core.handles[uid] = RunningPod(self._core, pod)
            handle.see(self.pods.value.get(uid))
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

    When the block is left, pods of `run_pod` blocks that are still open end first, then the
    agent does; pods that are kept run on. A cancellation from outside and an exception do
    the same, and the exception comes out unchanged.

    Args:
        config: what it is to be.
        world: for tests: what it stands on; see `kubelet_trio.testing.fake_world`.

    Raises:
        KubeletFailedError: it could not start (another kubelet runs in its directory, say),
            or one of its parts kept failing; the block is cancelled then.
        TypeError: `config` is no `KubeletConfig`.
    """
    if not isinstance(config, KubeletConfig):
        raise TypeError(
            "open_kubelet: expected a KubeletConfig, such as KubeletConfig(root_dir=...), "
            f"not {type(config).__name__}"
        )
    core, life = await _make(config, world)
    with Aside() as aside:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(life.run), name="embedded kubelet")
            if not core.ended.value:
                with aside.keep(), life.body:
                    yield Kubelet(core, config)
                await life.close()
    if core.failure is not None:
        raise KubeletFailedError(describe_failure(core.failure)) from core.failure


async def _make(config: KubeletConfig, world: World | None) -> tuple[Core, Life]:
    try:
        if world is None:
            world = await thread_offload(_find_world, config)
        # In a thread before, unless a test brought the world: the host's loop is not held up.
        from kubelet_trio.embed.build import build_agent
        from kubelet_trio.pods import load_records

        source = EmbeddedSource(config.root, world.offload)
        records = await world.offload(load_records, config.root / "pods")
        await source.load()
    except (OSError, ValueError) as exc:
        raise KubeletFailedError(str(exc)) from exc
    core = Core(world, source)
    attendants = (ChildSpec("handles", core.run_handles),)
    core.agent = build_agent(config, world, source, records, attendants)
    return core, Life(core)


def _find_world(config: KubeletConfig) -> World:
    from kubelet_trio.embed.build import real_world

    return real_world(config)


# What `run_pod` gives: for signatures of programs.
PodScope = AbstractAsyncContextManager[RunningPod]
