"""What a test or a measurement on a real runtime needs: a private containerd and an agent.

Used by `tests/containerd`, `tests/cluster` and `bench`, and by nothing of the project itself.
"""

from tests.harness.agent import Agent, CommandError
from tests.harness.containerd import Containerd
from tests.harness.cri import CriClient, live_containers
from tests.harness.images import BUSYBOX, PAUSE
from tests.harness.machine import missing
from tests.harness.manifests import container, forever, pod
from tests.harness.pods import (
    Json,
    WaitTimeoutError,
    condition,
    container_status,
    eventually,
    is_ready,
)

__all__ = [
    "BUSYBOX",
    "PAUSE",
    "Agent",
    "CommandError",
    "Containerd",
    "CriClient",
    "Json",
    "WaitTimeoutError",
    "condition",
    "container",
    "container_status",
    "eventually",
    "forever",
    "is_ready",
    "live_containers",
    "missing",
    "pod",
]
