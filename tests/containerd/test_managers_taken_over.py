"""A node with CPUs, memory and devices in use is taken over from the Go kubelet, and handed back.

Its checkpoints and containers are as that kubelet leaves them. The agent restarts nothing, keeps
what each container has, and leaves checkpoints that the Go kubelet would accept.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lightkube.models.core_v1 import Container

from kubelet_trio.containers import container_hash
from kubelet_trio.cri import v1
from tests.containerd.devices import device_pod, given, needs, pid_of
from tests.harness import (
    BUSYBOX,
    Containerd,
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
from tests.harness.api_node import NAMESPACE, ApiNode
from tests.harness.device_plugin import ENV, node_in_container
from tests.harness.devices import RESOURCE, DevicePlugin
from tests.harness.go_checkpoints import (
    CPU_FILE,
    DEVICE_FILE,
    MEMORY_FILE,
    memory_tables,
    read_checkpoint,
    write_checkpoint,
)

MEMORY = 64 << 20  # bytes of the container that has CPUs and a device
RESERVED = 65 << 20  # bytes: 64 for the system, 1 as eviction's threshold
DEVICE = "b"  # not what would be chosen first
MANAGED, SHARED = "managed", "shared"
GUARANTEED: Json = {"cpu": "1", "memory": str(MEMORY), RESOURCE: "1"}


def cpus_of(text: str) -> list[int]:
    """Read a list of CPUs such as 0-2,5."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


ONLINE = cpus_of(Path("/sys/devices/system/cpu/online").read_text())
pytestmark = pytest.mark.skipif(len(ONLINE) < 2, reason="needs a CPU besides the reserved one")


@dataclass(frozen=True)
class Shares:
    """The CPUs of this machine, as the Go kubelet has given them."""

    reserved: int
    exclusive: int

    @property
    def shared(self) -> list[int]:
        return [cpu for cpu in ONLINE if cpu != self.exclusive]

    @property
    def shared_text(self) -> str:
        return ",".join(map(str, self.shared))


SHARES = Shares(ONLINE[0], ONLINE[-1])


CONFIG: Json = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": str(SHARES.reserved),
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "64Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "65Mi"}}],
    "cpuManagerReconcilePeriod": "1s",
}


