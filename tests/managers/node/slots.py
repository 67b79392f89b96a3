"""A manager of slots for tests: a container's whole CPUs, taken from the lowest ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers import (
    ContainerShare,
    Hint,
    Hints,
    LoadedManagers,
    Machine,
    Refusal,
)
from kubelet_trio.managers.affinity import Affinity
from kubelet_trio.managers.settings import TopologyOptions
from kubelet_trio.model import Meter, PodUid, format_cpus, parse_cpus, pod_uid

FILE = "slots_state"
MACHINE = Machine((), ())


@dataclass(frozen=True)
class Slots:
    """The CPUs that each container has for itself."""

    held: Mapping[tuple[PodUid, str], frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class SlotRules:
    """A container that limits memory gets as many CPUs as its limit."""

    cpus: frozenset[int]

    def hints(self, state: Slots, pod: Pod, container: Container) -> Hints:
        return {}

    def pod_hints(self, state: Slots, pod: Pod) -> Hints:
        return {}

    def allocate(
        self, state: Slots, pod: Pod, container: Container, affinity: Hint
    ) -> Slots | Refusal:
        key = pod_uid(pod), container.name
        limits = container.resources.limits if container.resources is not None else None
        count = int(str(limits["cpu"])) if limits and "memory" in limits else 0
        if not count or key in state.held:
            return state
        free = sorted(self.free(state))
        if len(free) <= count:  # one stays shared
            return Refusal("UnexpectedAdmissionError", f"{count} slots asked, {len(free)} free")
        return replace(state, held={**state.held, key: frozenset(free[:count])})

    def release(self, state: Slots, uid: PodUid) -> Slots:
        return replace(state, held={k: v for k, v in state.held.items() if k[0] != uid})

    def free(self, state: Slots) -> frozenset[int]:
        return self.cpus.difference(*state.held.values())


@dataclass(frozen=True)
class SlotProvider:
    """Slots as a manager of the node."""

    rules: SlotRules
    file: str = FILE

    def encode(self, state: Slots) -> bytes:
        return json.dumps(
            {f"{uid}/{name}": format_cpus(cpus) for (uid, name), cpus in state.held.items()}
        ).encode()

    def decode(self, data: bytes) -> Slots:
        held = {}
        for key, cpus in json.loads(data).items():
            uid, _, name = key.partition("/")
            held[PodUid(uid), name] = parse_cpus(cpus)
        return Slots(held)

    def pods(self, state: Slots) -> Collection[PodUid]:
        return {uid for uid, _ in state.held}

    def share(
        self, state: Slots, uid: PodUid, container: str, share: ContainerShare
    ) -> ContainerShare:
        own = state.held.get((uid, container))
        cpus = own or self.rules.free(state)
        return replace(share, cpuset_cpus=format_cpus(cpus), no_quota=own is not None)

    def started(self, state: Slots, pod: Pod, container: Container) -> Slots:
        return state

    def count(
        self, state: Slots, pod: Pod, container: Container, result: Slots | Refusal, meter: Meter
    ) -> None:
        meter.count("slots_refused", by=isinstance(result, Refusal))

    def measure(self, state: Slots, meter: Meter) -> None:
        meter.set("slots_free", len(self.rules.free(state)))

    def begin(self, meter: Meter) -> None:
        pass


def load_slots(root: Path, cpus: int = 8) -> LoadedManagers:
    """Return the manager with the state of its checkpoint."""
    provider = SlotProvider(SlotRules(frozenset(range(cpus))))
    path = root / FILE
    state = provider.decode(path.read_bytes()) if path.exists() else Slots()
    slots: tuple[Any, Any] = (provider, state)
    aligner = Affinity("none", "container", TopologyOptions(), MACHINE)
    written = frozenset({"cpu"}) if path.exists() else frozenset[str]()
    return LoadedManagers(MACHINE, {"cpu": slots}, aligner, written)
