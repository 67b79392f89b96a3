"""Cases that show only on cgroup v2 under systemd; `scripts/test vm` runs them in a VM.

They change the machine (swap, what a shutdown does), so they run nowhere else.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.containerd.conftest import agent, containerd, cri, make_agent
from tests.containerd.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.harness import missing
from tests.harness.suites import skip_where_missing

__all__ = ["agent", "containerd", "cri", "make_agent"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacks = missing() if "KUBELET_TRIO_IN_VM" in os.environ else ["scripts/test vm starts it"]
    skip_where_missing(items, Path(__file__).parent, "machine of its own", lacks)


@pytest.fixture
def is_newer() -> bool:
    """Whether the runtime is containerd 2.1 or later, else it is 1.7."""
    return os.environ["KUBELET_TRIO_IN_VM"] == "newer"