def allowed(pid: int) -> tuple[list[int], list[int]]:
    """Return the CPUs and NUMA nodes that the kernel lets a process have."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return cpus_of(fields["Cpus_allowed_list"]), cpus_of(fields["Mems_allowed_list"])


class GoNode:
    """What the Go kubelet left: two pods that run, and its checkpoints."""

    def __init__(
        self, node: ApiNode, cri: CriClient, containerd: Containerd, plugin: DevicePlugin
    ) -> None:
        self.node, self.cri, self.plugin = node, cri, plugin
        self.root = node.base / "root"
        self._cgroups = f"{containerd.layout.cgroup}/kubepods"
        self.uids: dict[str, str] = {}
        self.containers: dict[str, str] = {}
        self.pids: dict[str, int] = {}

    def arrange(self) -> None:
        limits = {"limits": GUARANTEED, "requests": GUARANTEED}
        self._run(
            pod(MANAGED, container("main", forever(), resources=limits)),
            "",
            v1.LinuxContainerResources(
                cpu_shares=1024,
                memory_limit_in_bytes=MEMORY,
                cpuset_cpus=str(SHARES.exclusive),
                cpuset_mems="0",
            ),
        )
        self._run(
            pod(SHARED),
            "besteffort/",
            v1.LinuxContainerResources(cpu_shares=2, cpuset_cpus=SHARES.shared_text),
        )
        self._write_checkpoints()

    def _write_checkpoints(self) -> None:
        uid = self.uids[MANAGED]
        cpus = {
            "policyName": "static",
            "defaultCpuSet": SHARES.shared_text,
            "entries": {uid: {"main": str(SHARES.exclusive)}},
        }
        block = {"numaAffinity": [0], "type": "memory", "size": MEMORY}
        memory = {
            "policyName": "Static",
            "machineState": memory_tables({0: RESERVED}, {0: MEMORY}),
            "entries": {uid: {"main": [block]}},
        }
        entry = {
            "PodUID": uid,
            "ContainerName": "main",
            "ResourceName": RESOURCE,
            "DeviceIDs": {"-1": [DEVICE]},
            "AllocResp": base64.b64encode(self._answer()).decode(),
        }
        devices = {"PodDeviceEntries": [entry], "RegisteredDevices": {RESOURCE: ["a", "b"]}}
        for file, content in ((CPU_FILE, cpus), (MEMORY_FILE, memory), (DEVICE_FILE, devices)):
            write_checkpoint(self.root, file, content)

    def _answer(self) -> bytes:
        """Return a ContainerAllocateResponse, as protobuf writes it."""
        env = _field(1, _field(1, ENV.encode()) + _field(2, DEVICE.encode()))
        spec = [node_in_container(DEVICE), self._host_path(), "rw"]
        parts = (_field(number, text.encode()) for number, text in enumerate(spec, 1))
        return env + _field(3, b"".join(parts))

    def _host_path(self) -> str:
        return str(self.plugin.base / "nodes" / DEVICE)

    def _run(self, manifest: Json, qos: str, resources: v1.LinuxContainerResources) -> None:
        """Start a pod's sandbox and container as the Go kubelet does."""
        name = manifest["metadata"]["name"]
        self.node.create(manifest)
        created = self.node.find(name)
        assert created is not None
        uid = self.uids[name] = created["metadata"]["uid"]
        logs = self.node.base / "logs" / f"{NAMESPACE}_{name}_{uid}"
        (logs / "main").mkdir(parents=True)
        labels = {
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": NAMESPACE,
            "io.kubernetes.pod.uid": uid,
        }
        config = v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name=name, uid=uid, namespace=NAMESPACE),
            hostname=name,
            log_directory=str(logs),
            labels=labels,
            annotations={
                "kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z",
                "kubernetes.io/config.source": "api",
            },
            linux=v1.LinuxPodSandboxConfig(cgroup_parent=f"{self._cgroups}/{qos}pod{uid}"),
        )
        sandbox = self.cri.run_sandbox(config)
        is_managed = name == MANAGED
        made = self.cri.create_container(
            sandbox,
            v1.ContainerConfig(
                metadata=v1.ContainerMetadata(name="main", attempt=0),
                image=v1.ImageSpec(image=BUSYBOX),
                command=["sh", "-c", forever()],
                log_path="main/0.log",
                labels={**labels, "io.kubernetes.container.name": "main"},
                annotations={
                    "io.kubernetes.container.hash": _HASH,
                    "io.kubernetes.container.restartCount": "0",
                    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
                    "io.kubernetes.container.terminationMessagePolicy": "File",
                    "io.kubernetes.pod.terminationGracePeriod": "5",
                },
                envs=[v1.KeyValue(key=ENV, value=DEVICE.encode())] if is_managed else [],
                devices=[self._device()] if is_managed else [],
                linux=v1.LinuxContainerConfig(resources=resources),
            ),
            config,
        )
        self.cri.start_container(made)
        self.containers[name], self.pids[name] = made, self.cri.container_pid(made)
        self.node.tell(name, {"phase": "Running"})

    def _device(self) -> v1.Device:
        return v1.Device(
            container_path=node_in_container(DEVICE), host_path=self._host_path(), permissions="rw"
        )

    def check_untouched(self) -> None:
        """Check that the containers are those of the Go kubelet, with what it gave them."""
        for name in (MANAGED, SHARED):
            assert live_containers(self.cri, name) == {"main": self.containers[name]}
            assert pid_of(self.cri, name) == self.pids[name]
        assert allowed(self.pids[MANAGED]) == ([SHARES.exclusive], [0])
        assert allowed(self.pids[SHARED])[0] == SHARES.shared
        assert given(self.cri, MANAGED) == [DEVICE]

    def checkpoints(self) -> tuple[Json, Json, Json]:
        """Return all checkpoints, which the Go kubelet would read."""
        cpus, memory = (read_checkpoint(self.root, file) for file in (CPU_FILE, MEMORY_FILE))
        return cpus, memory, read_checkpoint(self.root, DEVICE_FILE)


# By the rule that upstream's own vectors are tested with (tests/containers/test_hashing.py).
_HASH = f"{container_hash(Container(name='main', image=BUSYBOX)):x}"


def _field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of protobuf's wire format, shorter than 16 KiB."""
    length = len(value)
    size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return bytes([number << 3 | 2]) + size + value


