"""What the tests of resizes ask: resources in few words, what a pod shows, what the kernel has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.harness import (
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)
from tests.harness.api_node import ApiNode
from tests.harness.cgroups import (
    Cgroup,
    Limits,
    Recorder,
    container_cgroup,
    limits_of,
    milli,
    size,
)

Resources = Json  # {"requests": {"cpu": ..., "memory": ...}, "limits": {...}}
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"

# Resources in few words


def res(cpu: str = "", memory: str = "") -> Resources:
    """Return resources from `request/limit` of CPU and of memory; either may be missing."""
    found: Resources = {}
    for name, pair in (("cpu", cpu), ("memory", memory)):
        for kind, amount in zip(("requests", "limits"), f"{pair}/".split("/"), strict=False):
            if amount:
                found.setdefault(kind, {})[name] = amount
    return found


def exactly(cpu: str, memory: str) -> Resources:
    """Return resources with equal requests and limits."""
    return res(f"{cpu}/{cpu}", f"{memory}/{memory}")


def amount(resources: Resources, kind: str, name: str) -> int:
    """Return thousandths of a core or bytes, 0 without one; a missing request is the limit."""
    text = resources.get(kind, {}).get(name, "")
    if not text:
        return amount(resources, "limits", name) if kind == "requests" else 0
    return milli(text) if name == "cpu" else size(text)


def container_limits(resources: Resources) -> Limits:
    return limits_of(
        amount(resources, "requests", "cpu"),
        amount(resources, "limits", "cpu"),
        amount(resources, "limits", "memory"),
    )


def pod_limits(all_of_them: Sequence[Resources]) -> Limits:
    """Return a pod's limits: sums, and no limit of a resource that some container has none of."""

    def limit(name: str) -> int:
        amounts = [amount(one, "limits", name) for one in all_of_them]
        return sum(amounts) if all(amounts) else 0

    request = sum(amount(one, "requests", "cpu") for one in all_of_them)
    return limits_of(request, limit("cpu"), limit("memory"))


def sized(name: str, resources: Resources, script: str = "", **more: Any) -> Json:
    return container(name, script or forever(), resources=resources, **more)


def pod_of(name: str, *all_of_them: Resources, **spec: Any) -> Json:
    """Return a pod of containers c0, c1, ..."""
    return pod(name, *(sized(f"c{n}", one) for n, one in enumerate(all_of_them)), **spec)


def patch_of(*all_of_them: Resources) -> Json:
    """Return a resize of containers c0, c1, ..."""
    return {"containers": [{"name": f"c{n}", "resources": r} for n, r in enumerate(all_of_them)]}


# What a pod says


def resize_conditions(pod: Json) -> dict[str, tuple[str, str, int]]:
    """Return reason, message and observedGeneration of the conditions of resizes that are True."""
    return {
        c["type"]: (c.get("reason", ""), c.get("message", ""), c.get("observedGeneration", 0))
        for c in pod["status"].get("conditions", ())
        if c["type"] in (PENDING, IN_PROGRESS) and c["status"] == "True"
    }


def is_resized(pod: Json) -> bool:
    """Whether the newest spec is actuated: what upstream's own tests wait for."""
    is_seen = pod["status"].get("observedGeneration", 0) >= pod["metadata"]["generation"]
    return bool(is_seen and not resize_conditions(pod) and is_ready(pod))


def problems_of(pod: Json) -> list[str]:
    """Return where the containers' statuses differ from the spec, key for key."""
    found = []
    for kind in ("initContainers", "containers"):
        for spec in pod["spec"].get(kind, ()):
            status, wanted = container_status(pod, spec["name"]), spec.get("resources", {})
            if status.get("resources", {}) != wanted:
                found.append(f"{spec['name']}: resources {status.get('resources')} not {wanted}")
            if status.get("allocatedResources", {}) != wanted.get("requests", {}):
                found.append(f"{spec['name']}: allocated {status.get('allocatedResources')}")
    return found


def told(node: ApiNode, name: str) -> list[tuple[str, int]]:
    """Return reason and generation of the events about resizes, as they came."""
    return [
        (event["reason"], int(re.findall(r'"generation":(\d+)', event["message"])[0]))
        for event in node.events(name)
        if event["reason"].startswith("Resize")
    ]


# What the kernel has


