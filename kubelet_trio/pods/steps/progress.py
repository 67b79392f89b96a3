"""Where a pod's worker is right now, as `why` tells it. Steps write it; it decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kubelet_trio.model import WallClock
from kubelet_trio.pods.types import Doing


class Progress:
    """The steps that one worker is in. Each costs a tuple; a round without steps nothing."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._step: Doing | None = None
        self._beside: dict[str, Doing] = {}

    def at(self, what: str) -> None:
        """Note that the worker has come to a step; "": to none."""
        self._step = Doing(what, self._clock.time()) if what else None

    @contextmanager
    def beside(self, what: str) -> Iterator[None]:
        """Note a step that may run concurrently with others of the pod, while the block runs."""
        self._beside[what] = Doing(what, self._clock.time())
        try:
            yield
        finally:
            self._beside.pop(what, None)

    @property
    def steps(self) -> tuple[Doing, ...]:
        """The steps now, the ones that run concurrently first: those before wait for them."""
        return (*self._beside.values(), *((self._step,) if self._step is not None else ()))
