"""What a pod's volumes wait for, for those who explain the pod. Times are trio's."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio


@dataclass(frozen=True, slots=True)
class VolumeWait:
    """A volume of a pod that is being set up; `name` "": those of quick kinds."""

    name: str
    since: float
    error: str = ""  # of the last attempt
    retry_at: float = 0.0  # of the next one, if it is ahead


@dataclass(slots=True)
class QuickSetUp:
    """A hop to a thread under way. The thread writes `name`: the volume that it is at."""

    name: str
    since: float = field(default_factory=trio.current_time)
