"""One run of the corpus: the agent on a real containerd, with a `FakeKube` as its API server.

All pods start together, and everything is looked at once, `SETTLED` s later. Then the pods are
deleted, and their events are read when they are gone.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import trio
import yaml

from kubelet_trio.agent import Agent
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import Apis, build_agent
from kubelet_trio.kube import ROUTES, KubeError
from kubelet_trio.model import SystemClock
from kubelet_trio.testing import FakeKube
from tests.golden import corpus, images, inside
from tests.golden.api import NodeApi
from tests.golden.corpus import NAMESPACE, NODE
from tests.harness import Containerd, CriClient
from tests.harness.authority import Authority
from tests.harness.pods import Json
from tests.harness.ports import free_port

SETTLED = 75.0  # seconds from the last pod's creation to the look, as when the data was recorded
LATEST = 240.0  # on a machine so busy that not every pod has come as far by then
_CGROUPS = Path("/sys/fs/cgroup")
_POD = "io.kubernetes.pod.name"
_REFUSES_TO_START = "stopsignal"


@dataclass(slots=True)
class Recording:
    """What was seen, as it was: nothing is replaced yet."""

    pods: dict[str, Json] = field(default_factory=dict)
    events: dict[str, list[list[str]]] = field(default_factory=dict)
    containers: dict[str, Json] = field(default_factory=dict)
    node: Json = field(default_factory=dict)
    lease: Json = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Json] = field(default_factory=dict)  # of /stats/summary and /configz
    cgroups: list[str] = field(default_factory=list)
    inside: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # pods that the API server refused
    words: list[tuple[str, str]] = field(default_factory=list)


def recorded_here(containerd: Containerd, base: Path) -> Recording:
    """Run the corpus and return what was seen.

    The variable KUBELET_TRIO_GOLDEN names a file to keep it in; if it is there, it is read.
    """
    kept = os.environ.get("KUBELET_TRIO_GOLDEN")
    if kept and Path(kept).exists():
        return Recording(**json.loads(Path(kept).read_text()))
    made = Run(containerd, base).record()
    if kept:
        Path(kept).write_text(json.dumps(asdict(made), indent=1))
    return made


class Run:
    """The agent, its runtime and its API server, for the time of one recording."""

    def __init__(self, containerd: Containerd, base: Path) -> None:
        self.containerd, self.base = containerd, base
        self.authority = Authority(base)
        self.port = free_port()
        self.seen = Recording()

    def record(self) -> Recording:
        for image in images.corpus_images():
            self.containerd.import_image(image)
        trio.run(self._record)
        return self.seen

    async def _record(self) -> None:
        kube = FakeKube(clock=SystemClock())
        self._fill(kube)
        agent = self._agent(kube)
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            with trio.fail_after(60):
                await kube.wait_until(_node_is_ready)
            # The controller of nodes takes the taint off once it has seen the node ready.
            kube.server.patch(ROUTES["Node"], NODE, {"spec": {"taints": None}})
            self._create_pods(kube)
            with trio.move_on_after(LATEST):
                await trio.sleep(SETTLED)
                await kube.wait_until(_has_settled)
            await self._look(kube)
            await self._delete_pods(kube)
            self.seen.events = _events(kube)
            agent.stop()

    def _agent(self, kube: FakeKube) -> Agent:
        path = self.base / "config.yaml"
        path.write_text(yaml.safe_dump(self._config()))
        named = [
            f"--root-dir={self.base / 'root'}",
            f"--hostname-override={NODE}",
            f"--node-ip={_address()}",  # one family, as the recorded machine had
        ]
        settings = load_settings([f"--config={path}", *named])
        api = kube.node(NODE)
        return build_agent(settings, {}, Apis(api, api, "fake"))

    def _config(self) -> Json:
        """Return the recorded configuration, with this run's places in it."""
        config: Json = dict(corpus.recorded("configz")["kubeletconfig"])
        serving = self.authority.issue("serving", NODE, hosts=("127.0.0.1",))
        manifests = self.base / "manifests"
        manifests.mkdir()
        (self.base / "resolv.conf").write_text("nameserver 10.96.0.10\n")
        config["authentication"]["x509"]["clientCAFile"] = str(self.authority.certificate)
        return config | {
            "address": "127.0.0.1",
            "port": self.port,
            "healthzPort": free_port(),
            "cgroupRoot": self.containerd.layout.cgroup,
            "containerRuntimeEndpoint": self.containerd.endpoint,
            "oomScoreAdj": 0,  # the agent runs in the tests' process
            "podLogsDir": str(self.base / "logs"),
            "resolvConf": str(self.base / "resolv.conf"),
            "staticPodPath": str(manifests),
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
        }

    def _fill(self, kube: FakeKube) -> None:
        """Have the corpus' objects but its pods, and what controllers make."""
        create = kube.server.create
        create(ROUTES["Namespace"], {"metadata": {"name": NAMESPACE}})
        create(ROUTES["ServiceAccount"], {"metadata": {"name": "default"}}, NAMESPACE)
        authority = {"ca.crt": self.authority.certificate.read_text()}
        bundle = {"metadata": {"name": "kube-root-ca.crt"}, "data": authority}
        create(ROUTES["ConfigMap"], bundle, NAMESPACE)
        ports = [{"name": "https", "port": 443, "protocol": "TCP"}]
        service = {"clusterIP": "10.96.0.1", "ports": ports}
        create(ROUTES["Service"], {"metadata": {"name": "kubernetes"}, "spec": service}, "default")
        for kind in ("ConfigMap", "Secret", "Service"):
            for obj in corpus.objects(kind):
                create(ROUTES[kind], obj, NAMESPACE)
        (volume,), (claim,) = map(corpus.objects, ("PersistentVolume", "PersistentVolumeClaim"))
        claim = create(ROUTES["PersistentVolumeClaim"], claim, NAMESPACE)
        meta = claim["metadata"]
        bound = {"name": meta["name"], "namespace": NAMESPACE, "uid": meta["uid"]}
        volume = {**volume, "spec": {**volume["spec"], "claimRef": bound}}
        create(ROUTES["PersistentVolume"], {**volume, "status": {"phase": "Bound"}})
        status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"]}
        kube.server.patch(
            ROUTES["PersistentVolumeClaim"], meta["name"], {"status": status}, NAMESPACE, "status"
        )

    def _create_pods(self, kube: FakeKube) -> None:
        for pod in corpus.objects("Pod"):
            made = corpus.admitted(pod, {**images.NAMES, "NODE": NODE})
            try:
                kube.server.create(ROUTES["Pod"], made, NAMESPACE)
            except KubeError as exc:
                self.seen.refused[pod["metadata"]["name"]] = str(exc)

    async def _look(self, kube: FakeKube) -> None:
        seen = self.seen
        seen.pods = {pod["metadata"]["name"]: pod for pod in kube.server.store.all("Pod")}
        seen.node = kube.server.get(ROUTES["Node"], "", NODE)
        seen.lease = kube.server.get(ROUTES["Lease"], "kube-node-lease", NODE)
        in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
        api = NodeApi(self.port, self.authority)
        seen.metrics = await in_thread(api.metrics)
        seen.answers = await in_thread(api.answers)
        seen.containers = await in_thread(self._containers)
        seen.cgroups = await in_thread(self._cgroups)
        seen.files = await in_thread(partial(_files, self.base / "root"))
        seen.inside = await in_thread(self._inside)
        seen.words = self._words()

    async def _delete_pods(self, kube: FakeKube) -> None:
        for name in self.seen.pods:
            kube.server.delete(ROUTES["Pod"], name, NAMESPACE)
        with trio.fail_after(120):
            await kube.wait_until(lambda kube: not kube.server.store.all("Pod"))
            # Their last events may still be on their way.
            await trio.sleep(2)

    def _containers(self) -> dict[str, Json]:
        """Return the newest of each pod's containers and sandboxes."""
        found: dict[str, Json] = {}
        for info in sorted(self._listed(), key=lambda info: info["CreatedAt"]):
            labels = info["Labels"]
            name = labels.get("io.kubernetes.container.name", "SANDBOX")
            found[f"{labels['io.kubernetes.pod.name']}/{name}"] = info
        return found

    def _listed(self) -> list[Json]:
        """List until each recorded one was there: one that crashes comes and goes meanwhile."""
        wanted = {name.partition("/")[0] for name in corpus.recorded("containers")}
        wanted -= {_REFUSES_TO_START}
        found: list[Json] = []
        for _ in range(5):
            found += self.containerd.container_infos()
            labels = [info["Labels"] for info in found]
            made = {one[_POD] for one in labels if "io.kubernetes.container.name" in one}
            alone = {name for name in wanted if f"{name}/c" not in corpus.recorded("containers")}
            if wanted - alone <= made:
                break
        return found

    def _inside(self) -> dict[str, str]:
        wanted = corpus.recorded("inside")
        with CriClient(self.containerd.socket) as cri:
            running = {
                c.labels["io.kubernetes.pod.name"]: c.id
                for c in cri.containers()
                if c.state.name == "CONTAINER_RUNNING"
            }
            return {
                name: cri.run(running[name], "sh", "-c", inside.SCRIPT)
                for name in wanted
                if name in running
            }

    def _cgroups(self) -> list[str]:
        """Return `controller directory file value` of what the kubelet writes; cgroup v1."""
        found = []
        for controller, files in _CGROUP_FILES.items():
            top = _CGROUPS / controller / self.containerd.layout.cgroup.strip("/")
            for directory in _cgroups_below(top):
                for name in files:
                    value = (directory / name).read_text().strip()
                    below = f"./{directory.relative_to(top)}"
                    found.append(f"{controller} {below} {name} {value}")
        return found

    def _words(self) -> list[tuple[str, str]]:
        base, layout = self.base, self.containerd.layout
        addresses = {
            address["ip"]
            for pod in self.seen.pods.values()
            for key in ("podIPs", "hostIPs")
            for address in pod.get("status", {}).get(key, ())
        }
        addresses |= {a["address"] for a in self.seen.node["status"]["addresses"][:1]}
        return [
            (str(base / "root"), "ROOT"),
            (str(base / "logs"), "LOGS"),
            (str(layout.base / "root"), "STATE"),
            (str(layout.base / "run"), "STATE"),
            (layout.cgroup, "/CGROUPROOT"),
            (os.uname().nodename, "vm"),
            (NODE, "NODE"),
            ("localhost/kubelet-trio/pause:1", "PAUSE"),
            *((name, word) for word, name in images.NAMES.items()),
            *((address, "IP") for address in addresses),
        ]


