"""The servers that the rules are asked of, each as a `Place`: a namespace of the test's own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from lightkube.models.core_v1 import Namespace, ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube import KubeApi
from kubelet_trio.testing import FakeKube

numbers = itertools.count(1)


class Place(Protocol):
    """A namespace on a server, and what its administrator does there."""

    api: KubeApi
    namespace: str

    def unique(self, prefix: str) -> str:
        """Return a name that nobody has in the cluster."""
        ...

    async def bind(self, pod: str, node: str) -> None: ...

    async def forgotten_version(self) -> str:
        """Return a resource version whose changes the server has forgotten."""
        ...

    def as_node(self, name: str) -> contextlib.AbstractAsyncContextManager[KubeApi]:
        """Hold a client with a node's rights."""
        ...

    def evictions(self) -> contextlib.AbstractContextManager[None]:
        """Skip the test where the server's evictions are too old for the models."""
        ...


class FakePlace:
    """A namespace on a fake server."""

    def __init__(self) -> None:
        self.fake = FakeKube()
        self.api: KubeApi = self.fake
        self.namespace = "test"
        self.fake.add(Namespace(metadata=ObjectMeta(name="test")))
        self.fake.add(ServiceAccount(metadata=ObjectMeta(name="default")), namespace="test")

    def unique(self, prefix: str) -> str:
        return f"{prefix}-{next(numbers)}"

    async def bind(self, pod: str, node: str) -> None:
        self.fake.bind(pod, node, self.namespace)

    async def forgotten_version(self) -> str:
        self.fake.compact()
        return "1"

    @contextlib.asynccontextmanager
    async def as_node(self, name: str) -> AsyncIterator[KubeApi]:
        yield self.fake.node(name)

    @contextlib.contextmanager
    def evictions(self) -> Iterator[None]:
        yield
