"""For whom a plugin or a driver is asked: for those who note the question, or report it.

The calls themselves do not say it: neither a device plugin nor a DRA driver is told about pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asker:
    """A pod by its UID, and its container; "" where it is not known."""

    uid: str = ""
    container: str = ""


NOBODY = Asker()
_asker: ContextVar[Asker] = ContextVar("asker", default=NOBODY)


def current_asker() -> Asker:
    """Return for whom this task, or the one that has started it, asks."""
    return _asker.get()


@contextmanager
def asking_for(uid: str, container: str = "") -> Iterator[None]:
    """Ask for a pod, or one of its containers, within the block; no generator may yield in it."""
    token = _asker.set(Asker(uid, container))
    try:
        yield
    finally:
        _asker.reset(token)
