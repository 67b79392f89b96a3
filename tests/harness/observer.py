"""Sees every state of pods that an API server tells, and says what must never be seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.harness.feed import Feed
from tests.harness.pods import Json, condition

_ORDER = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}


class Observer:
    """Watches all pods as the user of a kubeconfig, from its making to `close()`.

    `may_change` says of a pod's UID, and of its name, whether something was done to its
    containers. What was found is in `faults`.
    """

    def __init__(self, kubeconfig: Path, may_change: Callable[[str], bool]) -> None:
        self._may_change = may_change
        self._pods: dict[str, Json] = {}
        self.faults: list[str] = []
        self.seen = 0  # states looked at
        self._feed = Feed(kubeconfig, "/api/v1/pods", replace=self._replace, change=self._take)

    def close(self) -> None:
        """End the watch."""
        self._feed.close()

    def _replace(self, pods: list[Json]) -> None:
        there = {pod["metadata"]["uid"] for pod in pods}
        self._pods = {uid: pod for uid, pod in self._pods.items() if uid in there}
        for pod in pods:
            self._take({"type": "MODIFIED", "object": pod})

    def _take(self, event: Json) -> None:
        pod = event["object"]
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        self.seen += 1
        before = self._pods.get(uid)
        if before is not None:
            found = judge(before, pod, may_change=self._may_change(uid) or self._may_change(name))
            self.faults += [f"{name} ({uid}): {fault}" for fault in found]
        if event["type"] == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod


def judge(before: Json, after: Json, *, may_change: bool) -> list[str]:
    """Return what is wrong with two states of one pod that follow each other.

    may_change: something ended a container, so that it may be restarted and not be ready.
    """
    old, new = before.get("status", {}), after.get("status", {})
    faults = []
    phases = old.get("phase", "Pending"), new.get("phase", "Pending")
    ranks = [_ORDER.get(phase, 0) for phase in phases]
    if ranks[1] < ranks[0] or (ranks[0] == 2 and phases[0] != phases[1]):
        faults.append(f"phase went from {phases[0]} to {phases[1]}")
    # That of a mirror pod is of the agent that runs.
    is_mirror = "kubernetes.io/config.mirror" in after["metadata"].get("annotations", {})
    if not is_mirror and old.get("startTime") and old["startTime"] != new.get("startTime"):
        faults.append(f"startTime went from {old['startTime']} to {new.get('startTime')}")
    is_ending = "deletionTimestamp" in after["metadata"] or ranks[1] == 2
    was_ready = condition({"status": old}, "Ready") == "True"
    if was_ready and not (may_change or is_ending) and condition(after, "Ready") != "True":
        faults.append("is not Ready any more, and nothing was done to it")
    told = {entry["name"]: entry for entry in new.get("containerStatuses", ())}
    for entry in old.get("containerStatuses", ()):
        faults += _judge_container(entry, told.get(entry["name"]))
    if not may_change and any(entry["restartCount"] for entry in told.values()):
        faults.append("was restarted, and nothing was done to it")
    return faults


def _judge_container(old: Json, new: Json | None) -> list[str]:
    if new is None:
        return [f"container {old['name']} has no status any more"]
    faults = []
    if new["restartCount"] < old["restartCount"]:
        faults.append(f"restartCount went from {old['restartCount']} to {new['restartCount']}")
    if old.get("containerID") and not new.get("containerID"):
        faults.append(f"container {old['name']} has no ID any more")
    if (
        "terminated" in old["state"]
        and "running" in new["state"]
        and old.get("containerID") == new.get("containerID")
    ):
        faults.append(f"container {old.get('containerID')} runs after its end")
    return faults
