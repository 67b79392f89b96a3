"""The servers, by parameter."""

from __future__ import annotations

import pytest

from kubelet_trio.kube import KubeApi
from tests.kube.servers import FakePlace, Place


@pytest.fixture
def place() -> Place:
    return FakePlace()


@pytest.fixture
def api(place: Place) -> KubeApi:
    return place.api
