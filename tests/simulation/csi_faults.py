"""Faults of a CSI driver, as steps of a simulation draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from kubelet_trio.grpc import Status
from kubelet_trio.testing.csi import CsiFaultKind, FakeCsiDriver, calls

VOLUME_METHODS = (calls.STAGE, calls.UNSTAGE, calls.PUBLISH, calls.UNPUBLISH)
_STATUSES = tuple(status for status in Status if status is not Status.OK)


@dataclass(frozen=True)
class DriverFault:
    """A fault of some calls of a driver."""

    kind: CsiFaultKind
    method: str  # "": any
    volume: str  # "": any
    times: int | None  # None: until faults are cleared
    delay: float  # seconds
    status: Status

    def add_to(self, driver: FakeCsiDriver) -> None:
        status = self.status
        if self.kind is CsiFaultKind.LOST_REPLY and status not in calls.UNCERTAIN:
            status = Status.UNAVAILABLE  # else it would say that nothing changed
        driver.faults.add(
            self.kind, self.method, self.volume, times=self.times, delay=self.delay, status=status
        )


def driver_faults(
    kinds: Sequence[CsiFaultKind], methods: Sequence[str], volumes: Sequence[str]
) -> st.SearchStrategy[DriverFault]:
    """Draw a fault; of one volume, or of any."""
    return st.builds(
        DriverFault,
        kind=st.sampled_from(kinds),
        method=st.sampled_from(methods),
        volume=st.sampled_from(("", "", *volumes)),
        times=st.sampled_from((1, 1, 2, 5, None)),
        delay=st.sampled_from((0.0, 0.05, 3.0, 130.0)),
        status=st.sampled_from(_STATUSES),
    )
