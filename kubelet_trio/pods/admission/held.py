"""What pods hold of a node, as sums: a decision on one more pod looks at each resource once.

Sums are kept by adding and taking off the share of one pod at a time; nothing is summed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_requests
from kubelet_trio.model import ContainerKind, pod_containers

ANY = "0.0.0.0"  # a host port on every address, as in the scheduler's HostPortInfo

HostPort = tuple[str, str, int]  # address, protocol, port


@dataclass(frozen=True, slots=True)
class Share:
    """What one pod holds. `failure`: why its requests are not known."""

    requests: Mapping[str, int] = field(default_factory=dict)  # nano-units
    ports: tuple[HostPort, ...] = ()
    failure: Exception | None = None


def share_of(pod: Pod) -> Share:
    """Return what a pod holds."""
    ports = tuple(host_ports(pod))
    try:
        return Share(pod_requests(pod), ports)
    except ValueError as exc:
        return Share({}, ports, exc)


def host_ports(pod: Pod) -> Iterator[HostPort]:
    """Yield the host ports that a pod uses: those of main containers and sidecars."""
    for container in pod_containers(pod):
        if container.kind is not ContainerKind.MAIN and not container.is_sidecar:
            continue
        for port in container.spec.ports or ():
            if port.hostPort:
                yield port.hostIP or ANY, port.protocol or "TCP", port.hostPort


class Sums:
    """The sums over some pods. One task changes them."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.count = 0
        self._used: dict[str, int] = {}
        self._ports: dict[tuple[str, int], dict[str, int]] = {}  # numbers of pods, by address
        self._failures: list[Exception] = []
        for pod in pods:
            self.add(share_of(pod))

    def add(self, share: Share) -> None:
        """Count one more pod."""
        self.count += 1
        for name, amount in share.requests.items():
            self._used[name] = self._used.get(name, 0) + amount
        for address, protocol, number in share.ports:
            by_address = self._ports.setdefault((protocol, number), {})
            by_address[address] = by_address.get(address, 0) + 1
        if share.failure is not None:
            self._failures.append(share.failure)

    def take_off(self, share: Share) -> None:
        """Count a pod no longer whose share was added."""
        self.count -= 1
        for name, amount in share.requests.items():
            self._used[name] -= amount
        for address, protocol, number in share.ports:
            by_address = self._ports[protocol, number]
            by_address[address] -= 1
            if not by_address[address]:
                del by_address[address]
            if not by_address:
                del self._ports[protocol, number]
        if share.failure is not None:
            self._failures.remove(share.failure)

    def used(self, resource: str) -> int:
        """Return how much of a resource the pods request. Raises what one pod's sum failed with."""
        if self._failures:
            raise self._failures[0].with_traceback(None)
        return self._used.get(resource, 0)

    def has_port(self, port: HostPort) -> bool:
        """Whether a pod has a host port, or one that excludes it."""
        address, protocol, number = port
        taken = self._ports.get((protocol, number), {})
        return address in taken or ANY in taken or (address == ANY and bool(taken))


@dataclass(frozen=True, slots=True)
class Held:
    """What some pods hold, and the pods, in the order in which they came."""

    sums: Sums
    pods: Sequence[Pod]

    @staticmethod
    def by(pods: Sequence[Pod]) -> Held:
        """Return what these pods hold."""
        return Held(Sums(pods), pods)


NOTHING = Held.by(())


class Listed(Sequence[Pod]):
    """Pods that are listed only if somebody looks at them."""

    def __init__(self, listed: Callable[[], Sequence[Pod]]) -> None:
        self._list = listed
        self._pods: Sequence[Pod] | None = None

    @overload
    def __getitem__(self, index: int) -> Pod: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pod]: ...
    def __getitem__(self, index: int | slice) -> Pod | Sequence[Pod]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> Sequence[Pod]:
        if self._pods is None:
            self._pods = self._list()
        return self._pods
