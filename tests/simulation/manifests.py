"""Pods that a simulation writes, and what each is to come to by its own words."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.simulation.csi_volumes import claim_volumes, claims, device_mounts, file_mounts
from tests.simulation.sizes import NOTHING, Asks, asks, sizes

NAMES = ("alpha", "beta", "gamma")

RUNS = ("run", "run", "stubborn", "slow-stop-3")
EXITS = ("exit-0-after-2", "exit-1-after-3", "exit-0", "exit-1")
BLOCKED = ("missing", "no-create")


# The names of containers: the main ones are m0 and m1.
INIT, SIDECAR = "i", "s"
MAINS = ("m0", "m1")
CONTAINERS = (*MAINS, INIT, SIDECAR)
# A resize restarts these, if it changes what `Asks.restarts` names.
RESTARTED = ("m0", SIDECAR)


class Fate(enum.Enum):
    """What a container comes to if nobody interferes."""

    RUNS = "runs"
    SUCCEEDS = "ends with 0"
    FAILS = "ends with 1"
    BLOCKED = "cannot be made"


def fate(image: str) -> Fate:
    if image in BLOCKED:
        return Fate.BLOCKED
    if image in RUNS:
        return Fate.RUNS
    return Fate.SUCCEEDS if image.startswith("exit-0") else Fate.FAILS


@dataclass(frozen=True)
class Wish:
    """A pod as a person would ask for it: the images of its containers, and little else."""

    mains: tuple[str, ...]
    init: str | None = None
    sidecar: bool = False
    policy: str = "Always"
    grace: int | None = None
    medium: str | None = None  # of an emptyDir; None: no volume
    note: int = 0  # tells apart what is otherwise the same
    asks: Asks = NOTHING
    claims: tuple[str, ...] = ()  # names of CSI volumes

    def manifest(self, name: str) -> dict[str, Any]:
        """Return the Pod manifest."""
        volumes: list[dict[str, Any]] = (
            [] if self.medium is None else [{"name": "v", "emptyDir": {"medium": self.medium}}]
        )
        volumes += claim_volumes(self.claims)
        mounts = [] if self.medium is None else [{"name": "v", "mountPath": "/v"}]
        mounts += file_mounts(self.claims)
        devices = device_mounts(self.claims)
        inits: list[dict[str, Any]] = []
        if self.init is not None:
            inits.append({**self._container(INIT), "image": self.init})
        if self.sidecar:
            sidecar = {"image": "run", "restartPolicy": "Always"}
            inits.append({**self._container(SIDECAR), **sidecar})
        spec: dict[str, Any] = {
            "restartPolicy": self.policy,
            "containers": [
                {
                    **self._container(name),
                    "image": image,
                    "volumeMounts": mounts,
                    "volumeDevices": devices,
                }
                for name, image in zip(MAINS, self.mains, strict=False)
            ],
            "initContainers": inits,
            "volumes": volumes,
        }
        if self.grace is not None:
            spec["terminationGracePeriodSeconds"] = self.grace
        if (level := self.asks.of_pod(self.names())) is not None:
            spec["resources"] = level
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "uid": self.uid(name),
                "labels": {"note": str(self.note)},
            },
            "spec": spec,
        }

    def _container(self, name: str) -> dict[str, Any]:
        container: dict[str, Any] = {"name": name, "resources": self.asks.resources(name)}
        if policies := [
            {"resourceName": resource, "restartPolicy": "RestartContainer"}
            for resource in self.restarting(name)
        ]:
            container["resizePolicy"] = policies
        return container

    def restarting(self, name: str) -> tuple[str, ...]:
        """Return the resources whose change restarts a container."""
        # The API refuses it for pods that never restart.
        return self.asks.restarts if name in RESTARTED and self.policy != "Never" else ()

    def names(self) -> tuple[str, ...]:
        """Return the names of its containers."""
        inits = (INIT,) if self.init is not None else ()
        sidecars = (SIDECAR,) if self.sidecar else ()
        return (*MAINS[: len(self.mains)], *inits, *sidecars)

    def resized(self, sizes: Mapping[str, tuple[int, int]]) -> Wish:
        """Return the same pod with these amounts of CPU and memory, by container."""
        return replace(self, asks=self.asks.resized(sizes))

    def uid(self, name: str) -> str:
        """Return a UID of name and content, as the agent makes one for static pods.

        Amounts of CPU and memory are left out: an edit of them is a resize. The agent's own would
        hash the file's path too, which no two runs share: things done in the order of UIDs would
        not be done again alike.
        """
        content = repr((name, replace(self, asks=self.asks.identity())))
        words = hashlib.blake2b(content.encode(), digest_size=6).hexdigest()
        return f"{name}-{words}"

    def may_restart(self, image: str) -> bool:
        """Whether a main container that ended by itself starts again."""
        outcome = fate(image)
        if outcome is Fate.SUCCEEDS:
            return self.policy == "Always"
        return outcome is Fate.FAILS and self.policy != "Never"

    def phase(self) -> str:
        """Return the phase in which the pod stays if nobody interferes."""
        if self.init is not None and fate(self.init) is not Fate.SUCCEEDS:
            if fate(self.init) is Fate.FAILS and self.policy == "Never":
                return "Failed"
            return "Pending"
        fates = [fate(image) for image in self.mains]
        if Fate.BLOCKED in fates:
            return "Pending"
        if Fate.RUNS in fates or any(self.may_restart(image) for image in self.mains):
            return "Running"
        return "Failed" if Fate.FAILS in fates else "Succeeded"


def wishes() -> st.SearchStrategy[Wish]:
    """Draw pods: plain ones often, every feature now and then."""
    image = st.sampled_from(RUNS * 3 + EXITS + BLOCKED)
    return st.builds(
        Wish,
        mains=st.lists(image, min_size=1, max_size=2).map(tuple),
        init=st.sampled_from((None,) * 4 + ("exit-0-after-2", "exit-0", "exit-1", "missing")),
        sidecar=st.sampled_from((False, False, True)),
        policy=st.sampled_from(("Always", "OnFailure", "Never")),
        grace=st.sampled_from((None, 0, 2, 5)),
        medium=st.sampled_from((None, "", "Memory")),
        note=st.integers(0, 3),
        asks=asks(CONTAINERS),
        claims=claims(),
    )


def resizes() -> st.SearchStrategy[dict[str, tuple[int, int]]]:
    """Draw new amounts of CPU and memory for some containers."""
    return sizes(CONTAINERS)
