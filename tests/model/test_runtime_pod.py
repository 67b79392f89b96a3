"""What of a pod may be told while the runtime has yet to say how an instance ended."""

from __future__ import annotations

from dataclasses import replace

from kubelet_trio.model import PodUid, RuntimePod
from tests.pods.make import EXITED, RUNNING, record


def test_a_successor_is_told_together_with_the_end_before_it() -> None:
    other = record("db", RUNNING, attempt=7)
    successor = record("web", RUNNING, attempt=3)
    running = record("web", RUNNING, attempt=2)
    ended = record("web", EXITED, attempt=1)
    told = RuntimePod(PodUid("u"), containers=(other, successor, running, ended))
    assert told.as_told() is told
    dead = replace(running, is_dead=True)
    untold = replace(told, containers=(other, successor, dead, ended))
    assert untold.as_told().containers == (other, dead, ended)
