"""The tap at the eviction manager: the signals that count, the usages it ranks by, its evictions.

Signals of a node that is not short decide nothing, whatever they are: of a calm time only the first
look is noted. While a threshold is met, or its minimum reclaim is not available yet, each look is:
one in ten seconds, and one after each eviction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet_trio.model import PodUid
from kubelet_trio.pressure import Layout, Observations, PodUsage
from kubelet_trio.recorder.bodies import Failure
from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.recorder import Recorder

ALL_PODS, OVER_LIMITS = "node", "limits"  # the keys of USAGE


@dataclass(frozen=True, slots=True)
class SignalsBody:
    """The body of SIGNALS. `error`: the signals could not be read."""

    look: int  # its number: looks that have found the same are as many entries
    observed: Observations = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    is_calm: bool = True
    error: str = ""


@dataclass(frozen=True, slots=True)
class UsageBody:
    """The body of USAGE. `error`: the runtime did not tell."""

    seconds: float  # that the reading took
    pods: Mapping[PodUid, PodUsage] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class EvictionBody:
    """The body of DECISION of an eviction."""

    what: str
    signal: str
    grace: int
    message: str


class RecordedEvictions:
    """Implements `pressure.EvictionNotes`."""

    def __init__(self, recorder: Recorder) -> None:
        self._note = recorder.note
        self._looks = 0
        self._last = SignalsBody(0, is_calm=False)

    def observed(self, observed: Observations, layout: Layout, *, is_calm: bool) -> None:
        self._looks += 1
        before = self._last
        self._last = SignalsBody(self._looks, observed, layout, is_calm)
        is_known = is_calm and before.is_calm and not before.error and layout == before.layout
        if not is_known:
            self._note(Kind.SIGNALS, "", self._last)

    def unknown(self, error: str) -> None:
        self._looks += 1
        before, self._last = self._last, SignalsBody(self._looks, error=error)
        if error != before.error:
            self._note(Kind.SIGNALS, "", self._last)

    def measured(
        self, usages: Mapping[PodUid, PodUsage], seconds: float, *, all_pods: bool
    ) -> None:
        key = ALL_PODS if all_pods else OVER_LIMITS
        self._note(Kind.USAGE, key, UsageBody(seconds, usages))

    def not_measured(self, error: Exception, seconds: float) -> None:
        told = UsageBody(seconds, error=Failure.of(error).fields()["text"])
        self._note(Kind.USAGE, ALL_PODS, told)

    def evicted(self, uid: PodUid, signal: str, grace: int, message: str) -> None:
        self._note(Kind.DECISION, uid, EvictionBody("evict", signal, grace, message))
