"""A node that ran under the Go kubelet is taken over, with all, half or none of our records.

The pods are started by CRI as that kubelet starts them, and their statuses are what it told of
such a pod (tests/golden). Every status that leaves from then on is looked at, and no process is
another than before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Container, PodStatus

from kubelet_trio.containers import container_hash
from kubelet_trio.cri import v1
from kubelet_trio.daemon import Apis
from kubelet_trio.kube import ROUTES, from_json
from kubelet_trio.model import SystemClock, rfc3339
from tests.agent.test_taken_over import WatchedKube
from tests.golden.corpus import recorded
from tests.harness import BUSYBOX, Containerd, CriClient, Json, eventually, forever, leftovers
from tests.harness.inside import cluster_agent
from tests.harness.machine import PATIENCE

NAMES = ("api", "cache", "db", "web")
RESTARTED = "web"
LOOKED = 10.0  # seconds of each agent: several rounds of everything that it does by itself
# By the rule that upstream's own vectors are tested with (tests/containers/test_hashing.py).
HASH = f"{container_hash(Container(name='c', image=BUSYBOX)):x}"


class GoNode:
    """What the Go kubelet left: pods that run, dead ones of their names, statuses that it told."""

    def __init__(self, containerd: Containerd, cri: CriClient, base: Path) -> None:
        self.cri, self.base = cri, base
        self.cgroup = containerd.layout.cgroup
        self.kube = WatchedKube(clock=SystemClock())
        self.before: dict[str, PodStatus] = {}
        self.pids: dict[str, int] = {}
        self.uids: dict[str, str] = {}

    def arrange(self) -> None:
        for name in NAMES:
            self._leave_remains(name)
            body: Json = {
                "metadata": {"name": name},
                "spec": {
                    "nodeName": "node",
                    "containers": [{"name": "c", "image": BUSYBOX, "command": self._command()}],
                },
            }
            made = self.kube.server.create(ROUTES["Pod"], body, "default")
            uid = self.uids[name] = made["metadata"]["uid"]
            sandbox, config = self._sandbox(name, uid)
            dead = self._container(sandbox, config, 0) if name == RESTARTED else ""
            if dead:
                self._end(dead)
            running = self._container(sandbox, config, 1 if dead else 0)
            self.pids[running] = self.cri.container_pid(running)
            status = self._status(sandbox, running, dead)
            self.kube.server.patch(
                ROUTES["Pod"], name, {"status": status}, "default", subresource="status"
            )
            self.before[name] = from_json(status, PodStatus)

    @staticmethod
    def _command() -> list[str]:
        return ["sh", "-c", forever()]

    def _sandbox(self, name: str, uid: str) -> tuple[str, v1.PodSandboxConfig]:
        logs = self.base / "logs" / f"default_{name}_{uid}"
        logs.mkdir(parents=True)
        config = v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name=name, uid=uid, namespace="default", attempt=0),
            hostname=name,
            log_directory=str(logs),
            labels=_labels(name, uid),
            annotations={
                "kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z",
                "kubernetes.io/config.source": "api",
            },
            linux=v1.LinuxPodSandboxConfig(
                cgroup_parent=f"{self.cgroup}/kubepods/besteffort/pod{uid}"
            ),
        )
        return self.cri.run_sandbox(config), config

    def _container(self, sandbox: str, config: v1.PodSandboxConfig, attempt: int) -> str:
        assert config.metadata is not None
        (Path(config.log_directory) / "c").mkdir(exist_ok=True)
        made = self.cri.create_container(
            sandbox,
            v1.ContainerConfig(
                metadata=v1.ContainerMetadata(name="c", attempt=attempt),
                image=v1.ImageSpec(image=BUSYBOX),
                command=self._command(),
                log_path=f"c/{attempt}.log",
                labels={**config.labels, "io.kubernetes.container.name": "c"},
                annotations={
                    "io.kubernetes.container.hash": HASH,
                    "io.kubernetes.container.restartCount": str(attempt),
                    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
                    "io.kubernetes.container.terminationMessagePolicy": "File",
                    "io.kubernetes.pod.terminationGracePeriod": "30",
                },
            ),
            config,
        )
        self.cri.start_container(made)
        return made

    def _end(self, container: str) -> None:
        self.cri.kill(container)
        exited = v1.ContainerState.CONTAINER_EXITED
        eventually(lambda: self.cri.container_status(container).state == exited)

    def _leave_remains(self, name: str) -> None:
        """Leave a dead pod of the name, of another UID."""
        sandbox, config = self._sandbox(name, f"{name}-before")
        self._end(self._container(sandbox, config, 0))
        self.cri.stop_sandbox(sandbox)

    def _status(self, sandbox: str, running: str, dead: str) -> Json:
        """Return what the Go kubelet told of a plain pod, with this one's ids and times."""
        network = self.cri.sandbox_status(sandbox).network
        assert network is not None
        now = self.cri.container_status(running)
        words = {"TIME": _time(now.started_at), "IP": network.ip, "IMAGE": BUSYBOX}
        words |= {"SHA": now.image_ref, "containerd://CID": f"containerd://{running}"}
        text = json.dumps(recorded("pods")["args"]["status"])
        for word, value in words.items():
            text = text.replace(f'"{word}"', json.dumps(value))
        status: Json = json.loads(text)
        if dead:
            was = self.cri.container_status(dead)
            ended = {
                "containerID": f"containerd://{dead}",
                "exitCode": 137,
                "reason": "Error",
                "startedAt": _time(was.started_at),
                "finishedAt": _time(was.finished_at),
            }
            [main] = status["containerStatuses"]
            main.update(restartCount=1, lastState={"terminated": ended})
        return status

    def records(self) -> list[Path]:
        return sorted((self.base / "root" / "pods").glob("*/kubelet-trio.json"))

    async def run_agent(self, containerd: Containerd) -> None:
        """Let an agent have the node for a while, and then go without a word."""
        api = self.kube.node("node")
        agent = cluster_agent(containerd, self.base, {}, Apis(api, api, "fake"))
        with trio.fail_after(60 * PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(agent.run)
                await agent.wait_delivered()
                await trio.sleep(LOOKED * PATIENCE)
                assert len(agent.pods.value) == len(NAMES)
                nursery.cancel_scope.cancel()

    def wrong(self) -> Iterator[str]:
        """Yield what was told and is not so."""
        for name, status in self.kube.told:
            [was], [now] = self.before[name].containerStatuses or [], status.containerStatuses or []
            for told in ("state", "lastState", "restartCount", "containerID", "ready", "started"):
                if getattr(now, told) != getattr(was, told):
                    yield f"{name}: {told} is {getattr(now, told)}, and was {getattr(was, told)}"
            for condition in status.conditions or ():
                if condition.status != "True":
                    yield f"{name}: {condition.type} is {condition.status}: {condition.message}"

    def alive(self) -> dict[str, int]:
        """Return what runs now: container -> PID."""
        running = v1.ContainerState.CONTAINER_RUNNING
        found = [c.id for c in self.cri.containers() if c.state == running]
        return {container: self.cri.container_pid(container) for container in found}


def _labels(name: str, uid: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": uid,
    }


def _time(nanoseconds: int) -> str:
    return rfc3339(nanoseconds // 10**9)


@pytest.fixture
def go_node(containerd: Containerd, cri: CriClient, tmp_path: Path) -> Iterator[GoNode]:
    node = GoNode(containerd, cri, tmp_path)
    try:
        node.arrange()
        yield node
    finally:
        cri.remove_all()
        leftovers.unmount_under(tmp_path)


async def test_nobody_is_told_a_wrong_thing_and_no_process_is_another(
    go_node: GoNode, containerd: Containerd
) -> None:
    assert go_node.records() == []
    for kept in ("none", "half", "all"):
        for record in go_node.records()[::2] if kept == "half" else []:
            record.unlink()
        await go_node.run_agent(containerd)
        assert list(go_node.wrong()) == [], f"with {kept} of the records"
        assert go_node.alive() == go_node.pids, f"with {kept} of the records"
        assert len(go_node.records()) == len(NAMES)
    # What was dead of earlier pods of their names is gone.
    uids = {sandbox.labels["io.kubernetes.pod.uid"] for sandbox in go_node.cri.sandboxes()}
    assert uids == set(go_node.uids.values())
