"""Computes when a failed request to the API server is tried again: pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from kubelet_trio.kube import KubeError, KubeUnavailableError
from kubelet_trio.model import Backoff

_FIRST = 0.2
_CAP = 10.0


@dataclass(slots=True)
class Retry:
    """The time of the next try: after a back-off, or the longer delay that the server requests."""

    cap: float = _CAP
    until: float = field(default=0.0, init=False)  # trio time
    delay: float = field(default=0.0, init=False)  # the last one, 0 after a success
    is_news: bool = field(
        default=False, init=False
    )  # whether the last failure is another than before
    _problem: str = field(default="", init=False)
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(_FIRST, self.cap)

    def failed(self, now: float, failure: KubeError | KubeUnavailableError) -> float:
        """Note a failure; return the seconds to wait."""
        self.delay = self._backoff.next_delay()
        self.is_news = str(failure) != self._problem
        self._problem = str(failure)
        asked = failure.retry_after if isinstance(failure, KubeError) else None
        # Retry-After, which an overloaded server sends with 429 (API Priority and Fairness).
        wait = max(self.delay, asked or 0.0)
        self.until = now + wait
        return wait

    def succeeded(self) -> None:
        """Reset the delay after a success."""
        self._backoff.reset()
        self.delay = self.until = 0.0
        self._problem = ""
