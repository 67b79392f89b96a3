"""The rules of `tests/kube/test_rules.py`, which the fake API server keeps, asked of a real one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from kubelet_trio.kube import ConflictError, KubeApi, load_kubeconfig, open_client
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeCallError, KubeClient
from tests.kube.servers import numbers
from tests.kube.test_rules import *  # noqa: F403  # every rule


class RealPlace:
    """A namespace on a real server."""

    def __init__(self, api: KubeApi, plane: ControlPlane, kube: KubeClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self._plane = plane
        self._kube = kube

    def unique(self, prefix: str) -> str:
        return f"{prefix}-rules-{next(numbers)}"

    async def bind(self, pod: str, node: str) -> None:
        body = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/binding"
        try:
            self._kube.create(path, body)
        except KubeCallError as exc:
            if exc.status == 409:
                raise ConflictError(409, "Conflict", str(exc)) from exc
            raise

    async def forgotten_version(self) -> str:
        pytest.skip("a server that has just started remembers everything")

    @contextlib.asynccontextmanager
    async def as_node(self, name: str) -> AsyncIterator[KubeApi]:
        async with open_client(load_kubeconfig(self._plane.node_kubeconfig(name))) as api:
            yield api

    @contextlib.contextmanager
    def evictions(self) -> Iterator[None]:
        if self._plane.version < (1, 22):
            pytest.skip("policy/v1 came with Kubernetes 1.22")
        yield


@pytest.fixture
async def place(plane: ControlPlane, kube: KubeClient, namespace: str) -> AsyncIterator[RealPlace]:
    config = load_kubeconfig(plane.admin_kubeconfig)
    async with open_client(config) as api:
        yield RealPlace(api, plane, kube, namespace)


@pytest.fixture
def api(place: RealPlace) -> KubeApi:
    return place.api
