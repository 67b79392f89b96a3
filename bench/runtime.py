"""The containerd under a contender: what it uses, and how often it is called."""

from __future__ import annotations

import urllib.request

from bench.contender import Meter
from tests.harness import Containerd, CriClient

_CALLS = "grpc_server_started_total{"
_CRI = 'grpc_service="runtime.v1'


class Runtime:
    """A private containerd with its metrics on."""

    def __init__(self, containerd: Containerd, cri: CriClient) -> None:
        self.containerd, self.cri = containerd, cri

    @property
    def meter(self) -> Meter:
        return Meter(self.containerd.pid)

    def calls(self) -> int:
        """Return how many CRI calls it has been sent so far, by whomever."""
        url = f"http://127.0.0.1:{self.containerd.metrics_port}/v1/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            int(float(line.rsplit(" ", 1)[1]))
            for line in lines
            if line.startswith(_CALLS) and _CRI in line
        )