@dataclass(frozen=True, slots=True)
class Inside:
    """The running containers of a pod: their cgroups, and the PIDs of their first processes."""

    cgroups: dict[str, Cgroup]
    pids: dict[str, int]

    @property
    def pod(self) -> Cgroup:
        return next(iter(self.cgroups.values())).parent

    def differences(self, wanted: dict[str, Limits]) -> dict[str, Limits]:
        """Return the limits that are not as wanted; the pod's has the name ""."""
        found = {**self.cgroups, "": self.pod}
        return {name: found[name].limits() for name, w in wanted.items() if not found[name].has(w)}


def inside(cri: CriClient, name: str) -> Inside:
    live = live_containers(cri, name)
    assert live, f"no container of {name} runs"
    return Inside(
        {c: container_cgroup(cri, i) for c, i in live.items()},
        {c: cri.container_pid(i) for c, i in live.items()},
    )


def wanted_of(*all_of_them: Resources) -> dict[str, Limits]:
    each = {f"c{n}": container_limits(one) for n, one in enumerate(all_of_them)}
    return {**each, "": pod_limits(all_of_them)}


@contextmanager
def recorded(cri: CriClient, name: str, *, restarts: Sequence[str] = ()) -> Iterator[Recorder]:
    """Record a pod's limits during a block: none above the pod's, and no process replaced.

    `restarts` names the containers that the block restarts.
    """
    before = inside(cri, name)
    with Recorder(before.pod) as recorder:
        yield recorder
    assert recorder.above() == []
    after = inside(cri, name)
    changed = {c for c in before.pids if after.pids.get(c) != before.pids[c]}
    assert changed == set(restarts)


def _runs(pod: Json) -> bool:
    """Whether no container of a running pod is being restarted."""
    status = pod["status"]
    return status["phase"] != "Running" or all(
        "running" in s["state"] for s in status["containerStatuses"]
    )


def resized(
    node: ApiNode, cri: CriClient, name: str, patch: Json, wanted: dict[str, Limits]
) -> Json:
    """Resize a pod, and return it when it is done; every limit is as wanted then."""
    asked = node.resize(name, patch)
    generation = asked["metadata"]["generation"]
    done = node.wait(name, lambda pod: is_resized(pod) and _runs(pod), what="resized")
    assert inside(cri, name).differences(wanted) == {}
    assert problems_of(done) == []
    eventually(
        lambda: told(node, name)[-1:] == [("ResizeCompleted", generation)],
        what=f"ResizeCompleted of {generation} at the end of {told(node, name)}",
    )
    assert told(node, name)[-2:] == [
        ("ResizeStarted", generation),
        ("ResizeCompleted", generation),
    ]
    return done


# Pods

GUARANTEED = [exactly("100m", "32Mi"), exactly("50m", "48Mi"), exactly("150m", "64Mi")]
GROWN = [exactly("200m", "64Mi"), exactly("100m", "64Mi"), exactly("250m", "96Mi")]
MIXED = [exactly("150m", "24Mi"), exactly("150m", "32Mi"), exactly("50m", "128Mi")]
BURSTABLE = [res("50m/100m", "32Mi/64Mi")] * 3
SIX = [res(f"{n}0m/{n}00m", f"{8 * n}Mi/{16 * n}Mi") for n in range(2, 8)]
SIX_MIXED = [res(f"{n}0m/{n}00m", f"{8 * n}Mi/{16 * n}Mi") for n in (7, 5, 2, 3, 6, 4)]
MEMORY: Json = {"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]}


def in_use(name: str, node: ApiNode) -> None:
    """Start a pod whose first container has 40 MiB in use, in a volume in memory."""
    mount = [{"name": "m", "mountPath": "/m"}]
    fill = forever("head -c 41943040 /dev/zero > /m/f")
    check = {"exec": {"command": ["sh", "-c", "[ $(stat -c %s /m/f) = 41943040 ]"]}}
    node.create(
        pod(
            name,
            sized(
                "c0",
                res("50m/200m", "32Mi/96Mi"),
                script=fill,
                volumeMounts=mount,
                readinessProbe={**check, "periodSeconds": 1},
            ),
            sized("c1", res("50m/200m", "32Mi/96Mi")),
            **MEMORY,
        )
    )
    node.wait(name, is_ready, what="has written its memory")


SHRUNK = [res("50m/200m", "16Mi/24Mi"), res("50m/100m", "16Mi/64Mi")]
KEPT = [res("50m/200m", "32Mi/96Mi")] * 2


def has_error(pod: Json) -> bool:
    return resize_conditions(pod).get(IN_PROGRESS, ("",))[0] == "Error"


def node_cpu(node: ApiNode) -> str:
    found = node.kube.server.store.all("Node")[0]["status"]["allocatable"]["cpu"]
    return str(found)
