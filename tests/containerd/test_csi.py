"""CSI volumes of real pods: drivers with real mounts, on our gRPC server and on grpcio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.testing.csi import CsiFaultKind, NodeFeature, calls
from tests.harness import (
    Agent,
    CriClient,
    eventually,
    live_containers,
    pod,
)
from tests.harness.csi import CsiDriver, DriverConfig
from tests.harness.csi_documents import (
    claimed,
    driver_document,
    pod_with,
    pod_with_device,
    put_documents,
    volume_documents,
)

PEER = "peer.csi.example.org"
INLINE = "inline.csi.example.org"


@pytest.fixture(scope="module")
def driver(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CsiDriver]:
    with CsiDriver(tmp_path_factory.mktemp("driver"), agent.root) as running:
        yield running


@pytest.fixture(scope="module")
def peer(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CsiDriver]:
    config = DriverConfig(PEER, is_grpcio=True)
    with CsiDriver(tmp_path_factory.mktemp("peer"), agent.root, config) as running:
        yield running


@pytest.fixture(params=["driver", "peer"])
def either(request: pytest.FixtureRequest) -> CsiDriver:
    found: CsiDriver = request.getfixturevalue(request.param)
    return found


def read(cri: CriClient, name: str, path: str) -> str:
    return cri.run(live_containers(cri, f"{name}-node")["main"], "cat", path)


def end(agent: Agent, *names: str) -> None:
    for name in names:
        agent.drop(name)
    for name in names:
        agent.wait_gone(name)


@pytest.mark.parametrize("kind", ["dir", "ext4"])
def test_data_survives_pods_and_agents(
    agent: Agent, either: CsiDriver, cri: CriClient, kind: str
) -> None:
    name = f"{kind}-{either.name.partition('.')[0]}"
    documents = volume_documents(name, f"{kind}-{name}", driver=either.name)
    put_documents(agent, *documents, file=f"volume-{name}")
    agent.put(pod_with(name, claimed(name), "echo life >> /data/lives"))
    agent.wait_ready(name)
    assert read(cri, name, "/data/lives") == "life\n"
    before = len(either.state()["calls"])

    assert agent.stop() == 0
    agent.start()
    agent.wait_ready(name)
    agent.kill()
    agent.start()
    agent.wait_ready(name)
    assert read(cri, name, "/data/lives") == "life\n"
    changing = {calls.UNSTAGE, calls.UNPUBLISH}
    assert not [c for c in either.state()["calls"][before:] if c["method"] in changing]

    end(agent, name)
    either.wait_clean()
    agent.put(pod_with(name, claimed(name), "echo life >> /data/lives"))
    agent.wait_ready(name)
    assert read(cri, name, "/data/lives") == "life\nlife\n"
    end(agent, name)
    either.wait_clean()


def test_a_volume_is_staged_once_for_all_pods_of_the_node(
    agent: Agent, driver: CsiDriver, cri: CriClient
) -> None:
    put_documents(agent, *volume_documents("shared"), file="volume-shared")
    names = ["shared-a", "shared-b", "shared-c"]
    for name in names:
        agent.put(pod_with(name, claimed("shared"), f"echo {name} > /data/{name}"))
    for name in names:
        agent.wait_ready(name)
    assert len(driver.calls(calls.STAGE, "dir-shared")) == 1
    assert len(driver.state()["published"]["dir-shared"]) == 3
    eventually(lambda: read(cri, "shared-a", "/data/shared-c") == "shared-c\n")
    end(agent, *names[:2])
    assert list(driver.state()["staged"]) == ["dir-shared"]
    end(agent, names[2])
    driver.wait_clean()
    assert len(driver.calls(calls.UNSTAGE, "dir-shared")) == 1


def test_a_driver_without_staging_only_publishes(
    agent: Agent, driver: CsiDriver, cri: CriClient
) -> None:
    driver.set_features([NodeFeature.GET_VOLUME_STATS])
    driver.register_again()
    driver.wait("registrations")
    put_documents(agent, *volume_documents("unstaged"), file="volume-unstaged")
    agent.put(pod_with("unstaged", claimed("unstaged"), "echo here > /data/file"))
    try:
        agent.wait_ready("unstaged")
        assert not driver.calls(calls.STAGE, "dir-unstaged")
        assert read(cri, "unstaged", "/data/file") == "here\n"
        end(agent, "unstaged")
        driver.wait_clean()
    finally:
        registered = len(driver.state()["registrations"])
        driver.set_features(list(NodeFeature))
        driver.register_again()
        eventually(lambda: len(driver.state()["registrations"]) > registered, what="registered")


def test_an_inline_volume_lives_with_its_pod(agent: Agent, cri: CriClient, tmp_path: Path) -> None:
    document = driver_document(INLINE, podInfoOnMount=True, volumeLifecycleModes=["Ephemeral"])
    put_documents(agent, document, file="inline-driver")
    with CsiDriver(tmp_path / "inline", agent.root, DriverConfig(INLINE)) as inline:
        source = {"driver": INLINE, "volumeAttributes": {"size": "1"}}
        agent.put(pod_with("inline", {"name": "v", "csi": source}, "echo mine > /data/file"))
        agent.wait_ready("inline")
        assert read(cri, "inline", "/data/file") == "mine\n"
        (publish,) = inline.calls(calls.PUBLISH)
        context = publish["volume_context"]
        assert publish["volume_id"].startswith("csi-")
        assert context["size"] == "1"
        assert context["csi.storage.k8s.io/pod.name"] == "inline-node"
        assert context["csi.storage.k8s.io/ephemeral"] == "true"
        end(agent, "inline")
        inline.wait_clean()


def test_block_devices_are_read_and_written(
    agent: Agent, driver: CsiDriver, cri: CriClient
) -> None:
    documents = volume_documents("raw", "block-raw", mode="Block", access_mode="ReadWriteOnce")
    put_documents(agent, *documents, file="volume-raw")
    writes = "echo stored | dd of=/dev/xvda bs=512 conv=sync; sync"
    agent.put(pod_with_device("raw", claimed("raw"), writes))
    agent.wait_ready("raw")
    live = live_containers(cri, "raw-node")["main"]
    eventually(lambda: "stored" in cri.run(live, "head", "-c", "6", "/dev/xvda"))
    end(agent, "raw")
    driver.wait_clean()
    agent.put(pod_with_device("raw", claimed("raw")))
    agent.wait_ready("raw")
    live = live_containers(cri, "raw-node")["main"]
    assert cri.run(live, "head", "-c", "6", "/dev/xvda") == "stored"
    end(agent, "raw")
    driver.wait_clean()


def test_a_volume_that_hangs_disturbs_no_other_pod(
    agent: Agent, either: CsiDriver, cri: CriClient
) -> None:
    short = either.name.partition(".")[0]
    slow, quick = f"hangs-{short}", f"quick-{short}"
    for name in (slow, quick):
        put_documents(agent, *volume_documents(name, driver=either.name), file=f"volume-{name}")
    either.fault(CsiFaultKind.HANG, calls.STAGE, f"dir-{slow}", times=None)
    agent.put(pod_with(slow, claimed(slow)))
    either.wait("pending")
    agent.put(pod_with(quick, claimed(quick)))
    agent.put(pod(f"plain-{short}"))
    agent.wait_ready(quick)
    agent.wait_ready(f"plain-{short}")
    end(agent, quick, f"plain-{short}")
    # All of that came before the volume that hangs; its call would take two minutes.
    assert f"dir-{slow}" not in either.state()["published"]
    either.clear_faults()
    agent.wait_ready(slow)
    end(agent, slow)
    either.wait_clean()


def test_a_pod_whose_volume_hangs_can_be_ended(agent: Agent, driver: CsiDriver) -> None:
    put_documents(agent, *volume_documents("given-up"), file="volume-given-up")
    driver.fault(CsiFaultKind.HANG, calls.STAGE, "dir-given-up", times=None)
    agent.put(pod_with("given-up", claimed("given-up")))
    driver.wait("pending")
    end(agent, "given-up")
    driver.clear_faults()
    driver.wait_clean()


@pytest.mark.parametrize("status", ["INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"])
@pytest.mark.parametrize("method", [calls.STAGE, calls.PUBLISH])
def test_an_error_is_an_event_and_the_call_is_repeated(
    agent: Agent, driver: CsiDriver, method: str, status: str
) -> None:
    name = f"{method.lower()}-{status.lower().replace('_', '-')}"
    put_documents(agent, *volume_documents(name), file=f"volume-{name}")
    # INTERNAL is final: it says that nothing was mounted. The others leave that open.
    kind = CsiFaultKind.ERROR if status == "INTERNAL" else CsiFaultKind.LOST_REPLY
    driver.fault(kind, method, f"dir-{name}", times=2, status=status, message="no disk")
    agent.put(pod_with(name, claimed(name)))
    agent.wait_ready(name)
    events = agent.cli("events")
    step = "MountDevice" if method == calls.STAGE else "SetUp"
    assert f'MountVolume.{step} failed for volume "{name}"' in events
    assert "desc = no disk" in events
    end(agent, name)
    driver.wait_clean()
