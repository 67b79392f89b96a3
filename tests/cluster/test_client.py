"""The client and the reflector on a real API server that comes, goes and hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from lightkube.models.core_v1 import ConfigMap, Secret
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube import (
    KubeClient,
    KubeError,
    KubeUnavailableError,
    Reflector,
    load_kubeconfig,
    open_client,
)
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeClient as OtherClient

SELECTED = "metadata.name!=kube-root-ca.crt"  # which every namespace has


@asynccontextmanager
async def following(reflector: Reflector[ConfigMap]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(reflector.run)
        yield
        nursery.cancel_scope.cancel()


async def until(reflector: Reflector[ConfigMap], expected: set[str]) -> None:
    with trio.fail_after(90):
        while {name for _, name in reflector.objects} != expected:
            await reflector.wait_delivery()
        await reflector.connected.wait_value(True)


def config_map(name: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name), data={"a": "1"})


async def test_what_a_node_may_not_is_refused(plane: ControlPlane, kube: OtherClient) -> None:
    async with open_client(load_kubeconfig(plane.node_kubeconfig("n-client"))) as client:
        with pytest.raises(KubeError) as refused:
            await client.list(Secret)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")


async def test_a_reflector_follows_through_a_restart(
    plane: ControlPlane, kube: OtherClient, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    async with open_client(load_kubeconfig(plane.admin_kubeconfig)) as client:
        await client.create(config_map("a"), namespace=namespace)
        reflector = Reflector(client, ConfigMap, namespace=namespace, field_selector=SELECTED)
        async with following(reflector):
            await until(reflector, {"a"})
            kube.create(path, {"metadata": {"name": "b"}})
            await until(reflector, {"a", "b"})
            plane.stop_server()
            try:
                with trio.fail_after(60):
                    await reflector.connected.wait_value(False)
                with pytest.raises(KubeUnavailableError):
                    await get(client, namespace)
                assert {name for _, name in reflector.objects} == {"a", "b"}
            finally:
                plane.start_server()
            kube.delete(f"{path}/a")
            kube.create(path, {"metadata": {"name": "c"}})
            await until(reflector, {"b", "c"})


async def test_a_hanging_server_is_like_a_dead_one(
    plane: ControlPlane, kube: OtherClient, namespace: str
) -> None:
    config = load_kubeconfig(plane.admin_kubeconfig)
    async with open_client(config, request_timeout=60) as client:
        impatient = client.sharing(qps=-1, burst=0, request_timeout=3)
        await client.create(config_map("a"), namespace=namespace)
        plane.hang_server()
        try:
            with trio.fail_after(60), pytest.raises(KubeUnavailableError):
                await get(impatient, namespace)
        finally:
            plane.resume_server()
        await get(client, namespace)


async def get(client: KubeClient, namespace: str) -> ConfigMap:
    return await client.get(ConfigMap, "a", namespace=namespace)