def _address() -> str:
    """Return the machine's IPv4 address, by where a packet to elsewhere would leave."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("192.0.2.1", 9))
        address: str = asking.getsockname()[0]
        return address


_CGROUP_FILES = {
    "cpu": ("cpu.cfs_quota_us", "cpu.shares"),
    "cpuset": ("cpuset.cpus",),
    "memory": ("memory.limit_in_bytes",),
    "pids": ("pids.max",),
}


def _cgroups_below(top: Path) -> Iterator[Path]:
    yield top / "kubepods"
    for pattern in ("kubepods/pod*", "kubepods/burstable/pod*", "kubepods/besteffort/pod*"):
        yield from top.glob(pattern)


def _node_is_ready(kube: FakeKube) -> bool:
    nodes = kube.server.store.all("Node")
    conditions = nodes[0]["status"].get("conditions", ()) if nodes else ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _has_settled(kube: FakeKube) -> bool:
    """Whether every container is as far as the recorded one: made, or restarted."""
    pods = {pod["metadata"]["name"]: pod for pod in kube.server.store.all("Pod")}
    return all(
        _is_as_far(_containers_of(pods[name])[container], one)
        for name, recorded in corpus.recorded("pods").items()
        for container, one in _containers_of(recorded).items()
        if name in pods and container in _containers_of(pods[name])
    )


def _containers_of(pod: Json) -> dict[str, Json]:
    status = pod["status"]
    lists = (status.get(key) or () for key in ("initContainerStatuses", "containerStatuses"))
    return {one["name"]: one for statuses in lists for one in statuses}


def _is_as_far(ours: Json, recorded: Json) -> bool:
    def is_made(status: Json) -> bool:
        waiting = status["state"].get("waiting") or {}
        return waiting.get("reason") not in ("ContainerCreating", "PodInitializing")

    has_restarted = bool(ours["restartCount"]) or not recorded["restartCount"]
    return has_restarted and (is_made(ours) or not is_made(recorded))


def _events(kube: FakeKube) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for event in kube.server.store.all("Event", NAMESPACE):
        about = event["involvedObject"]
        told = [event["type"], event["reason"], event["message"], about.get("fieldPath", "")]
        found.setdefault(about["name"], []).append(told)
    return found


_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISLNK, "symbolic link"),
    (stat.S_ISREG, "regular file"),
    (stat.S_ISSOCK, "socket"),
)


def _files(root: Path) -> list[str]:
    """Return `mode owner:group kind path` below the root's pods, on its own file system."""
    device, found = root.stat().st_dev, []
    left = [root / "pods"]
    while left:
        path = left.pop()
        try:
            facts = path.lstat()
            below = list(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
        except FileNotFoundError:
            continue  # a container that crashes, and its files, come and go
        kind = next(word for is_kind, word in _KINDS if is_kind(facts.st_mode))
        if kind == "regular file" and not facts.st_size:
            kind = "regular empty file"
        mode = stat.filemode(facts.st_mode)
        found.append(f"{mode} {facts.st_uid}:{facts.st_gid} {kind} {path}")
        if facts.st_dev == device:
            left += below
    return found
