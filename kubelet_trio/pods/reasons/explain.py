"""Explain one pod from what its worker knows: see `explain`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lightkube.models.core_v1 import ContainerStatus

from kubelet_trio.model import (
    CONFIG_SOURCE,
    INSTANCE,
    ContainerKind,
    ContainerState,
    PodContainer,
    RuntimePod,
    is_terminal,
    metadata,
    pod_annotations,
    pod_containers,
    pod_key,
    pod_uid,
    spec,
)
from kubelet_trio.pods.reasons.facts import PodFacts
from kubelet_trio.pods.reasons.obstacles import is_ready, obstacles
from kubelet_trio.pods.reasons.types import (
    Actual,
    ActualContainer,
    Next,
    PodWhy,
    Reason,
    Wanted,
    WantedContainer,
)
from kubelet_trio.pods.types import EndReason, PodStage

_DEFERRED = "Deferred"  # `PendingResize.reason`
_SAME = 0.5  # seconds between what is one moment


def explain(facts: PodFacts) -> PodWhy:
    """Return why a pod is as it is. The most important reason is its summary."""
    pod, key = facts.pod, pod_key(facts.pod)
    found = tuple(obstacles(facts))
    actual = _actual(facts)
    newest_first = sorted(found, key=lambda r: -math.inf if r.since is None else r.since)[::-1]
    return PodWhy(
        namespace=key.namespace,
        name=key.name,
        uid=pod_uid(pod),
        now=facts.now,
        summary=_summary(facts, actual, found),
        wanted=_wanted(facts),
        actual=actual,
        reasons=tuple(newest_first),
        next=tuple(_next(facts, found)),
    )


def _wanted(facts: PodFacts) -> Wanted:
    pod, request = facts.pod, facts.request
    state = "running" if request is None else "ended"
    if request is not None and request.reason in (EndReason.DELETED, EndReason.ASKED):
        state = "removed"
    annotations = pod_annotations(pod)
    source = "embedded" if INSTANCE in annotations else annotations.get(CONFIG_SOURCE, "api")
    return Wanted(
        state=state,
        source=source,
        manifest=facts.manifest,
        generation=metadata(pod).generation,
        restart_policy=spec(pod).restartPolicy or "Always",
        containers=tuple(
            WantedContainer(c.spec.name, _kind(c), c.spec.image or "") for c in pod_containers(pod)
        ),
    )


def _kind(container: PodContainer) -> str:
    if container.is_sidecar:
        return "sidecar"
    return {
        ContainerKind.INIT: "init",
        ContainerKind.MAIN: "main",
        ContainerKind.EPHEMERAL: "ephemeral",
    }[container.kind]


def _actual(facts: PodFacts) -> Actual:
    observed, status = facts.observed, facts.status
    newest = observed.sandboxes[0] if observed.sandboxes else None
    return Actual(
        phase=(status.phase if status is not None else None) or "Pending",
        ready=is_ready(status),
        activity=facts.activity,
        since=facts.since,
        sandbox=newest.id if newest is not None else "",
        sandbox_ready=newest is not None and newest.ready,
        ips=newest.ips if newest is not None else (),
        doing=tuple(each.what for each in facts.doing),
        containers=tuple(
            _container(c, observed, _shown(facts).get(c.spec.name))
            for c in pod_containers(facts.pod)
        ),
    )


def _shown(facts: PodFacts) -> dict[str, ContainerStatus]:
    """Return the published statuses of the containers by name."""
    status = facts.status
    if status is None:
        return {}
    every = (
        status.initContainerStatuses,
        status.containerStatuses,
        status.ephemeralContainerStatuses,
    )
    return {each.name: each for some in every for each in some or ()}


def _container(
    container: PodContainer, observed: RuntimePod, published: ContainerStatus | None
) -> ActualContainer:
    name = container.spec.name
    latest = observed.latest(name)
    ended = next((c for c in observed.of(name) if c.state is ContainerState.EXITED), None)
    ready = published is not None and bool(published.ready)
    restarts = published.restartCount if published is not None else 0
    if latest is None:
        return ActualContainer(name, "missing", None, restarts, ready)
    since = {
        ContainerState.RUNNING: latest.started_at,
        ContainerState.EXITED: latest.finished_at,
    }.get(latest.state, latest.created_at)
    return ActualContainer(
        name,
        latest.state.value,
        since or None,
        max(restarts, latest.attempt),
        ready and latest.state is ContainerState.RUNNING,
        ended.exit_code if ended is not None else None,
        ended.reason if ended is not None else "",
        (ended.finished_at or None) if ended is not None else None,
    )


def _summary(facts: PodFacts, actual: Actual, found: Sequence[Reason]) -> str:
    first = next((r for r in found if r.blocks), None)
    if first is not None:
        return f"{first.container}: {first.text}" if first.container else first.text
    if facts.stage is PodStage.SYNC and actual.ready:
        return "it runs and is ready"
    if facts.doing:
        return f"the agent is {_doing(facts)}"
    return f"it is {facts.activity}"


def _doing(facts: PodFacts) -> str:
    return ", ".join(each.what for each in facts.doing)


# What happens next


def _next(facts: PodFacts, found: Sequence[Reason]) -> list[Next]:
    coming = [*_waits(facts, found), *_ends(facts)]
    if facts.stage is PodStage.SYNC:
        coming += [*_probed(facts), *_resized(facts)]
    due = facts.next_round if facts.stage is PodStage.SYNC else None
    # The round that ends a wait is told as what follows the wait.
    is_told = any(each.at is not None and due and each.at <= due + _SAME for each in coming)
    if due is not None and not is_told:
        text = "the agent looks at the pod again, if nothing happens before"
        coming.append(Next(max(due, facts.now), text))
    if not coming and facts.stage is PodStage.SYNC and facts.doing:
        coming.append(Next(None, "the agent goes on with the pod once that has ended"))
    if not coming and facts.stage is PodStage.TERMINATED:
        coming.append(Next(None, _after_the_end(facts)))
    return sorted(coming, key=lambda each: math.inf if each.at is None else each.at)


def _waits(facts: PodFacts, found: Sequence[Reason]) -> Iterator[Next]:
    """Yield what follows the reasons that end at a time, or when something else has."""
    for reason in found:
        if reason.kind == "name":
            yield Next(None, "it starts once the name is free")
        elif reason.kind == "admission" and reason.blocks:
            yield Next(None, "it is decided on again when another pod has ended")
        elif reason.until is None or reason.until <= facts.now:
            continue
        elif reason.kind == "back-off":
            yield Next(reason.until, f"container {reason.container} starts again")
        elif reason.kind == "start":
            yield Next(reason.until, f"the start of container {reason.container} is tried again")
        elif reason.kind == "image":
            yield Next(reason.until, f"the image of {reason.container} is tried again")
        elif reason.kind == "volume":
            yield Next(reason.until, "the volume is tried again")
        elif reason.kind == "ending" and facts.teardown is not None:
            yield Next(reason.until, "the next attempt to end it")
        elif reason.kind in ("step", "resize"):
            yield Next(reason.until, "the failed step is tried again")


def _probed(facts: PodFacts) -> Iterator[Next]:
    """Yield when a probe that goes on to fail restarts its container."""
    for probe in facts.probes:
        ends = probe.kind in ("Liveness", "Startup") and probe.last == "failure"
        if ends and probe.at is not None and probe.period:
            at = probe.at + (probe.threshold - probe.row) * probe.period
            kind = probe.kind.lower()
            text = (
                f"container {probe.container} is restarted, unless its {kind} probe passes before"
            )
            yield Next(max(at, facts.now), text)


def _resized(facts: PodFacts) -> Iterator[Next]:
    if facts.pending is not None and facts.pending.reason == _DEFERRED:
        text = "the resize is decided on again when another pod ends or shrinks"
        yield Next(None, text)


def _ends(facts: PodFacts) -> Iterator[Next]:
    if facts.request is None:
        if facts.deadline is not None and facts.deadline > facts.now:
            yield Next(facts.deadline, "activeDeadlineSeconds are over, and the pod ends")
        return
    ends = facts.stage is PodStage.TERMINATING and any(facts.observed.running())
    if ends and facts.grace_end is not None and facts.grace_end > facts.now:
        yield Next(facts.grace_end, "the grace period is over: what still runs is killed")


def _after_the_end(facts: PodFacts) -> str:
    request = facts.request
    finalizers = metadata(facts.pod).finalizers or ()
    if request is not None and request.reason is EndReason.ASKED and finalizers:
        names = ", ".join(finalizers)
        return f"nothing: its API object stays until its finalizers are removed: {names}"
    if request is not None and request.reason in (EndReason.DELETED, EndReason.ASKED):
        return "what is left of it is removed"
    if is_terminal(facts.status):
        return "nothing: it stays as it is until its manifest is changed or removed"
    return "nothing until its manifest changes"
