"""When what failed at the API server is tried again: pure."""

from __future__ import annotations

from dataclasses import dataclass

from kubelet_trio.kube import KubeError, KubeUnavailableError

_BASE = 0.2
_CAP = 10.0


@dataclass(slots=True)
class Retry:
    """Delays that double, in seconds; a server that names one is obeyed."""

    base: float = _BASE
    cap: float = _CAP
    delay: float = 0.0
    until: float = 0.0  # trio time

    def failed(self, now: float, failure: KubeError | KubeUnavailableError) -> float:
        """Note a failure; return the seconds to wait."""
        self.delay = min(max(self.delay * 2, self.base), self.cap)
        asked = failure.retry_after if isinstance(failure, KubeError) else None
        wait = max(self.delay, asked or 0.0)
        self.until = now + wait
        return wait

    def succeeded(self) -> None:
        self.delay = self.until = 0.0
