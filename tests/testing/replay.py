"""The recorded requests to an API server 1.36.2, as objects to send once more."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("data") / "api-server-1.36.2.jsonl"
NOW = "2026-11-22T10:00:00Z"
LONG = "x" * 300
REMOVED, UNCHANGED = "(removed)", "(as it is)"

NODE_STATUS: dict[str, Any] = {
    "capacity": {
        "cpu": "2", "memory": "1Gi", "pods": "110", "ephemeral-storage": "1Gi",
        "hugepages-2Mi": "0",
    },
    "allocatable": {"cpu": "2", "memory": "1Gi", "pods": "110"},
    "conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m",
        "lastHeartbeatTime": NOW, "lastTransitionTime": NOW,
    }],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    "nodeInfo": {
        "machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "k", "osImage": "o",
        "containerRuntimeVersion": "containerd://1", "kubeletVersion": "v1.36.2",
        "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
        "swap": {"capacity": 1024},
    },
    "images": [{"names": ["a@sha256:0", "a:1"], "sizeBytes": 5}],
    "volumesInUse": ["kubernetes.io/csi/d^v"],
    "volumesAttached": [{"name": "kubernetes.io/csi/d^v", "devicePath": "/dev/x"}],
    "phase": "Running",
    "runtimeHandlers": [
        {"name": "", "features": {"recursiveReadOnlyMounts": True, "userNamespaces": True}}
    ],
    "features": {"supplementalGroupsPolicy": True},
    "declaredFeatures": ["GuaranteedQoSPodCPUResize"],
}  # fmt: skip
NODE: dict[str, Any] = {
    "metadata": {
        "name": "probe", "labels": {"kubernetes.io/hostname": "probe"}, "annotations": {"a/b": "c"},
    },
    "spec": {
        "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "providerID": "x://y",
        "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": NOW}],
        "unschedulable": True,
    },
    "status": NODE_STATUS,
}  # fmt: skip
LEASE: dict[str, Any] = {
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "holderIdentity": "probe", "leaseDurationSeconds": 40, "leaseTransitions": 0,
        "renewTime": "2026-11-22T10:00:00.000000Z", "acquireTime": "2026-11-22T10:00:00.000000Z",
    },
}  # fmt: skip
EVENT: dict[str, Any] = {
    "metadata": {"name": "probe.1", "namespace": "default"},
    "involvedObject": {
        "kind": "Pod", "namespace": "default", "name": "p", "uid": "u", "apiVersion": "v1",
        "resourceVersion": "1", "fieldPath": "spec.containers{c}",
    },
    "reason": "R", "message": "m", "source": {"component": "kubelet", "host": "n"},
    "firstTimestamp": NOW, "lastTimestamp": NOW, "count": 1, "type": "Normal", "eventTime": None,
    "reportingComponent": "kubelet", "reportingInstance": "n",
}  # fmt: skip
CSI_NODE: dict[str, Any] = {
    "metadata": {
        "name": "probe", "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "x"},
    },
    "spec": {"drivers": [{
        "name": "d.example.com", "nodeID": "n", "topologyKeys": ["a/b"],
        "allocatable": {"count": 5},
    }]},
}  # fmt: skip
POD: dict[str, Any] = {
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "nodeName": "probe",
        "initContainers": [{"name": "i", "image": "x"}],
        "containers": [{
            "name": "c", "image": "x",
            "resources": {"requests": {"cpu": "10m", "example.com/gpu": "1"},
                          "limits": {"example.com/gpu": "1"}},
        }],
    },
}  # fmt: skip
_TERMINATED = {"exitCode": 0, "reason": "Completed", "startedAt": NOW, "finishedAt": NOW,
               "containerID": "containerd://a"}  # fmt: skip
POD_STATUS: dict[str, Any] = {
    "phase": "Running", "message": "m", "reason": "r", "startTime": NOW, "hostIP": "10.0.0.1",
    "hostIPs": [{"ip": "10.0.0.1"}], "podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}],
    "qosClass": "Burstable", "observedGeneration": 1, "nominatedNodeName": "",
    "conditions": [{
        "type": "Ready", "status": "True", "reason": "R", "message": "m", "lastProbeTime": None,
        "lastTransitionTime": NOW, "observedGeneration": 1,
    }],
    "resize": "",
    "initContainerStatuses": [{
        "name": "i", "image": "x", "imageID": "y", "ready": True, "restartCount": 0,
        "started": False, "containerID": "containerd://a", "state": {"terminated": _TERMINATED},
    }],
    "containerStatuses": [{
        "name": "c", "image": "x", "imageID": "y", "ready": True, "started": True,
        "restartCount": 0, "containerID": "containerd://b",
        "state": {"running": {"startedAt": NOW}},
        "lastState": {"terminated": {
            "exitCode": 1, "signal": 9, "reason": "Error", "startedAt": NOW, "finishedAt": NOW,
        }},
        "allocatedResources": {"cpu": "10m"}, "resources": {"requests": {"cpu": "10m"}},
        "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}},
        "volumeMounts": [{
            "name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "Disabled",
        }],
        "stopSignal": "SIGTERM",
        "allocatedResourcesStatus": [{
            "name": "example.com/gpu", "resources": [{"resourceID": "r", "health": "Healthy"}],
        }],
    }],
    "resources": {"requests": {"cpu": "10m"}}, "allocatedResources": {"cpu": "10m"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request and its answer."""

    kind: str
    request: str
    path: str
    value: Any
    code: int
    reason: str
    message: str

    def body(self, base: dict[str, Any]) -> dict[str, Any]:
        """Return `base` with the one field removed or changed."""
        whole = copy.deepcopy(base)
        if self.value == UNCHANGED:
            return whole
        *parents, last = _steps(base, self.path)
        at: Any = whole
        for step in parents:
            at = at[step]
        if self.value == REMOVED:
            del at[last]
        else:
            at[last] = LONG if is_long(self.value) else copy.deepcopy(self.value)
        return whole

    def __str__(self) -> str:
        return f"{self.kind} {self.request} {self.path} = {self.value!r}"


def is_long(value: object) -> bool:
    return isinstance(value, str) and value.endswith("(300 characters)")


def recorded() -> Iterator[Recorded]:
    """Yield every request in the order of the record."""
    for line in RECORDED.read_text().splitlines():
        row = json.loads(line)
        yield Recorded(
            row["kind"], row["request"], row["path"], row["value"], row["code"],
            row.get("reason") or "", row.get("message") or "",
        )  # fmt: skip


def shortened(message: str) -> str:
    """Return a message as the record has it, long values cut."""
    return re.sub("x{300}", "x...", message)


def _steps(obj: Any, path: str) -> Sequence[str | int]:
    """Return the keys and indices of a path; keys may have dots."""
    steps: list[str | int] = []
    left = path
    while left:
        if match := re.match(r"\[(\d+)\]", left):
            step: str | int = int(match[1])
            left = left[match.end() :]
        else:
            keys = [k for k in obj if re.match(rf"\.{re.escape(k)}(?=[.\[]|$)", left)]
            longest: str = max(keys, key=len)
            left = left[len(longest) + 1 :]
            step = longest
        steps.append(step)
        obj = obj[step]
    return steps
