"""Block volumes: a device of the node in containers, held open while they have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.volumes import KernelBlockDevices, LoopUnavailableError, read_mountinfo
from tests.containerd.conftest import MakeAgent
from tests.harness import (
    Agent,
    CriClient,
    Json,
    container,
    eventually,
    forever,
    live_containers,
    pod,
)

SIZE = 8 << 20
DEVICES = KernelBlockDevices()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A disk of the node: its device, and the file with its content."""
    file = tmp_path / "disk"
    file.write_bytes(b"from the node".ljust(SIZE, b"\0"))
    try:
        device = DEVICES.attach(file)
    except LoopUnavailableError as exc:
        pytest.skip(str(exc))
    yield device, file
    DEVICES.detach(file)


@pytest.fixture
def own_agent(make_agent: MakeAgent) -> Iterator[Agent]:
    agent = make_agent()
    agent.start()
    yield agent
    # Where a test failed: what holds devices open would keep their mounts busy.
    for entry in entries(agent):
        DEVICES.detach(entry)


def entries(agent: Agent) -> list[Path]:
    """Return the places at which devices are mounted for pods."""
    return sorted(agent.root.glob("plugins/**/volumeDevices/*/*"))


def documents(device: Path) -> Json:
    def made(kind: str, name: str, **spec: object) -> Json:
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}

    volume = made("PersistentVolume", "raw", volumeMode="Block", local={"path": str(device)})
    claim = made("PersistentVolumeClaim", "raw", volumeMode="Block", volumeName="raw")
    return {
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {"name": "raw"},
        "items": [volume, claim],
    }


def user_of(name: str, *, read_only: bool = False) -> Json:
    claim = {"claimName": "raw", "readOnly": read_only}
    main = container("main", forever(), volumeDevices=[{"name": "raw", "devicePath": "/dev/xvda"}])
    return pod(name, main, volumes=[{"name": "raw", "persistentVolumeClaim": claim}])


def read(cri: CriClient, pod_name: str) -> str:
    main = live_containers(cri, f"{pod_name}-node")["main"]
    return cri.run(main, "sh", "-c", "dd if=/dev/xvda bs=13 count=1 iflag=direct,fullblock 2>&-")


def write(cri: CriClient, pod_name: str, text: str) -> None:
    main = live_containers(cri, f"{pod_name}-node")["main"]
    cri.run(main, "sh", "-c", f"printf '{text}' | dd of=/dev/xvda conv=notrunc,fsync")


def test_a_device_is_read_and_written_and_outlives_the_agent(
    own_agent: Agent, cri: CriClient, disk: tuple[Path, Path]
) -> None:
    agent, (device, file) = own_agent, disk
    agent.put(documents(device))
    agent.put(user_of("writer"))
    agent.put(user_of("reader", read_only=True))
    for name in ("writer", "reader"):
        agent.wait_ready(name)
    assert read(cri, "writer") == "from the node"
    write(cri, "writer", "from a pod   ")
    assert file.read_bytes()[:13] == b"from a pod   "
    with pytest.raises(RuntimeError, match="not permitted"):
        write(cri, "reader", "from a reader")
    held = entries(agent)
    assert len(held) == 2
    locks = [lock for entry in held for lock in DEVICES.find(entry)]
    assert len({device, *locks}) == 3

    main = live_containers(cri, "writer-node")["main"]
    agent.kill()
    agent.start()
    agent.wait_ready("writer")
    assert live_containers(cri, "writer-node")["main"] == main
    write(cri, "writer", "after a start")
    assert file.read_bytes()[:13] == b"after a start"
    # Killed, it starts again with the same device.
    cri.kill(main)
    eventually(lambda: live_containers(cri, "writer-node").get("main", main) != main, 60, "again")
    assert [lock for entry in entries(agent) for lock in DEVICES.find(entry)] == locks

    agent.drop("reader")
    agent.wait_gone("reader")
    assert len(entries(agent)) == 1
    assert read(cri, "writer") == "after a start"
    agent.drop("writer")
    agent.wait_gone("writer")
    assert entries(agent) == []
    assert not [lock for entry in held for lock in DEVICES.find(entry)]
    left = [mount.path for mount in read_mountinfo() if "/volumeDevices/" in mount.path]
    assert not [path for path in left if path.startswith(str(agent.root))]
    assert file.read_bytes()[:13] == b"after a start"


def test_what_is_no_device_holds_its_pod_back(
    own_agent: Agent, cri: CriClient, disk: tuple[Path, Path]
) -> None:
    agent, (_, file) = own_agent, disk
    agent.put(documents(file))
    agent.put(user_of("misled"))
    eventually(lambda: "is no block device" in agent.cli("events"), 60, "an event")
    assert "FailedMapVolume" in agent.cli("events")
    assert not live_containers(cri, "misled-node")
    agent.drop("misled")
    agent.wait_gone("misled")
    assert entries(agent) == []
