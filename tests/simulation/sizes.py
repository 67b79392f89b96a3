"""CPU and memory that pods of a simulation ask for, and what a resize draws of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

MI = 1 << 20
# Which amounts are set: none, requests, requests and limits, only a limit of memory, or limits that
# are the requests as well. A resize changes none of that.
SHAPES = ("", "requests", "limits", "memory", "equal")
# Milli-CPU and MiB. Three small pods fit next to each other, two large containers do not; nothing
# that asks for the last of them fits at all.
CPU = (50, 100, 300, 600, 2000)
MEMORY = (32, 64, 200, 500, 2000)
SMALL, LARGE = 2, 3  # the first of them are small, the one at this place is large
NODE_CPU, NODE_MEMORY = 1100, 1050


@dataclass(frozen=True)
class Ask:
    """CPU and memory of one container: milli-CPU and MiB."""

    shape: str = ""
    cpu: int = CPU[0]
    memory: int = MEMORY[0]

    def resources(self) -> dict[str, Any]:
        """Return the container's `resources`."""
        if not self.shape:
            return {}
        if self.shape == "memory":
            return {"limits": {"memory": f"{2 * self.memory}Mi"}}
        if self.shape == "equal":
            return {"limits": _quantities(self.cpu, self.memory)}
        requests = {"requests": _quantities(self.cpu, self.memory)}
        if self.shape == "requests":
            return requests
        return {**requests, "limits": _quantities(2 * self.cpu, 2 * self.memory)}


def _quantities(cpu: int, memory: int) -> dict[str, str]:
    return {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}


@dataclass(frozen=True)
class Asks:
    """What each container of a pod asks for, and whether the pod asks as a whole."""

    of: tuple[tuple[str, Ask], ...] = ()  # by container
    level: str = ""  # `spec.resources`: "limits", "equal", or "" for none
    restarts: tuple[str, ...] = ()  # resources whose change restarts m0 and the sidecar

    def resources(self, name: str) -> dict[str, Any]:
        """Return the `resources` of a container."""
        return dict(self.of).get(name, Ask()).resources()

    def of_pod(self, names: tuple[str, ...]) -> dict[str, Any] | None:
        """Return `spec.resources` for a pod of these containers: more than all of them ask for."""
        if not self.level:
            return None
        asks = [ask for name, ask in self.of if name in names and ask.shape]
        # Twice as much is the most that one of them is limited to.
        often = 2 if self.level == "equal" else 1
        cpu = CPU[0] + sum(often * ask.cpu for ask in asks)
        memory = sum((2 if ask.shape == "memory" else often) * ask.memory for ask in asks)
        return Ask(self.level, cpu, MEMORY[0] + memory).resources()

    def identity(self) -> Asks:
        """Return the same without the amounts."""
        plain = tuple((name, Ask(ask.shape)) for name, ask in self.of)
        return Asks(plain, self.level, self.restarts)

    def resized(self, sizes: Mapping[str, tuple[int, int]]) -> Asks:
        """Return the same with these amounts of CPU and memory, by container."""
        changed = tuple(
            (name, Ask(ask.shape, *sizes[name]) if name in sizes else ask) for name, ask in self.of
        )
        return Asks(changed, self.level, self.restarts)


NOTHING = Asks()
ALIKE = Asks((("m0", Ask("limits")), ("s", Ask("limits"))))


def asks(names: tuple[str, ...]) -> st.SearchStrategy[Asks]:
    """Draw what pods with (some of) these containers ask for: little."""
    some = st.sampled_from(SHAPES)
    # Pods of one shape are often Guaranteed, others are nearly always Burstable.
    alike = st.sampled_from((*SHAPES, "equal", "equal")).map(lambda shape: (shape,) * len(names))
    shapes = st.one_of(alike, alike, st.tuples(*(some for _ in names)))
    small = st.tuples(st.sampled_from(CPU[:SMALL]), st.sampled_from(MEMORY[:SMALL]))
    sizes = st.tuples(*(small for _ in names))

    def made(shapes: tuple[str, ...], sizes: tuple[tuple[int, int], ...]) -> Any:
        found = zip(names, shapes, sizes, strict=True)
        return tuple((name, Ask(shape, *size)) for name, shape, size in found)

    return st.builds(
        Asks,
        of=st.builds(made, shapes, sizes),
        level=st.sampled_from(("",) * 5 + ("limits", "equal")),
        restarts=st.sampled_from(((), (), ("cpu",), ("memory",), ("cpu", "memory"))),
    )


def sizes(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, tuple[int, int]]]:
    """Draw the amounts of a resize: of some containers, of any size."""
    size = st.tuples(st.sampled_from(CPU), st.sampled_from(MEMORY))
    return st.dictionaries(st.sampled_from(names), size, min_size=1, max_size=len(names))
