"""The containerd under a contender: what it uses, and how often it is called."""

from __future__ import annotations

from bench.contender import Meter
from tests.harness import Containerd, CriClient


class Runtime:
    """A private containerd with its metrics on."""

    def __init__(self, containerd: Containerd, cri: CriClient) -> None:
        self.containerd, self.cri = containerd, cri

    @property
    def meter(self) -> Meter:
        return Meter(self.containerd.pid)

    def calls(self) -> int:
        """Return how many CRI calls it has been sent so far, by whomever."""
        return self.containerd.calls().total()
