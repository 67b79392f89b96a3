"""Fakes that keep the rules of what they stand for: public, for embedders' tests too."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def __getattr__(name: str) -> object:
    # The whole agent is loaded only by those who test what embeds it.
    if name == "fake_world":
        from kubelet_trio.testing.embedded import fake_world

        return fake_world
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
