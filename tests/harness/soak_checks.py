"""What a node's pods should be, and whether API server, runtime and disk agree with it.

See `tests/harness/soak.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import grpc

from kubelet_trio.cri import v1
from tests.harness.agent import Agent
from tests.harness.cri import CONTAINER_NAME, POD_NAME, CriClient
from tests.harness.kube import KubeClient
from tests.harness.pods import Json, condition, container_status

NODE = "soak"
_RSS_GROWTH, _FD_GROWTH = 24e6, 30  # of one process between its checkpoints, with as many pods


class DivergedError(Exception):
    """What the node tells and what is differ, or something was seen that must not be."""


@dataclass(slots=True)
class Wanted:
    """A pod as it should be."""

    name: str
    kind: str  # steady, needy, succeeds, fails, static
    uid: str = ""
    edit: int = 0
    killed: set[str] = field(default_factory=set)  # IDs of its containers that were killed
    settled: str = ""  # its container at the last checkpoint, while nothing is to change it

    @property
    def object_name(self) -> str:
        return f"{self.name}-{NODE}" if self.kind == "static" else self.name

    @property
    def phase(self) -> str:
        return {"succeeds": "Succeeded", "fails": "Failed"}.get(self.kind, "Running")


@dataclass(frozen=True, slots=True)
class Usage:
    """The agent at a checkpoint."""

    pid: int
    pods: int
    fds: int
    rss: int

    @classmethod
    def of(cls, agent: Agent, pods: int) -> Usage:
        return cls(agent.pid, pods, len(os.listdir(f"/proc/{agent.pid}/fd")), agent.rss_bytes())


def growth(usages: list[Usage]) -> list[str]:
    """Return where a process has more than at an earlier checkpoint with as many pods."""
    found = []
    for number, late in enumerate(usages):
        for early in usages[:number]:
            if early.pid != late.pid or early.pods < late.pods:
                continue
            if late.fds > early.fds + _FD_GROWTH:
                found.append(f"{early.fds} fds became {late.fds} under {late.pods} pods")
            if late.rss > early.rss + _RSS_GROWTH:
                found.append(f"RSS {early.rss} became {late.rss} under {late.pods} pods")
    return found


class Agreement:
    """Compares the pods that are wanted with what is."""

    def __init__(
        self, wanted: Mapping[str, Wanted], kube: KubeClient, cri: CriClient, agent: Agent
    ) -> None:
        self._pods, self._kube, self._cri, self._agent = wanted, kube, cri, agent

    def differences(self) -> Iterator[str]:
        """Yield in what they do not agree."""
        node = self._kube.get(f"/api/v1/nodes/{NODE}")
        if condition(node, "Ready") != "True":
            yield f"the node is not Ready: {node['status']['conditions']}"
        wanted = {one.object_name: one for one in self._pods.values()}
        listed = self._kube.get("/api/v1/pods", fieldSelector=f"spec.nodeName={NODE}")["items"]
        told = {pod["metadata"]["name"]: pod for pod in listed}
        yield from (f"{name} is told of and not wanted" for name in told.keys() - wanted.keys())
        yield from (f"{name} is wanted and not told of" for name in wanted.keys() - told.keys())
        try:
            containers, sandboxes = self._cri.containers(), self._cri.sandboxes()
        except grpc.RpcError as exc:
            yield f"the runtime does not answer: {exc}"
            return
        live: dict[str, list[v1.Container]] = {name: [] for name in wanted}
        for found in filter(is_running, containers):
            live.setdefault(found.labels[POD_NAME], []).append(found)
        for name in wanted.keys() & told.keys():
            yield from self._differs(wanted[name], told[name], live[name])
        yield from (f"{name} runs and is not wanted" for name in live.keys() - wanted.keys())
        for sandbox in sandboxes:
            if sandbox.labels[POD_NAME] not in wanted:
                yield f"sandbox of {sandbox.labels[POD_NAME]} is left"
        ready = Counter(
            s.labels[POD_NAME] for s in sandboxes if s.state == v1.PodSandboxState.SANDBOX_READY
        )
        for name, one in wanted.items():
            if ready[name] != (one.phase == "Running"):
                yield f"{name} ({one.kind}) has {ready[name]} ready sandboxes"
        yield from self._leftovers(told)

    def _differs(self, wanted: Wanted, told: Json, live: list[v1.Container]) -> Iterator[str]:
        name, status = wanted.object_name, told.get("status", {})
        if wanted.uid and told["metadata"]["uid"] != wanted.uid:
            yield f"{name} has UID {told['metadata']['uid']}, not {wanted.uid}"
        if status.get("phase") != wanted.phase:
            yield f"{name} ({wanted.kind}) is {status.get('phase')}, not {wanted.phase}"
        ready = "True" if wanted.phase == "Running" else "False"
        if condition(told, "Ready") != ready if "conditions" in status else True:
            yield f"{name} has not condition Ready {ready}"
        main = container_status(told, "main")
        if main.get("restartCount") != len(wanted.killed):
            yield f"{name} restartCount {main.get('restartCount')}, {len(wanted.killed)} kills"
        running = [c.id for c in live if c.labels[CONTAINER_NAME] == "main"]
        here = main.get("containerID", "").partition("://")[2]
        if wanted.phase != "Running":
            if running:
                yield f"{name} ({wanted.kind}) still runs"
            return
        if running != [here]:
            yield f"{name} tells of container {here}, there are {running}"
        elif wanted.settled and wanted.settled != here:
            yield f"{name} was restarted: {wanted.settled} became {here}"
        elif wanted.kind == "needy":
            yield from self._reads(wanted, here)
        if wanted.kind == "static" and _edit(told) != wanted.edit:
            yield f"{name} has edit {_edit(told)}, not {wanted.edit}"
        elif running == [here] and not wanted.killed and wanted.kind != "static":
            wanted.settled = here

    def _reads(self, wanted: Wanted, container: str) -> Iterator[str]:
        """Yield whether its secret's file is not what the secret says."""
        try:
            read = self._cri.run(container, "cat", "/secret/edit")
        except (RuntimeError, grpc.RpcError) as exc:
            yield f"{wanted.name}: {exc}"
        else:
            if read != str(wanted.edit):
                yield f"{wanted.name} reads edit {read} of its secret, not {wanted.edit}"

    def _leftovers(self, told: dict[str, Json]) -> Iterator[str]:
        uids = set()
        for one in told.values():
            marks = one["metadata"].get("annotations") or {}
            uids |= {one["metadata"]["uid"], marks.get("kubernetes.io/config.hash", "")}
        for directory in (self._agent.root / "pods").iterdir():
            if directory.name not in uids:
                yield f"the directory of pod {directory.name} is left"


def is_running(found: v1.Container) -> bool:
    return found.state == v1.ContainerState.CONTAINER_RUNNING


def _edit(told: Json) -> int:
    env = told["spec"]["containers"][0].get("env", ())
    return next((int(e["value"]) for e in env if e["name"] == "EDIT"), -1)
