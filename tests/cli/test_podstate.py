"""READY, STATUS and RESTARTS, state by state, as kubectl's printer computes them."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.cli.podstate import Json, grace_left, summarize

NOW = 1_767_366_245.0  # 2026-01-02T15:04:05Z
RUNNING = {"running": {"startedAt": "2026-01-02T15:00:00Z"}}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def ended(code: int = 0, reason: str = "", signal: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = {"exitCode": code}
    body |= {"reason": reason} if reason else {}
    body |= {"signal": signal} if signal else {}
    return {"terminated": body}


def status(name: str, state: Any, *, ready: bool = False, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "ready": ready, "restartCount": 0, **more}


def pod(
    *mains: Any,
    inits: tuple[Any, ...] = (),
    sidecars: tuple[str, ...] = (),
    phase: str = "Running",
    conditions: tuple[str, ...] = (),
    count: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    names = [s["name"] for s in inits]
    return {
        "metadata": more.pop("metadata", {}),
        "spec": {
            "containers": [{"name": f"m{n}"} for n in range(count or len(mains))],
            "initContainers": [
                {"name": n, **({"restartPolicy": "Always"} if n in sidecars else {})} for n in names
            ],
        },
        "status": {
            "phase": phase,
            "conditions": [{"type": c, "status": "True"} for c in conditions],
            "containerStatuses": list(mains),
            "initContainerStatuses": list(inits),
            **more,
        },
    }


UP = status("a", RUNNING, ready=True)
LEAVING = {"deletionTimestamp": "2026-01-02T15:04:00Z"}


@pytest.mark.parametrize(
    ("thing", "ready", "shown"),
    [
        (pod(UP), "1/1", "Running"),
        (pod(UP, status("b", RUNNING)), "1/2", "Running"),
        (pod(phase="Pending", count=1), "0/1", "Pending"),
        (
            pod(status("a", waiting("ContainerCreating")), phase="Pending"),
            "0/1",
            "ContainerCreating",
        ),
        (pod(status("a", waiting("CrashLoopBackOff"))), "0/1", "CrashLoopBackOff"),
        (pod(status("a", waiting("ImagePullBackOff")), UP), "1/2", "ImagePullBackOff"),
        (pod(status("a", ended(0, "Completed")), phase="Succeeded"), "0/1", "Completed"),
        (pod(status("a", ended(1, "Error")), phase="Failed"), "0/1", "Error"),
        (pod(status("a", ended(137, "OOMKilled"))), "0/1", "OOMKilled"),
        (pod(status("a", ended(3))), "0/1", "ExitCode:3"),
        (pod(status("a", ended(137, signal=9))), "0/1", "Signal:9"),
        (pod(status("a", ended(0, "Completed")), UP), "1/2", "NotReady"),
        (pod(status("a", ended(0, "Completed")), UP, conditions=("Ready",)), "1/2", "Running"),
        # The first container in trouble names it.
        (pod(status("a", ended(1, "Error")), status("b", waiting("X"))), "0/2", "Error"),
        (pod(UP, reason="Evicted", phase="Failed"), "1/1", "Evicted"),
        (pod(UP, metadata=LEAVING), "1/1", "Terminating"),
        (pod(UP, metadata=LEAVING, phase="Succeeded"), "1/1", "Succeeded"),
        (pod(UP, metadata=LEAVING, reason="NodeLost"), "1/1", "Unknown"),
        # Init containers.
        (pod(count=1, inits=(status("i", RUNNING), status("j", {}))), "0/1", "Init:0/2"),
        (pod(count=1, inits=(status("i", ended()), status("j", RUNNING))), "0/1", "Init:1/2"),
        (
            pod(count=1, inits=(status("i", waiting("PodInitializing")),), phase="Pending"),
            "0/1",
            "Init:0/1",
        ),
        (
            pod(count=1, inits=(status("i", waiting("CrashLoopBackOff")),)),
            "0/1",
            "Init:CrashLoopBackOff",
        ),
        (pod(count=1, inits=(status("i", ended(1, "Error")),)), "0/1", "Init:Error"),
        (pod(count=1, inits=(status("i", ended(2)),)), "0/1", "Init:ExitCode:2"),
        (pod(count=1, inits=(status("i", ended(137, signal=9)),)), "0/1", "Init:Signal:9"),
        (
            pod(status("a", waiting("PodInitializing")), inits=(status("i", ended()),)),
            "0/1",
            "PodInitializing",
        ),
        # Sidecars count as containers.
        (
            pod(UP, inits=(status("s", RUNNING, ready=True, started=True),), sidecars=("s",)),
            "2/2",
            "Running",
        ),
        (pod(UP, inits=(status("s", RUNNING, started=True),), sidecars=("s",)), "1/2", "Running"),
        (
            pod(count=1, inits=(status("s", RUNNING, started=False),), sidecars=("s",)),
            "0/2",
            "Init:0/1",
        ),
        # A sidecar that crashes later does not make the pod initialize again.
        (
            pod(
                UP,
                inits=(status("s", waiting("CrashLoopBackOff"), started=False),),
                sidecars=("s",),
                conditions=("Initialized",),
            ),
            "1/2",
            "Init:CrashLoopBackOff",
        ),
    ],
)
def test_a_pod_shows_as_in_kubectl(thing: Any, ready: str, shown: str) -> None:
    summary = summarize(thing, NOW)
    assert (summary.ready, summary.status) == (ready, shown)


def restarted(name: str, count: int, finished: str = "") -> dict[str, Any]:
    last = {"lastState": {"terminated": {"finishedAt": finished}}} if finished else {}
    return {**status(name, RUNNING, ready=True, **last), "restartCount": count}


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        (pod(UP), "0"),
        (pod(restarted("a", 2)), "2"),
        (
            pod(
                restarted("a", 2, "2026-01-02T15:00:05Z"),
                restarted("b", 1, "2026-01-02T14:00:05Z"),
            ),
            "3 (4m ago)",
        ),
        # Ordinary init containers count only while they are what the pod does.
        (pod(UP, inits=({**status("i", ended()), "restartCount": 4},)), "0"),
        (pod(count=1, inits=({**status("i", RUNNING), "restartCount": 4},)), "4"),
        (
            pod(
                UP,
                inits=({**restarted("s", 3, "2026-01-02T15:04:00Z"), "started": True},),
                sidecars=("s",),
            ),
            "3 (5s ago)",
        ),
    ],
)
def test_restarts_are_summed_with_the_time_of_the_last(thing: Any, shown: str) -> None:
    assert summarize(thing, NOW).restarts == shown


def test_a_pod_without_any_status_is_not_a_failure() -> None:
    assert summarize({}, NOW).status == "Unknown"


@pytest.mark.parametrize(
    ("thing", "left"),
    [
        (pod(UP), None),
        (pod(UP, metadata={"deletionTimestamp": "1970-01-01T00:01:40Z"}), 12.0),
        (pod(UP, metadata={"deletionTimestamp": "1970-01-01T00:01:20Z"}), 0.0),
        (pod(phase="Failed", metadata={"deletionTimestamp": "1970-01-01T00:01:40Z"}), None),
    ],
)
def test_the_grace_that_is_left_of_a_terminating_pod(thing: Json, left: float | None) -> None:
    assert grace_left(thing, 88.0) == left
