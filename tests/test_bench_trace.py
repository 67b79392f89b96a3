"""The waterfall of `bench.trace`: the merge of what was noted, and the hops that it notes."""

from __future__ import annotations

import time

from bench.trace import text, waterfall
from bench.traced import Clock, hop_names


def test_phases_are_the_median_of_what_most_pods_show() -> None:
    spans = [
        (10.000, 10.004, "kubelet/pods/default/a@1", "CRI run_podsandbox"),
        (10.005, 10.006, "kubelet/runtime/pleg", "CRI list_containers"),  # in one life only
        (20.002, 20.004, "kubelet/pods/default/b@2", "CRI run_podsandbox"),
        (30.001, 30.009, "kubelet/pods/default/c@3", "CRI run_podsandbox"),
        (40.000, 40.001, "kubelet/pods/default/d@4", "CRI run_podsandbox"),  # outside
    ]
    found = waterfall("start", spans, [(10.0, 10.01), (20.0, 20.02), (30.0, 30.03)])
    (line,) = found.lines
    assert (line.task, line.name, line.seen) == ("kubelet/pods", "CRI run_podsandbox", 3)
    assert (line.begin, line.length) == (1.0, 4.0)
    assert (found.total, found.needed) == (20.0, 4.0)
    assert "run_podsandbox" in list(text(found))[1]


async def test_the_clock_notes_both_kinds_of_functions() -> None:
    clock = Clock()

    def plain(number: int) -> int:
        return number + 1

    async def waiting(number: int) -> int:
        return number + 2

    before = time.monotonic()
    assert clock.timed(plain, lambda number: f"plain {number}")(1) == 2
    assert await clock.timed(waiting, lambda number: f"waiting {number}")(1) == 3
    assert [name for *_, name in clock.spans] == ["plain 1", "waiting 1"]
    assert all(before <= began <= ended for began, ended, *_ in clock.spans)


def test_every_hop_of_the_walks_can_be_noted() -> None:
    assert len(hop_names()) > 80
