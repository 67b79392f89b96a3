"""Pods of a program that claim devices: allocated by the kubelet itself, prepared by a driver."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import trio
from trio.testing import MockClock

from kubelet_trio.embed import Kubelet, KubeletConfig, open_kubelet
from kubelet_trio.managers import ManagerSettings
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.dra import FakeDraDriver, resource_slice
from kubelet_trio.testing.embedded import fake_world
from tests.harness.dra_services import run_dra_driver

DOCUMENTS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpus}
spec:
  selectors: [{cel: {expression: 'device.driver == "dra.example.com"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec:
  spec:
    devices:
      requests: [{name: gpu, exactly: {deviceClassName: gpus}}]
"""
POD = """
---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 5
  resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}]
  containers:
    - name: main
      image: web
      imagePullPolicy: IfNotPresent
      resources: {claims: [{name: gpu}]}
"""


def manifest(name: str) -> str:
    return DOCUMENTS + POD.replace("NAME", name)


def write_slice(driver: FakeDraDriver, root: Path) -> None:
    """Hand the driver's devices to the node, as drivers do: renamed into place."""
    folder = root / "plugins" / driver.name / "resourceslices"
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        **msgspec.to_builtins(resource_slice(driver, "node")),
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
    }
    aside = folder / ".slice"
    aside.write_bytes(msgspec.json.encode(content))
    aside.rename(folder / "slice.json")


def config(root: Path, runtime: FakeRuntime) -> KubeletConfig:
    return KubeletConfig(root_dir=root, runtime=runtime, node_name="node", plugins=True)


def given(runtime: FakeRuntime) -> list[str]:
    """Return the CDI devices of the containers that run."""
    return [device.name for c in runtime.alive() for device in c.config.CDI_devices]


async def waits(kubelet: Kubelet) -> str:
    """Return why the second pod waits, without what makes names unique."""
    async for event in kubelet.events():
        text = event.message or ""
        if event.reason == "FailedPrepareDynamicResources" and "in use" in text:
            return re.sub(r"(second-gpu)-\w+", r"\1-…", text)
    raise AssertionError


async def test_pods_take_turns_with_one_device(short_path: Path, autojump_clock: MockClock) -> None:
    runtime, driver = FakeRuntime(), FakeDraDriver()
    settings = config(short_path, runtime)
    write_slice(driver, short_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_dra_driver, driver, short_path)
        async with open_kubelet(settings, world=fake_world(runtime, settings)) as kubelet:
            with trio.fail_after(600):
                async with (
                    trio.open_nursery() as programs,
                    kubelet.run_pod(manifest("first")) as first,
                ):
                    await first.wait_ready()
                    (claim,) = driver.rules.prepared.values()
                    assert given(runtime) == [f"dra.example.com/claim={claim.uid}-dev-0"]
                    statuses = first.status.value.resourceClaimStatuses or []
                    assert [s.resourceClaimName for s in statuses] == [claim.name]
                    programs.start_soon(run_second, kubelet, driver)
                    await trio.sleep(60)
                    assert list(driver.rules.prepared) == [claim.uid]
                    assert await waits(kubelet) == (
                        "Failed to prepare dynamic resources: prepare dynamic resources: "
                        "ResourceClaim second-gpu-…: no device: request gpu: 1 of class gpus "
                        "wanted, 0 free (dra.example.com/node/dev-0 is in use by "
                        f"default/{claim.name})"
                    )
        nursery.cancel_scope.cancel()
    assert not driver.rules.prepared
    driver.rules.check()


async def run_second(kubelet: Kubelet, driver: FakeDraDriver) -> None:
    async with kubelet.run_pod(manifest("second")) as second:
        await second.wait_ready()
        (claim,) = driver.rules.prepared.values()
        assert claim.name.startswith("second-gpu-")


async def test_a_kept_pod_has_its_device_after_a_restart(
    short_path: Path, autojump_clock: MockClock
) -> None:
    runtime, driver = FakeRuntime(), FakeDraDriver()
    settings = config(short_path, runtime)
    write_slice(driver, short_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_dra_driver, driver, short_path)
        async with open_kubelet(settings, world=fake_world(runtime, settings)) as kubelet:
            with trio.fail_after(300):
                (kept,) = await kubelet.apply(manifest("kept"))
                await kept.wait_ready()
                before = dict(driver.rules.prepared)
        async with open_kubelet(settings, world=fake_world(runtime, settings)) as kubelet:
            with trio.move_on_after(30):
                async with kubelet.run_pod(manifest("other")) as other:
                    await other.wait_ready()
            assert driver.rules.prepared == before
            assert len(given(runtime)) == 1
        nursery.cancel_scope.cancel()
    driver.rules.check()


async def test_a_kubelet_without_claims_rejects_a_pod_that_uses_some(
    short_path: Path, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    settings = replace(config(short_path, runtime), managers=ManagerSettings(claims=False))
    async with open_kubelet(settings, world=fake_world(runtime, settings)) as kubelet:
        with trio.fail_after(300):
            (pod,) = await kubelet.apply(manifest("web"))
            await pod.status.wait_value(lambda status: status.phase == "Failed")
            assert "DynamicResourceAllocation is off" in (pod.status.value.message or "")
    assert not runtime.sandboxes
