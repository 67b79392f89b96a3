"""Fakes that keep the rules of the real thing; public, also for embedders' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.testing.behaviour import (
    Behave,
    Behaviour,
    behaviour_by_name,
    behaviour_from_words,
)
from kubelet_trio.testing.calls import Call, Cut
from kubelet_trio.testing.clock import EPOCH, TrioClock
from kubelet_trio.testing.exits import FakeExitWaiter
from kubelet_trio.testing.faults import Fault, FaultKind, Faults
from kubelet_trio.testing.images import FakeImages, image_id
from kubelet_trio.testing.kube import (
    FakeKube,
    FakeKubeClient,
    KubeFault,
    KubeFaultKind,
    KubeFaults,
    KubeRequest,
)
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.testing.objects import FakeContainer, FakeSandbox
from kubelet_trio.testing.runtime import FakeExec, FakeRuntime

if TYPE_CHECKING:
    from kubelet_trio.testing.embedded import fake_world
    from kubelet_trio.testing.spans import FakeReceiver

__all__ = [
    "EPOCH",
    "Behave",
    "Behaviour",
    "Call",
    "Cut",
    "FakeContainer",
    "FakeExec",
    "FakeExitWaiter",
    "FakeImages",
    "FakeKube",
    "FakeKubeClient",
    "FakeMounter",
    "FakeReceiver",
    "FakeRuntime",
    "FakeSandbox",
    "Fault",
    "FaultKind",
    "Faults",
    "KubeFault",
    "KubeFaultKind",
    "KubeFaults",
    "KubeRequest",
    "TrioClock",
    "behaviour_by_name",
    "behaviour_from_words",
    "fake_world",
    "image_id",
]

# Deferred: one loads the whole agent, which only tests of embedding programs need.
__getattr__ = names_on_demand(__name__, {"fake_world": "embedded", "FakeReceiver": "spans"})
