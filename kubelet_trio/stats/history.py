"""What the node and its pods used lately: a ring in memory, of bounded size.

A value is kept as a logarithm in 16 bits, so it is exact to 0.05 %, and a series of an hour takes
720 bytes. All series share one ring of times. A pod's series stay for the length of the ring after
it has gone. If the ring is full, pods that are gone leave it first, then containers; pods beyond
the 150th have no series of their disk. So there is room for 250 pods.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubelet_trio.stats import api

PERIOD = 10.0  # seconds between two samples
LENGTH = 360  # samples: an hour
BUDGET = 1 << 20  # bytes of everything
POD_SERIES = ("cpu", "memory", "in", "out", "disk")  # nanocores, bytes, bytes/s, bytes/s, bytes
CONTAINER_SERIES = ("cpu", "memory")

# log1p of the largest number is 65534 steps; 0 is no value.
_STEP = math.log1p(2.0**62) / 65534
# What a pod and a container take: their values, and the objects around them (measured).
_SERIES_BYTES = LENGTH * 2
_POD_BYTES = 760
_CONTAINER_BYTES = len(CONTAINER_SERIES) * _SERIES_BYTES + 330
_FIXED_BYTES = 10 * 1024  # the node and the times
_WITH_DISK = 150  # pods

_Counters = api.NetworkStats | api.InterfaceStats
Values = Mapping[str, float | None]


class _Track:
    """The series of one thing, one after the other in one array."""

    __slots__ = ("fed", "names", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.values = array("H", bytes(2 * LENGTH * len(names)))
        self.fed = 0  # the number of its last sample

    def feed(self, number: int, values: Values) -> None:
        self.fed = number
        for i, name in enumerate(self.names):
            self.values[i * LENGTH + number % LENGTH] = _encode(values.get(name))

    def clear(self, place: int) -> None:
        for i in range(len(self.names)):
            self.values[i * LENGTH + place] = 0


class _PodTrack(_Track):
    __slots__ = ("containers", "name", "namespace")

    def __init__(self, ref: api.PodReference, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self.namespace, self.name = ref.namespace, ref.name
        self.containers: dict[str, _Track] = {}


class History:
    """The last hour of a node. Not thread-safe; `shown` returns what may leave the thread."""

    def __init__(self) -> None:
        self._times = array("d", bytes(8 * LENGTH))
        self._number = 0  # of samples so far
        self._node = _Track(POD_SERIES)
        self._pods: dict[str, _PodTrack] = {}  # by UID; those fed last come last
        self._rates = _Rates()

    def add(self, now: float, summary: api.Summary) -> None:
        """Add what was measured at `now` (Unix seconds)."""
        number, place = self._number, self._number % LENGTH
        self._number += 1
        self._times[place] = now
        self._leave(number)
        for track in self._tracks():
            track.clear(place)
        node = summary.node
        rates = self._rates.of("", node.network, now)
        self._node.feed(number, {**_usage(node), **rates, "disk": _used(node.fs)})
        for pod in summary.pods:
            self._feed(number, now, pod)
        self._rates.forget(now)

    def shown(self, uid: str = "") -> Shown:
        """Return a copy: of the node and its pods, or of one pod and its containers."""
        count = min(self._number, LENGTH)
        order = [n % LENGTH for n in range(self._number - count, self._number)]
        pods: list[tuple[dict[str, str], _Copy, dict[str, _Copy]]] = []
        for key, track in self._pods.items():
            if uid and key != uid:
                continue
            named = {"uid": key, "namespace": track.namespace, "name": track.name}
            names = track.names if uid else CONTAINER_SERIES
            inner = {n: _Copy(t, CONTAINER_SERIES) for n, t in track.containers.items()}
            pods.append((named, _Copy(track, names), inner if uid else {}))
        node = None if uid else _Copy(self._node, POD_SERIES)
        return Shown(order, self._times[:], node, pods)

    def _feed(self, number: int, now: float, pod: api.PodStats) -> None:
        uid = pod.pod_ref.uid
        track = self._pods.pop(uid, None)
        if track is None:
            names = POD_SERIES if len(self._pods) < _WITH_DISK else POD_SERIES[:-1]
            if not self._make_room(number, _size_of(names)):
                return
            track = _PodTrack(pod.pod_ref, names)
        self._pods[uid] = track
        rates, disk = self._rates.of(uid, pod.network, now), _used(pod.ephemeral_storage)
        track.feed(number, {**_pod_usage(pod), **rates, "disk": disk})
        for container in pod.containers:
            inner = track.containers.get(container.name)
            if inner is None:
                if self._size() + _CONTAINER_BYTES > BUDGET:
                    continue
                inner = track.containers[container.name] = _Track(CONTAINER_SERIES)
            inner.feed(number, _usage(container))

    def _leave(self, number: int) -> None:
        """Remove what has no sample left in the ring."""
        for uid in [u for u, t in self._pods.items() if t.fed <= number - LENGTH]:
            del self._pods[uid]
        for track in self._pods.values():
            gone = [n for n, t in track.containers.items() if t.fed <= number - LENGTH]
            for name in gone:
                del track.containers[name]

    def _make_room(self, number: int, wanted: int) -> bool:
        """Make room for a pod; return whether there is any."""
        while self._size() + wanted > BUDGET:
            # Those that were not fed for longest come first.
            uid = next(iter(self._pods), "")
            if uid and self._pods[uid].fed < number - 1:
                del self._pods[uid]
            elif full := next((t for t in self._pods.values() if t.containers), None):
                full.containers.clear()
            else:
                return False
        return True

    def _size(self) -> int:
        return _FIXED_BYTES + sum(
            _size_of(track.names) + len(track.containers) * _CONTAINER_BYTES
            for track in self._pods.values()
        )

    def _tracks(self) -> Iterator[_Track]:
        yield self._node
        for pod in self._pods.values():
            yield pod
            yield from pod.containers.values()


def _size_of(names: tuple[str, ...]) -> int:
    return _POD_BYTES + len(names) * _SERIES_BYTES


class _Copy:
    """Some series of a track, as they were."""

    def __init__(self, track: _Track, names: tuple[str, ...]) -> None:
        self.names, self.values = names, track.values[: len(names) * LENGTH]

    def series(self, order: list[int]) -> dict[str, list[int | None]]:
        return {
            name: [_decode(self.values[i * LENGTH + place]) for place in order]
            for i, name in enumerate(self.names)
        }


class Shown:
    """A copy of a history, or of a part. `page` computes: call it in a thread."""

    def __init__(
        self,
        order: list[int],
        times: array[float],
        node: _Copy | None,
        pods: list[tuple[dict[str, str], _Copy, dict[str, _Copy]]],
    ) -> None:
        self._order, self._times, self._node, self._pods = order, times, node, pods

    def page(self) -> dict[str, Any]:
        """Return the JSON: Unix seconds in `times`, a series with as many values for each name."""
        order = self._order
        page: dict[str, Any] = {
            "period": PERIOD,
            "times": [round(self._times[place], 1) for place in order],
        }
        if self._node is not None:
            page["node"] = self._node.series(order)
        page["pods"] = [
            {
                **named,
                **copy.series(order),
                **(
                    {"containers": {n: c.series(order) for n, c in containers.items()}}
                    if containers
                    else {}
                ),
            }
            for named, copy, containers in self._pods
        ]
        return page


class _Rates:
    """Rates of network counters, by the UID of the pod; "" is the node."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int, int]] = {}

    def of(self, key: str, network: api.NetworkStats | None, now: float) -> Values:
        if network is None:
            self._last.pop(key, None)
            return {}
        interfaces: Sequence[_Counters] = network.interfaces or (network,)
        received = sum(i.rx_bytes or 0 for i in interfaces)
        sent = sum(i.tx_bytes or 0 for i in interfaces)
        last = self._last.get(key)
        self._last[key] = (now, received, sent)
        # Counters that have gone back belong to another sandbox.
        if last is None or now <= last[0] or received < last[1] or sent < last[2]:
            return {}
        seconds = now - last[0]
        return {"in": (received - last[1]) / seconds, "out": (sent - last[2]) / seconds}

    def forget(self, now: float) -> None:
        """Forget what had no counters at `now`."""
        self._last = {key: last for key, last in self._last.items() if last[0] == now}


def _pod_usage(pod: api.PodStats) -> Values:
    usage = dict(_usage(pod))
    # A pod whose cgroup does not count what it uses: what its containers use.
    for name in CONTAINER_SERIES:
        if usage[name] is None:
            told = [v for c in pod.containers if (v := _usage(c)[name]) is not None]
            usage[name] = sum(told) if told else None
    return usage


def _usage(stats: api.NodeStats | api.PodStats | api.ContainerStats) -> Values:
    memory, cpu = stats.memory, stats.cpu
    used = None
    if memory is not None:
        known = memory.working_set_bytes is not None
        used = memory.working_set_bytes if known else memory.usage_bytes
    return {"cpu": cpu.usage_nano_cores if cpu is not None else None, "memory": used}


def _used(disk: api.FsStats | None) -> float | None:
    return disk.used_bytes if disk is not None else None


def _encode(value: float | None) -> int:
    if value is None:
        return 0
    return min(1 + round(math.log1p(max(value, 0.0)) / _STEP), 65535)


def _decode(code: int) -> int | None:
    return round(math.expm1((code - 1) * _STEP)) if code else None
