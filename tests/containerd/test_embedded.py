"""Embedded kubelets on containerd: beside a daemon, cancelled, and with a CSI driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from kubelet_trio import KubeletConfig, ManagerSettings, PodEndedError, open_kubelet
from kubelet_trio.testing.devices import calls
from tests.containerd.conftest import MakeAgent
from tests.containerd.devices import device_pod, needs
from tests.harness import (
    Agent,
    Containerd,
    CriClient,
    Json,
    container,
    forever,
    leftovers,
    live_containers,
    pod,
)
from tests.harness.cgroups import allowed_cpus, cpus_of
from tests.harness.csi import DRIVER, CsiDriver
from tests.harness.csi_documents import claimed, driver_document, pod_with, volume_documents
from tests.harness.device_plugin import ENV, node_in_container
from tests.harness.devices import RESOURCE, DevicePlugin, PluginConfig
from tests.harness.pods import eventually

ONLINE = cpus_of(Path("/sys/devices/system/cpu/online").read_text())


@pytest.fixture
def daemon(make_agent: MakeAgent) -> Agent:
    agent = make_agent()
    agent.put(pod("daemons"))
    agent.start()
    agent.wait_ready("daemons")
    return agent


def config(base: Path, containerd: Containerd) -> KubeletConfig:
    return KubeletConfig(
        root_dir=base,
        runtime=containerd.endpoint,
        node_name="node",
        cgroup_root=containerd.layout.cgroup,
    )


def own_pod(name: str) -> dict[str, Any]:
    return dict(pod(name, terminationGracePeriodSeconds=2))


def names(cri: CriClient) -> set[str]:
    return {s.metadata.name for s in cri.sandboxes() if s.metadata is not None}


async def in_thread(call: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(call, *args)


async def test_a_daemon_and_two_embedded_kubelets_do_not_touch_each_other(
    daemon: Agent, containerd: Containerd, cri: CriClient, tmp_path: Path
) -> None:
    before = live_containers(cri, "daemons-node")
    with trio.fail_after(90):
        async with (
            open_kubelet(config(tmp_path / "a", containerd)) as a,
            open_kubelet(config(tmp_path / "b", containerd)) as b,
        ):
            (kept,) = await b.apply(own_pod("of-b"))
            async with a.run_pod(own_pod("of-a")) as running:
                await running.wait_ready()
                await kept.wait_ready()
                result = await running.exec(["echo", "from inside"])
                assert (result.stdout, result.exit_code) == (b"from inside\n", 0)
                assert await in_thread(names, cri) == {"daemons-node", "of-a", "of-b"}
                # A daemon that starts anew ends what nobody wants, but only of its own.
                await in_thread(daemon.kill)
                await in_thread(daemon.start)
                await trio.sleep(3)
                assert await in_thread(names, cri) == {"daemons-node", "of-a", "of-b"}
            assert await in_thread(names, cri) == {"daemons-node", "of-b"}
        # Both are closed; what was kept runs on, and another kubelet leaves it alone.
        async with open_kubelet(config(tmp_path / "a", containerd)):
            await trio.sleep(2)
            assert await in_thread(names, cri) == {"daemons-node", "of-b"}
        async with open_kubelet(config(tmp_path / "b", containerd)) as b:
            await b.get("of-b").wait_ready()
            await b.delete("of-b")
        assert await in_thread(names, cri) == {"daemons-node"}
    assert live_containers(cri, "daemons-node") == before
    assert list(daemon.pods()) == ["daemons"]


async def test_a_cancelled_program_takes_its_pods_down_on_containerd(
    containerd: Containerd, cri: CriClient, tmp_path: Path
) -> None:
    given = dict(pod("scoped", terminationGracePeriodSeconds=2))
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with open_kubelet(config(tmp_path / "a", containerd)) as kubelet:
            async with kubelet.run_pod(given) as running:
                await running.wait_ready()
                scope.cancel()
    eventually(lambda: "scoped" not in names(cri), what="the pod to be gone")
    assert not list((tmp_path / "a" / "pods").iterdir())


@pytest.fixture
def driver(brief_path: Path) -> Iterator[CsiDriver]:
    """A driver that registers at the kubelet `a`; its process does not run yet."""
    made = CsiDriver(brief_path / "driver", brief_path / "a")
    yield made
    made.close()
    leftovers.unmount_under(brief_path)


def with_disk(name: str) -> str:
    """Return a manifest as the page on embedding has it: the pod and the objects of its volume."""
    volume = volume_documents("disk", "ext4-disk", access_mode="ReadWriteOnce")
    given = pod_with(name, claimed("disk"))
    return yaml.safe_dump_all([driver_document(), *volume, given])


async def test_a_csi_volume_lasts_as_long_as_its_block_and_its_data_longer(
    containerd: Containerd, driver: CsiDriver, brief_path: Path
) -> None:
    settings = replace(config(brief_path / "a", containerd), plugins=True)
    with trio.fail_after(240):
        async with open_kubelet(settings) as kubelet:
            async with kubelet.run_pod(with_disk("writer")) as running:
                async for event in kubelet.events():
                    if event.reason == "FailedMount" and DRIVER in (event.message or ""):
                        break
                await in_thread(driver.start)
                await running.wait_ready()
                done = await running.exec(["sh", "-c", "echo kept > /data/file"])
                assert done.exit_code == 0
                assert driver.state()["published"].keys() == {"ext4-disk"}
            assert not driver.state()["published"]
            await in_thread(driver.wait_clean)
            async with kubelet.run_pod(with_disk("reader")) as running:
                await running.wait_ready()
                assert (await running.exec(["cat", "/data/file"])).stdout == b"kept\n"
            await in_thread(driver.wait_clean)


def manned(base: Path, containerd: Containerd) -> KubeletConfig:
    """Return the settings of a kubelet whose pods may have CPUs of their own and devices."""
    static = ManagerSettings(cpu_policy="static", reserved_cpus=frozenset({min(ONLINE)}))
    return replace(config(base, containerd), plugins=True, managers=static)


def owner(name: str, **spec: Any) -> Json:
    """Return a Guaranteed pod that needs a whole CPU and a device."""
    amounts = {"cpu": "1", "memory": "32Mi", **needs(RESOURCE)["limits"]}
    main = container("main", forever(), resources={"limits": amounts, "requests": amounts})
    return pod(name, main, terminationGracePeriodSeconds=2, **spec)


def cpus_of_pod(cri: CriClient, name: str) -> frozenset[int]:
    return allowed_cpus(cri.container_pid(live_containers(cri, name)["main"]))


@pytest.fixture
def plugin(brief_path: Path) -> Iterator[DevicePlugin]:
    """A plugin of one device at the kubelet `a`; its process does not run yet."""
    made = DevicePlugin(brief_path / "plugin", brief_path / "a", PluginConfig(devices=("a",)))
    yield made
    if made.is_running:
        made.check()
    made.close()
    # The socket of a plugin that runs on keeps the mount of the root directory busy.
    leftovers.unmount_under(brief_path)


@pytest.mark.skipif(len(ONLINE) < 2, reason="needs a CPU besides the reserved one")
async def test_a_block_has_its_cpu_and_its_device_for_itself_until_it_ends(
    containerd: Containerd, cri: CriClient, plugin: DevicePlugin, brief_path: Path
) -> None:
    with trio.fail_after(110):
        async with (
            open_kubelet(manned(brief_path / "a", containerd)) as kubelet,
            kubelet.run_pod(own_pod("shared")) as shared,
        ):
            await in_thread(plugin.start)
            await in_thread(plugin.wait_registered)
            await shared.wait_ready()
            assert await in_thread(cpus_of_pod, cri, "shared") == ONLINE
            for name in ("first", "second"):  # the second gets what the first has given back
                async with kubelet.run_pod(owner(name)) as running:
                    await running.wait_ready()
                    mine = await in_thread(cpus_of_pod, cri, name)
                    assert len(mine) == 1
                    assert mine <= ONLINE - {min(ONLINE)}
                    await in_thread(wait_cpus, cri, "shared", ONLINE - mine)
                    shown = await running.exec(["stat", "-c", "%F %t:%T", node_in_container("a")])
                    assert shown.stdout == b"character special file 1:3\n"
                    shown = await running.exec(["sh", "-c", f"echo ${ENV}"])
                    assert shown.stdout == b"a\n"
                    # There is but one device, and this block has it.
                    async with kubelet.run_pod(device_pod(f"{name}-late", RESOURCE)) as late:
                        with pytest.raises(PodEndedError):
                            await late.wait_ready()
                        assert late.status.value.reason == "UnexpectedAdmissionError"
                await in_thread(wait_cpus, cri, "shared", ONLINE)
                await in_thread(plugin.give_back)
            assert await in_thread(plugin.calls, calls.ALLOCATE) == [["a"], ["a"]]


def wait_cpus(cri: CriClient, name: str, cpus: frozenset[int]) -> None:
    eventually(lambda: cpus_of_pod(cri, name) == cpus, what=f"{name} has CPUs {set(cpus)}")
