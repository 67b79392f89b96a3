"""Ended containers are counted once each, by kind, exit code and reason."""

from __future__ import annotations

from kubelet_trio.model import ContainerRecord, Meter
from kubelet_trio.pods.worker.reporter import Endings
from tests.pods.make import EXITED, RUNNING, pod, record, runtime

NAME = "kubelet_terminated_containers_total"
POD = pod("web", init=["prepare"], ephemeral=["debug"])


def counted(*rounds: tuple[ContainerRecord, ...]) -> dict[tuple[str, ...], float]:
    meter = Meter()
    endings = Endings(meter, since=100.0)
    for records in rounds:
        endings.note(POD, runtime(*records))
    return dict(meter.counters(NAME))


def test_each_kind_is_counted_once() -> None:
    ended = (
        record("prepare", EXITED, finished=101.0, code=0),
        record("web", EXITED, finished=102.0, code=3),
        record("debug", EXITED, finished=103.0, code=137, reason="OOMKilled"),
    )
    assert counted((), ended, ended, ended) == {
        ("init_container", "0", "Completed"): 1,
        ("container", "3", "Error"): 1,
        ("ephemeral_container", "137", "OOMKilled"): 1,
    }


def test_every_instance_counts() -> None:
    first = record("web", EXITED, 0, finished=101.0, code=1)
    second = record("web", EXITED, 1, finished=105.0, code=1)
    running = record("web", RUNNING, 1)
    assert counted((first,), (running, first), (second, first), (second,)) == {
        ("container", "1", "Error"): 2
    }


def test_what_ended_before_the_agent_began_is_an_earlier_lifes() -> None:
    assert counted((record("web", EXITED, finished=99.0, code=1),)) == {}