@pytest.fixture
def go_node(
    containerd: Containerd, cri: CriClient, tmp_path: Path, brief_path: Path
) -> Iterator[GoNode]:
    base = brief_path / "node"
    base.mkdir()
    node = ApiNode(base, containerd, CONFIG)
    plugin = DevicePlugin(tmp_path / "plugin", base / "root")
    found = GoNode(node, cri, containerd, plugin)
    try:
        found.arrange()
        yield found
        if plugin.is_running:
            plugin.check()
    finally:
        plugin.close()
        node.close()


def entries(checkpoint: Json) -> Json:
    found: Json = checkpoint.get("entries") or {}
    return found


def was_restarted(pod: Json) -> bool:
    return is_ready(pod) and container_status(pod, "main")["restartCount"] == 1


def test_nothing_is_restarted_and_everybody_keeps_what_it_has(go_node: GoNode) -> None:
    node, uid = go_node.node, go_node.uids[MANAGED]
    go_node.check_untouched()
    before = go_node.checkpoints()
    for _ in range(2):
        node.start()
        for name in (MANAGED, SHARED):
            node.wait(name, is_ready, what="Ready")
        go_node.check_untouched()
        node.kill()
        cpus, memory, devices = go_node.checkpoints()
        assert entries(cpus) == entries(before[0])
        assert cpus_of(cpus["defaultCpuSet"]) == SHARES.shared
        assert entries(memory) == entries(before[1])
        assert memory["machineState"] == before[1]["machineState"]
        assert devices["PodDeviceEntries"] == before[2]["PodDeviceEntries"]
        assert [e["PodUID"] for e in devices["PodDeviceEntries"]] == [uid]


def test_what_is_left_is_given_to_others_and_a_new_process_gets_the_same(
    go_node: GoNode, cri: CriClient
) -> None:
    node = go_node.node
    node.start()
    node.wait(MANAGED, is_ready, what="Ready")
    go_node.plugin.start()
    go_node.plugin.wait_registered()
    node.wait_amounts(RESOURCE, "2", "2")
    with node.running(device_pod("other", RESOURCE)):
        assert given(cri, "other") == ["a"]
        assert allowed(pid_of(cri, "other"))[0] == SHARES.shared
    full = {"cpu": str(len(ONLINE) - 1), "memory": "16Mi"}
    wants_all = container("main", forever(), resources={"limits": full, "requests": full})
    node.create(pod("greedy", wants_all))
    status = node.wait("greedy", lambda p: p["status"].get("phase") == "Failed")["status"]
    assert status["reason"] in ("UnexpectedAdmissionError", "OutOfcpu")
    node.delete("greedy")
    go_node.check_untouched()

    cri.kill(go_node.containers[MANAGED])
    node.wait(MANAGED, was_restarted, what="restarted")
    assert allowed(pid_of(cri, MANAGED)) == ([SHARES.exclusive], [0])
    live = live_containers(cri, MANAGED)["main"]
    assert given(cri, MANAGED) == [DEVICE]
    cri.run(live, "test", "-c", node_in_container(DEVICE))
    assert go_node.plugin.calls("Allocate") == [["a"]]


def test_what_a_pod_held_is_free_once_it_is_gone(go_node: GoNode, cri: CriClient) -> None:
    node, uid = go_node.node, go_node.uids[MANAGED]
    node.start()
    node.wait(MANAGED, is_ready, what="Ready")
    go_node.plugin.start()
    go_node.plugin.wait_registered()
    node.delete(MANAGED)
    # The shared pool has the CPU back, and running containers get it at once.
    eventually(lambda: allowed(go_node.pids[SHARED])[0] == ONLINE, what="all CPUs are shared")
    node.wait_amounts(RESOURCE, "2", "2")
    with node.running(pod("next", container("main", forever(), resources=needs(RESOURCE, 2)))):
        assert given(cri, "next") == ["a", "b"]
        cpus, memory, devices = go_node.checkpoints()
        assert cpus_of(cpus["defaultCpuSet"]) == ONLINE
        assert uid not in entries(cpus)
        assert uid not in entries(memory)
        assert memory["machineState"] == memory_tables({0: RESERVED}, {})
        assert uid not in {entry["PodUID"] for entry in devices["PodDeviceEntries"]}
