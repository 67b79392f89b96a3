"""Pods of a simulation that need devices by claims, and the objects of the API server for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.harness.pods import Json
from tests.simulation.claim_drivers import DEVICES, GPUS, NICS, POOL
from tests.testing.kube.claims import (
    by_name,
    by_template,
    claim,
    device_class,
    exactly,
    first_of,
    resource_slice,
    template,
)

EXTENDED = "extended"  # an extended resource instead of a claim
RESOURCE = "example.com/gpu"
SHARED = ("shared-gpu", "shared-both")
# What a claim asks for. `first` cannot have so many nics, and gets a gpu.
_ONE_GPU = exactly("one", "gpu")
REQUESTS: dict[str, tuple[Json, ...]] = {
    "gpu": (_ONE_GPU,),
    "both": (_ONE_GPU, exactly("two", "nic")),
    "first": (first_of("one", exactly("big", "nic", count=9), exactly("small", "gpu")),),
    "admin": (exactly("one", "gpu", adminAccess=True),),
}
OWN = ("own-gpu", "own-both")
MADE = ("made-gpu", "made-both", "made-first", "made-admin")  # from a template
KINDS = (*OWN, *MADE, *SHARED, *SHARED, EXTENDED)


@dataclass(frozen=True, slots=True)
class ClaimNeed:
    """A pod: the kinds of its claims, and who of its containers uses them.

    `m0` uses all of its claims, and `m1` the request `one` of each. If it `ends`, its containers
    do after some seconds. If it is `bound`, it is on the node before it has any device.
    """

    kinds: tuple[str, ...]
    mains: int = 1
    ends: bool = False
    bound: bool = False

    def claims(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.kinds if kind != EXTENDED)

    def own(self, pod: str) -> Iterator[Json]:
        """Yield the claims that are made with the pod."""
        for at, kind in enumerate(self.claims()):
            if kind in OWN:
                yield claim(own_name(pod, at), *REQUESTS[kind.partition("-")[2]])

    def manifest(self, pod: str, node: str) -> Json:
        named = [self._named(pod, at, kind) for at, kind in enumerate(self.claims())]
        mains = [self._container(at, named) for at in range(self.mains)]
        spec: Json = {
            "containers": mains,
            "resourceClaims": named,
            "restartPolicy": "Never" if self.ends else "Always",
            "terminationGracePeriodSeconds": 3,
            "automountServiceAccountToken": False,
        }
        if self.bound:
            spec["nodeName"] = node
        return {"metadata": {"name": pod}, "spec": spec}

    def _named(self, pod: str, at: int, kind: str) -> Json:
        if kind in OWN:
            return by_name(f"c{at}", own_name(pod, at))
        return by_name(f"c{at}", kind) if kind in SHARED else by_template(f"c{at}", kind)

    def _container(self, at: int, named: list[Json]) -> Json:
        request = {"request": "one"} if at else {}
        resources: Json = {"claims": [{"name": each["name"], **request} for each in named]}
        if EXTENDED in self.kinds and not at:
            resources["requests"] = resources["limits"] = {RESOURCE: "1"}
        image = "exit-0-after-5" if self.ends else "run"
        return {"name": f"m{at}", "image": image, "resources": resources}


def own_name(pod: str, at: int) -> str:
    """Return the name of a claim of a pod, the same for each pod of that name."""
    return f"{pod}-own{at}"


def standing_objects() -> Iterator[tuple[str, Json]]:
    """Yield what is there from the start, with its kind."""
    yield "DeviceClass", device_class("gpu", GPUS, extendedResourceName=RESOURCE)
    yield "DeviceClass", device_class("nic", NICS)
    for kind in MADE:
        yield "ResourceClaimTemplate", template(kind, *REQUESTS[kind.partition("-")[2]])


def shared_claim(name: str) -> Json:
    return claim(name, *REQUESTS[name.partition("-")[2]])


def driver_slice(driver: str, node: str) -> Json:
    """Return the slice that a driver publishes."""
    name, pool = f"{node}-{driver}", {"name": POOL}
    return resource_slice(name, *DEVICES[driver], driver=driver, pool=pool, nodeName=node)
