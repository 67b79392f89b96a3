"""Find what stands between a pod as it is wanted and as it is, the most important first."""

from __future__ import annotations

from collections.abc import Iterator

from lightkube.models.core_v1 import Container, PodStatus

from kubelet_trio.model import (
    RESTART_ALL_CONTAINERS,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan import (
    CRASH_LOOP,
    is_restarting_all,
    restarts_after,
)
from kubelet_trio.pods.reasons.facts import Blocker, PodFacts, ProbeFacts
from kubelet_trio.pods.reasons.types import Reason
from kubelet_trio.pods.types import EndReason, Hold, PodStage

# Waiting reasons that the images room gives.
_IMAGE = frozenset(
    (
        *("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "ErrImageNeverPull"),
        *("InvalidImageName", "RegistryUnavailable", "SignatureValidationFailed"),
    )
)
_ENDS = {
    EndReason.DELETED: "its manifest was removed",
    EndReason.ASKED: "it was deleted at the API server",
    EndReason.FINISHED: "its containers have ended, and none starts again",
    EndReason.DEADLINE: "its activeDeadlineSeconds are over",
    EndReason.REJECTED: "the node does not admit it",
    EndReason.PREEMPTED: "a critical pod needs its room",
    EndReason.EVICTED: "it was evicted",
    EndReason.SHUTDOWN: "the node shuts down",
}


_LONG = 3.0  # seconds after which a step is told as what the pod waits for


def obstacles(facts: PodFacts) -> Iterator[Reason]:
    """Yield the reasons why a pod is not as it is wanted."""
    is_told = False
    for reason in _obstacles(facts):
        is_told |= reason.blocks
        yield reason
    if facts.stage is PodStage.SYNC and not is_told:
        for step in facts.doing:
            if facts.now - step.since >= _LONG:
                yield Reason("step", f"it waits for this: {step.what}", since=step.since)


def _obstacles(facts: PodFacts) -> Iterator[Reason]:
    if facts.worker_failure:
        yield Reason("worker", f"its worker has failed, a bug: {facts.worker_failure}")
    yield from _ending(facts)
    if facts.stage is PodStage.SYNC:
        yield from _name(facts)
        yield from _admission(facts)
        yield from _runtime(facts)
        yield from _volumes(facts)
        yield from _step(facts)
        yield from _restarting(facts)
        for container in pod_containers(facts.pod):
            yield from _container(facts, container)
        yield from _gates(facts)
        yield from _resize(facts)
    if facts.record_problem:
        text = f"the disk does not take the pod's record: {facts.record_problem}"
        yield Reason("record", text, blocks=False)
    for problem in facts.manifest_problems:
        yield Reason("manifest", f"the newest manifest is not in force: {problem}", blocks=False)


def is_ready(status: PodStatus | None) -> bool:
    """Return whether a published status says that the pod is ready."""
    conditions = (status.conditions if status is not None else None) or ()
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def _ending(facts: PodFacts) -> Iterator[Reason]:
    request = facts.request
    if request is None:
        return
    why = _ENDS[request.reason]
    if request.failure is not None:
        why = f"{why}: {request.failure.message}"
    if request.reason is EndReason.FINISHED:
        why = ": ".join((why, *_failures(facts)))
    since = request.requested_at or None
    if facts.stage is PodStage.TERMINATED:
        yield Reason("ended", f"it has ended: {why}", since=since)
        for hint in facts.hints:
            yield Reason("admission", hint, blocks=False)
        if facts.remains:
            text = f"its dead containers cannot be removed: {facts.remains}"
            yield Reason("ended", text, since=facts.since, blocks=False)
        return
    failed = facts.teardown
    if failed is not None:
        text = f"it cannot be ended: {failed.waiting.message}"
        yield Reason("ending", text, since=failed.since, until=failed.until)
    yield Reason("ending", f"it ends, because {why}", since=since, until=facts.grace_end)
    for step in facts.doing:
        yield Reason("ending", f"it waits for this: {step.what}", since=step.since)


def _failures(facts: PodFacts) -> Iterator[str]:
    """Yield how the containers of a pod that has finished have failed, as one text."""
    failed = []
    for container in pod_containers(facts.pod):
        latest = facts.observed.latest(container.spec.name)
        if latest is None or latest.state is not ContainerState.EXITED or not latest.exit_code:
            continue
        if container.kind is ContainerKind.MAIN or _initializes(container):
            failed.append(f"{container.spec.name} {_exit(container.spec, latest)}")
    if failed:
        yield ", ".join(failed)


def _name(facts: PodFacts) -> Iterator[Reason]:
    for blocker in facts.waits_for:
        yield Reason("name", _blocker(blocker), since=facts.since)


def _blocker(blocker: Blocker) -> str:
    who = f"a pod of the same name, UID {blocker.uid}, is still on the node"
    steps = ", ".join(step.what for step in blocker.doing)
    now = ": ".join(part for part in (blocker.activity, steps) if part)
    text = f"{who} ({now})" if now else who
    return f"{text}: {blocker.trouble}" if blocker.trouble else text


def _admission(facts: PodFacts) -> Iterator[Reason]:
    if facts.admission:
        yield Reason("admission", facts.admission, since=facts.since)


def _runtime(facts: PodFacts) -> Iterator[Reason]:
    blocks = not is_ready(facts.status)  # a pod that is ready goes on: it is only not looked after
    if facts.runtime_problem:
        text = f"the container runtime: {facts.runtime_problem}"
        yield Reason("runtime", text, blocks=blocks)
    elif facts.network_problem and not spec(facts.pod).hostNetwork:
        text = f"the network is not ready: {facts.network_problem}"
        yield Reason("runtime", text, blocks=blocks)
    elif facts.uncertain:
        text = f"what the runtime has of the pod is not certain: {facts.uncertain}"
        yield Reason("runtime", text, blocks=blocks)


def _volumes(facts: PodFacts) -> Iterator[Reason]:
    for volume in facts.volumes:
        what = f"volume {volume.name}" if volume.name else "its volumes"
        text = f"{what}: {volume.error}" if volume.error else f"{what}: not set up yet"
        yield Reason("volume", text, since=volume.since, until=volume.retry_at)


def _step(facts: PodFacts) -> Iterator[Reason]:
    hold = facts.hold
    if hold is not None and hold.until > facts.now:
        yield Reason("step", hold.waiting.message, since=hold.since or None, until=hold.until)


def _restarting(facts: PodFacts) -> Iterator[Reason]:
    """Yield which containers' ends have made all of them restart in place (KEP-5532)."""
    if not is_restarting_all(facts.status):
        return
    causes = []
    for container in pod_containers(facts.pod):
        latest = facts.observed.latest(container.spec.name)
        rules = container.spec.restartPolicyRules or ()
        has_rule = any(rule.action == RESTART_ALL_CONTAINERS for rule in rules)
        if has_rule and latest is not None and latest.state is ContainerState.EXITED:
            causes.append(f"{container.spec.name} {_exit(container.spec, latest)}")
    because = f", because {', '.join(causes)}" if causes else ""
    yield Reason("step", f"all its containers restart by a RestartAllContainers rule{because}")


def _container(facts: PodFacts, container: PodContainer) -> Iterator[Reason]:
    name = container.spec.name
    latest = facts.observed.latest(name)
    hold = facts.plan.holds.get(name) if facts.plan is not None else None
    pull = next((p for p in facts.pulls if p.container == name), None)
    if pull is not None:
        what = "waits for other pulls to pull" if pull.is_queued else "its pull is under way:"
        yield Reason("image", f"{what} image {pull.image}", name, since=pull.since)
    elif hold is not None:
        yield _held(facts, container, hold)
    elif _initializes(container) and latest is not None:
        if latest.state is ContainerState.RUNNING:
            text = "this init container runs; what comes after it waits for its end"
            yield Reason("init", text, name, since=latest.started_at or None)
    elif latest is not None and _stays_ended(facts, container, latest):
        ending = _exit(container.spec, latest)
        text = f"it {ending}, and does not start again: {_policy(facts, container)}"
        yield Reason("ended", text, name, since=latest.finished_at or None)
    elif latest is not None and latest.state is ContainerState.UNKNOWN:
        yield Reason("runtime", "the runtime does not know the state of this container", name)
    yield from _probes(facts, name)


def _held(facts: PodFacts, container: PodContainer, hold: Hold) -> Reason:
    name, waiting = container.spec.name, hold.waiting
    if waiting.reason == CRASH_LOOP:
        instances = facts.observed.of(name)
        ended = _ended(instances)
        told = facts.stopped.get(ended.id) if ended is not None else None
        crash = _crash(container.spec, instances)
        text = f"{CRASH_LOOP}: {f'{told}; ' if told else ''}{crash}"
        since = ended.finished_at if ended is not None else None
        return Reason("back-off", text, name, since=since, until=hold.until)
    kind = "image" if waiting.reason in _IMAGE else "start"
    text = ": ".join(part for part in (waiting.reason, waiting.message) if part)
    return Reason(kind, text, name, since=hold.since or None, until=hold.until)


def _initializes(container: PodContainer) -> bool:
    return container.kind is ContainerKind.INIT and not container.is_sidecar


def _stays_ended(facts: PodFacts, container: PodContainer, latest: ContainerRecord) -> bool:
    """Return whether a main container has ended for good while its pod goes on."""
    if container.kind is not ContainerKind.MAIN or latest.state is not ContainerState.EXITED:
        return False
    starts = facts.plan.start if facts.plan is not None else ()
    is_starting = any(start.container.spec.name == container.spec.name for start in starts)
    return not is_starting and not restarts_after(container.spec, spec(facts.pod), latest.exit_code)


def _policy(facts: PodFacts, container: PodContainer) -> str:
    policy = container.spec.restartPolicy or spec(facts.pod).restartPolicy
    has_rules = bool(container.spec.restartPolicyRules)
    rules = ", and no restartPolicyRule matches" if has_rules else ""
    return f"its restartPolicy is {policy}{rules}"


def _ended(instances: tuple[ContainerRecord, ...]) -> ContainerRecord | None:
    return next((c for c in instances if c.state is ContainerState.EXITED), None)


def _crash(container: Container, instances: tuple[ContainerRecord, ...]) -> str:
    """Return how the last instance ended, with what a person looks at next."""
    ended = _ended(instances)
    return "it crashed" if ended is None else f"it {_exit(container, ended)}"


def _exit(container: Container, ended: ContainerRecord) -> str:
    text = f"exited with code {ended.exit_code}"
    if ended.reason != "OOMKilled":
        return f"{text} ({ended.reason})" if ended.reason else text
    limits = container.resources.limits if container.resources is not None else None
    limit = (limits or {}).get("memory")
    return f"{text} (OOMKilled{f', its memory limit is {limit}' if limit else ''})"


def _probes(facts: PodFacts, name: str) -> Iterator[Reason]:
    for probe in facts.probes:
        if probe.container == name and (told := _probe(probe)) is not None:
            text, blocks = told
            yield Reason("probe", text, name, since=probe.at, blocks=blocks)


def _probe(probe: ProbeFacts) -> tuple[str, bool] | None:
    """Return what a probe keeps from happening, and whether that blocks; None if it is well."""
    kind = probe.kind.lower()
    found = f": {probe.output}" if probe.output and probe.last == "failure" else ""
    failures = f"{probe.row} failures in a row of {probe.threshold}"
    if kind == "liveness":
        if probe.last != "failure":
            return None
        return f"its liveness probe fails, {failures} that restart it{found}", False
    if probe.result == "success":
        if probe.last != "failure":
            return None
        return f"its {kind} probe fails, {failures}{found}", False
    if probe.last == "failure":
        what = failures if kind == "startup" else f"{probe.row} failures in a row"
        return f"its {kind} probe has not passed: {what}{found}", True
    return f"its {kind} probe has not passed yet", True


def _gates(facts: PodFacts) -> Iterator[Reason]:
    status = facts.status
    states = {c.type: c for c in (status.conditions if status is not None else None) or ()}
    for gate in spec(facts.pod).readinessGates or ():
        found = states.get(gate.conditionType)
        if found is None or found.status != "True":
            text = f"the readiness gate {gate.conditionType} is not True"
            at = found.lastTransitionTime if found is not None else None
            yield Reason("gate", text, since=at.timestamp() if at is not None else None)


def _resize(facts: PodFacts) -> Iterator[Reason]:
    if (pending := facts.pending) is not None:
        text = f"its resize is {pending.reason}: {pending.message}"
        yield Reason("resize", text, blocks=False)
    if facts.resize_error:
        text = f"its resize failed: {facts.resize_error}"
        yield Reason("resize", text, until=facts.resize_hold, blocks=False)
