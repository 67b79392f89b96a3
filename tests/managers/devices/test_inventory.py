"""What is left of a resource whose plugin has gone, and for how long."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from kubelet_trio.managers.devices.inventory import GRACE, Inventory
from kubelet_trio.managers.devices.types import Device
from tests.managers.devices.pods import GPU

# (x + 300) - x is less than 300 here.
_ROUNDED = next(x for x in (n * 0.1 for n in range(10**6)) if (x + GRACE) - x < GRACE)


@given(st.floats(0, 1e9))
@example(_ROUNDED)
def test_a_resource_goes_at_the_time_that_is_named_and_not_before(stopped: float) -> None:
    inventory = Inventory()
    inventory.take(GPU, {"a": Device("a")})
    inventory.stop(GPU, stopped)
    due = inventory.next_expiry
    assert not inventory.expire(math.nextafter(due, 0))
    # Else whoever waits for that time would wake again and again.
    assert inventory.expire(due)
    assert inventory.next_expiry == math.inf
