"""The floor in a cluster: what a node's pods take of the API server and the runtime alone.

It looks like a node: it watches the pods that are bound to it, makes the bare CRI calls of
`bench.bare` for each in a thread of the pod's own, patches one status when the container has
started and one when it has ended, and deletes the object once nothing is left. It fetches no
volume, knows no restart and no probe, and forgets everything when it ends.
"""

from __future__ import annotations

import os
import select
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bench.bare import GRACE, container_config, sandbox_config
from tests.harness import Containerd, CriClient
from tests.harness.cri import CONTAINER_NAME, POD_NAME, POD_UID
from tests.harness.feed import Feed
from tests.harness.kube import KubeClient
from tests.harness.pods import Json

_NODES = "/api/v1/nodes"
_WAKE = 0.5  # seconds after which a thread that waits for an exit looks whether all is over


class BareNode:
    """A node of bare calls, from `start()` to `close()`."""

    name = "the floor"

    def __init__(
        self, name: str, kubeconfig: Path, base: Path, containerd: Containerd, most: int
    ) -> None:
        """`kubeconfig` is the node's; `most` is how many pods it has at a time."""
        self._node, self._kubeconfig, self._base = name, kubeconfig, base
        self._cgroup = f"{containerd.layout.cgroup}/kubepods/besteffort"
        self._cri = CriClient(containerd.socket)
        self._kube = KubeClient(kubeconfig)
        # A pod has one for its life, and one that waits for its exit.
        self._threads = ThreadPoolExecutor(2 * most)
        self._ends = threading.Event()
        self._feed: Feed | None = None
        self._pods: dict[str, tuple[str, str]] = {}  # UID -> sandbox and container
        self._lives: list[Future[None]] = []
        self._seen: set[str] = set()  # UIDs
        self._ending: set[str] = set()

    def start(self) -> None:
        """Register, Ready at once, and follow the pods."""
        self._kube.create(_NODES, {"metadata": {"name": self._node}})
        status = {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "capacity": {"cpu": "2", "memory": "4Gi", "pods": "500"},
        }
        self._kube.patch(f"{_NODES}/{self._node}/status", {"status": status})
        self._feed = Feed(
            self._kubeconfig,
            f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self._node}",
            change=self._take,
        )

    def close(self) -> None:
        """Forget the pods and end; the runtime's owner removes what they left.

        Raises what the life of a pod has raised.
        """
        self._ends.set()
        if self._feed is not None:
            self._feed.close()
        self._threads.shutdown()
        self._kube.close()
        self._cri.close()
        for life in self._lives:
            life.result()

    def _take(self, event: Json) -> None:
        """See one change of a pod, in the feed's thread."""
        pod = event["object"]
        uid = pod["metadata"]["uid"]
        if event["type"] == "DELETED":
            return
        if uid not in self._seen:
            self._seen.add(uid)
            self._lives.append(self._threads.submit(self._run, pod))
        elif "deletionTimestamp" in pod["metadata"] and uid not in self._ending:
            self._ending.add(uid)
            self._lives.append(self._threads.submit(self._end, pod))

    def _run(self, pod: Json) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        config = sandbox_config(self._base / "logs", self._cgroup, name, uid)
        sandbox = self._cri.run_sandbox(config)
        wanted = container_config(0)
        # By which the benchmark finds it.
        wanted.labels = {CONTAINER_NAME: "main", POD_NAME: name, POD_UID: uid}
        container = self._cri.create_container(sandbox, wanted, config)
        self._cri.start_container(container)
        self._pods[uid] = sandbox, container
        self._patch(pod, {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}})
        exits = os.pidfd_open(self._cri.container_pid(container))
        self._lives.append(self._threads.submit(self._watch, pod, exits))

    def _watch(self, pod: Json, exits: int) -> None:
        """Wait for the exit of a container that nobody has ended, and tell of it."""
        try:
            while not self._ends.is_set():
                if select.select([exits], [], [], _WAKE)[0]:
                    break
        finally:
            os.close(exits)
        if not self._ends.is_set() and pod["metadata"]["uid"] not in self._ending:
            self._patch(pod, {"terminated": {"exitCode": 137, "reason": "Error"}})

    def _end(self, pod: Json) -> None:
        sandbox, container = self._pods.pop(pod["metadata"]["uid"])
        self._cri.stop_container(container, GRACE)
        self._cri.stop_sandbox(sandbox)
        self._kube.delete(_path(pod), gracePeriodSeconds=0)
        self._cri.remove_stopped_sandbox(sandbox)

    def _patch(self, pod: Json, state: Json) -> None:
        container = {
            "name": "main",
            "state": state,
            "ready": "running" in state,
            "restartCount": 0,
            "image": "busybox",
            "imageID": "",
        }
        # Running also after an exit, as under restartPolicy Always.
        status = {"phase": "Running", "containerStatuses": [container]}
        self._kube.patch(f"{_path(pod)}/status", {"status": status})


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
