"""Explain the pods of this node: the facts of a worker, with those of the pods that it waits for.

Loaded when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lightkube.models.core_v1 import Pod

from kubelet_trio.agent.parts import Parts
from kubelet_trio.model import PodUid, pod_key, pod_uid
from kubelet_trio.pods import (
    Blocker,
    EndReason,
    PodFacts,
    PodFailure,
    PodStage,
    PodWhy,
    TerminationRequest,
    explain,
)
from kubelet_trio.sources import manifest_of
from kubelet_trio.supervision import ChildState


def explain_pod(parts: Parts, uid: PodUid) -> PodWhy | None:
    """Return why a pod is as it is; None if the node has none of that UID. Never blocks."""
    worker, published = parts.workers.get(uid), parts.reports.statuses.pods.value.get(uid)
    if worker is not None:
        facts = worker.parts().facts()
        waits_for = tuple(_blocker(parts, each) for each in facts.waits_for)
        facts = replace(facts, waits_for=waits_for, admission=_admission(parts, facts))
    elif published is not None:
        facts = _refused(parts, published)
    else:
        return None
    problems = tuple(_problems(parts, facts.pod))
    request = facts.request
    if request is not None and request.reason is EndReason.REJECTED:
        stay, _ = parts.pods.registry.beside({uid})
        facts = replace(facts, hints=parts.pods.registry.admitter.hints(facts.pod, stay))
    told = replace(
        facts,
        manifest=manifest_of(facts.pod),
        worker_failure=_failure(parts, facts.pod),
        manifest_problems=problems,
    )
    return explain(told)


def _failure(parts: Parts, pod: Pod) -> str:
    """Return why a pod's worker has crashed, "" unless it waits for its restart."""
    name = f"{pod_key(pod)}@{pod_uid(pod)}"
    for child in parts.pods.supervisor.tree().children:
        if child.name == name and child.state in (ChildState.BACKOFF, ChildState.FAILED):
            return child.last_error or "unknown"
    return ""


def _admission(parts: Parts, facts: PodFacts) -> str:
    """Return what the admission of a pod waits for, with the pods that are ended for it."""
    if facts.is_admitted or not facts.admission:
        return facts.admission
    leaving = sorted(
        str(pod_key(worker.pod))
        for worker in parts.workers.values()
        if worker.is_leaving and worker.stage is not PodStage.TERMINATED
    )
    return f"{facts.admission}: {', '.join(leaving)}" if leaving else facts.admission


def _blocker(parts: Parts, blocker: Blocker) -> Blocker:
    """Return what is known of a pod that holds a name."""
    uid = PodUid(blocker.uid)
    worker = parts.workers.get(uid)
    if worker is not None:
        facts = worker.parts().facts()
        failed = facts.teardown
        trouble = failed.waiting.message if failed is not None else facts.remains
        return Blocker(uid, facts.activity, facts.since, facts.doing, trouble)
    trouble = next(
        (text for name, text in parts.supplies.services.remains.problems().items() if uid in name),
        "",
    )
    return replace(blocker, trouble=trouble)


def _refused(parts: Parts, pod: Pod) -> PodFacts:
    """Return the facts of a pod without a worker: it could not be made, or is about to go."""
    status, now = pod.status, parts.setup.seams.clock.time()
    message = (status.message if status is not None else None) or "it has no worker"
    failure = PodFailure((status.reason if status is not None else None) or "", message)
    return PodFacts(
        now=now,
        pod=pod,
        activity="without a worker",
        since=now,
        stage=PodStage.TERMINATED,
        observed=parts.runtime.pleg.get(pod_uid(pod)),
        status=status,
        request=TerminationRequest(pod_uid(pod), EndReason.REJECTED, failure=failure),
    )


def _problems(parts: Parts, pod: Pod) -> Iterator[str]:
    key = str(pod_key(pod))
    for source in parts.pods.desired.infos():
        for problem in source.problems:
            if key in problem.pods:
                yield f"{problem.where}: {problem.message}"
