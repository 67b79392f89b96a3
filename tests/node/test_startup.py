"""A node's first start is measured from its boot to Ready, and only once."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kubelet_trio.model import Meter
from kubelet_trio.node import NodeStartup
from kubelet_trio.testing import TrioClock

_NAME = "kubelet_node_startup_{}_seconds"


def shown(meter: Meter) -> dict[str, float]:
    names = ("pre_kubelet", "pre_registration", "registration", "post_registration")
    series = {name: dict(meter.gauges(_NAME.format(f"{name}_duration"))) for name in names}
    series["whole"] = dict(meter.gauges("kubelet_node_startup_duration_seconds"))
    return {name: gauge[()] for name, gauge in series.items() if gauge}


async def test_every_part_of_a_start_is_measured(autojump_clock: MockClock) -> None:
    meter = Meter()
    startup = NodeStartup(meter, TrioClock(), uptime=30.0)
    await trio.sleep(2)
    startup.note_attempt()
    await trio.sleep(3)
    startup.note_attempt()  # a retry
    await trio.sleep(1)
    startup.note_created()
    parts = {"pre_kubelet": 30.0, "pre_registration": 2.0, "registration": 4.0}
    assert shown(meter) == parts
    await trio.sleep(5)
    startup.note_ready()
    parts |= {"post_registration": 5.0, "whole": 41.0}
    assert shown(meter) == parts
    await trio.sleep(60)
    startup.note_created()
    startup.note_ready()
    assert shown(meter) == parts


async def test_a_node_that_was_known_before_is_not_measured(autojump_clock: MockClock) -> None:
    meter = Meter()
    startup = NodeStartup(meter, TrioClock(), uptime=30.0)
    startup.note_attempt()
    startup.note_ready()
    assert shown(meter) == {}
