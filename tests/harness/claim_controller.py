"""What kube-controller-manager and kube-scheduler do for the claims of pods, on a `FakeKube`.

The controller of claims makes them from templates, takes pods that are gone or ended off
`reservedFor`, and deletes what it made. The scheduler makes the claims of extended resources,
allocates devices, and reserves claims for their pods; it binds pods that have no node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kubelet_trio.kube import ROUTES, NotFoundError
from kubelet_trio.testing import FakeKube
from tests.harness.claim_devices import Device, NoDeviceError, allocate, offers
from tests.harness.pods import Json

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
EXTENDED_CLAIM = "resource.kubernetes.io/extended-resource-claim"
PROTECTION = "resource.kubernetes.io/delete-protection"
IMPLICIT = "deviceclass.resource.kubernetes.io/"  # and a class: an extended resource (KEP-5004)


@dataclass(frozen=True, slots=True)
class _Asked:
    """An extended resource of a container, and the request that stands for it."""

    container: str
    resource: str
    request: str
    device_class: str
    count: int


class ClaimControllers:
    """The control plane of claims, for pods of one node.

    `run` acts after each change of any object; `step` acts once, for tests without a task.
    Tests switch off what they want to be missing: `allocates`, `reserves`.
    """

    def __init__(self, kube: FakeKube, node: str) -> None:
        self._server, self._store = kube.server, kube.server.store
        self._node = node
        self.allocates = self.reserves = True

    async def run(self) -> None:
        """Act after every change."""
        while True:
            changed, before = self._store.changed, self._store.version
            self.step()
            if self._store.version == before:
                await changed.wait()

    def step(self) -> None:
        """Do all that is to be done now, as each controller sees it."""
        for claim in self._store.all("ResourceClaim"):
            self._release(claim)
        for pod in self._store.all("Pod"):
            if is_ended(pod) or "deletionTimestamp" in pod["metadata"]:
                continue
            self._generate(pod)
        for pod in self._store.all("Pod"):
            if not is_ended(pod) and "deletionTimestamp" not in pod["metadata"]:
                self._schedule(pod)

    # The controller

    def _generate(self, pod: Json) -> None:
        """Make the claims of a pod that come from templates, and list them in its status."""
        meta = pod["metadata"]
        told = {one["name"]: one for one in pod["status"].get("resourceClaimStatuses") or ()}
        for wanted in pod["spec"].get("resourceClaims") or ():
            template = self._store.get(
                "ResourceClaimTemplate", meta["namespace"],
                wanted.get("resourceClaimTemplateName", ""),
            )  # fmt: skip
            if wanted["name"] in told or template is None:
                continue
            mark = {POD_CLAIM: wanted["name"]}
            spec = template["spec"]
            claim = self._create(pod, f"{meta['name']}-{wanted['name']}-", spec, mark)
            name = claim["metadata"]["name"]
            told[wanted["name"]] = {"name": wanted["name"], "resourceClaimName": name}
            self._tell(pod, {"resourceClaimStatuses": list(told.values())})

    def _create(self, pod: Json, prefix: str, template: Json, mark: dict[str, str]) -> Json:
        given = template.get("metadata") or {}
        owner = {
            "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
        }  # fmt: skip
        meta = {
            "generateName": prefix,
            "labels": given.get("labels") or {},
            "annotations": {**(given.get("annotations") or {}), **mark},
            "ownerReferences": [owner],
        }
        body = {"metadata": meta, "spec": template["spec"]}
        namespace = pod["metadata"]["namespace"]
        return self._server.create(ROUTES["ResourceClaim"], body, namespace)

    def _tell(self, pod: Json, status: Json) -> None:
        meta = pod["metadata"]
        route, body = ROUTES["Pod"], {"status": status}
        self._server.patch(route, meta["name"], body, meta["namespace"], "status")

    def _release(self, claim: Json) -> None:
        """Take pods off a claim that do not need it, deallocate it, and delete what is left."""
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        kept = [one for one in reserved if self._needs(claim, one)]
        if len(kept) < len(reserved):
            left: Json = {"reservedFor": kept} if kept else {}
            # A claim that nobody uses is deallocated, for others to have the devices.
            if kept:
                left["allocation"] = status["allocation"]
            claim = self._put_status(claim, left)
        owner = next(iter(claim["metadata"].get("ownerReferences") or ()), None)
        is_due = owner is not None and owner["kind"] == "Pod" and not self._lives(claim, owner)
        if is_due and not kept and "deletionTimestamp" not in claim["metadata"]:
            claim = self._delete(claim)
        held = (claim.get("status") or {}).get("allocation")
        if "deletionTimestamp" in claim["metadata"] and held is None:
            self._unprotect(claim)

    def _needs(self, claim: Json, consumer: Json) -> bool:
        return consumer.get("resource") != "pods" or self._lives(claim, consumer)

    def _lives(self, claim: Json, reference: Json) -> bool:
        pod = self._store.get("Pod", claim["metadata"]["namespace"], reference["name"])
        return pod is not None and pod["metadata"]["uid"] == reference["uid"] and not is_ended(pod)

    def _delete(self, claim: Json) -> Json:
        meta = claim["metadata"]
        return self._server.delete(ROUTES["ResourceClaim"], meta["name"], meta["namespace"])

    def _unprotect(self, claim: Json) -> None:
        left = [one for one in claim["metadata"].get("finalizers") or () if one != PROTECTION]
        meta = {**claim["metadata"], "finalizers": left}
        try:
            self._server.update(ROUTES["ResourceClaim"], {**claim, "metadata": meta})
        except NotFoundError:
            return  # it had no finalizer, so it is gone already

    # The scheduler

    def _schedule(self, pod: Json) -> None:
        """Allocate all claims of a pod or none, reserve them, and bind the pod."""
        if pod["spec"].get("nodeName") not in (None, "", self._node):
            return
        pod = self._current(pod)
        claims = self._claims(pod)
        if claims is None:
            return
        if self.allocates:
            try:
                found = self._allocations(claims)
            except NoDeviceError:
                return
            claims = [self._allocate(claim, found) for claim in claims]
        if self.reserves:
            claims = [self._reserve(claim, pod) for claim in claims]
        if not pod["spec"].get("nodeName") and all(map(_is_allocated, claims)):
            body = {"target": {"kind": "Node", "name": self._node}}
            meta = pod["metadata"]
            self._server.create(ROUTES["Pod"], body, meta["namespace"], meta["name"], "binding")

    def _current(self, pod: Json) -> Json:
        meta = pod["metadata"]
        found = self._store.get("Pod", meta["namespace"], meta["name"])
        assert found is not None
        return found

    def _claims(self, pod: Json) -> list[Json] | None:
        """Return a pod's claims, made if they are of extended resources.

        None: not all exist, or one is being deleted, which nobody may use anew.
        """
        told = pod["status"].get("resourceClaimStatuses") or ()
        names = [one.get("resourceClaimName") for one in told]
        named = pod["spec"].get("resourceClaims") or ()
        names += [one["resourceClaimName"] for one in named if one.get("resourceClaimName")]
        if len(names) < len(named):
            return None
        if (extended := self._extended(pod)) is not None:
            names.append(extended)
        namespace = pod["metadata"]["namespace"]
        found = [self._store.get("ResourceClaim", namespace, name) for name in names if name]
        if any(claim is None or "deletionTimestamp" in claim["metadata"] for claim in found):
            return None
        return [claim for claim in found if claim is not None]

    def _allocations(self, claims: list[Json]) -> dict[str, Json]:
        """Return the allocations of the claims that have none, by UID."""
        classes = {one["metadata"]["name"]: one for one in self._store.all("DeviceClass")}
        available = offers(self._store.all("ResourceSlice"), self._node)
        taken = {device for claim in self._store.all("ResourceClaim") for device in held(claim)}
        found: dict[str, Json] = {}
        for claim in claims:
            if _is_allocated(claim):
                continue
            allocation = allocate(claim, available, classes, taken, self._node)
            taken |= set(held({"status": {"allocation": allocation}}))
            found[claim["metadata"]["uid"]] = allocation
        return found

    def _allocate(self, claim: Json, found: dict[str, Json]) -> Json:
        if (allocation := found.get(claim["metadata"]["uid"])) is None:
            return claim
        # First the finalizer, so that no claim with devices disappears.
        meta = {**claim["metadata"]}
        meta["finalizers"] = sorted({*(meta.get("finalizers") or ()), PROTECTION})
        claim = self._server.update(ROUTES["ResourceClaim"], {**claim, "metadata": meta})
        return self._put_status(claim, {**(claim.get("status") or {}), "allocation": allocation})

    def _reserve(self, claim: Json, pod: Json) -> Json:
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        meta = pod["metadata"]
        if not _is_allocated(claim) or any(one["uid"] == meta["uid"] for one in reserved):
            return claim
        one = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        return self._put_status(claim, {**status, "reservedFor": [*reserved, one]})

    def _put_status(self, claim: Json, status: Json) -> Json:
        body = {**claim, "status": status}
        return self._server.update(ROUTES["ResourceClaim"], body, subresource="status")

    # Extended resources (KEP-5004)

    def _extended(self, pod: Json) -> str | None:
        """Return the claim of a pod's extended resources, made if need be; None: it has none.

        Its pod names it before it is bound (PreBind), so none is made for a pod that is: a node
        may have started that one without.
        """
        if told := pod["status"].get("extendedResourceClaimStatus"):
            name: str = told["resourceClaimName"]
            return name
        asked = self._asked(pod)
        if not asked or not self.allocates or pod["spec"].get("nodeName"):
            return None
        requests = [
            {"name": one.request,
             "exactly": {"deviceClassName": one.device_class, "count": one.count}}
            for one in asked
        ]  # fmt: skip
        template = {"spec": {"devices": {"requests": requests}}}
        prefix = f"{pod['metadata']['name']}-extended-resources-"
        claim = self._create(pod, prefix, template, {EXTENDED_CLAIM: "true"})
        mappings = [
            {"containerName": one.container, "resourceName": one.resource,
             "requestName": one.request}
            for one in asked
        ]  # fmt: skip
        made: str = claim["metadata"]["name"]
        status = {"resourceClaimName": made, "requestMappings": mappings}
        self._tell(pod, {"extendedResourceClaimStatus": status})
        return made

    def _asked(self, pod: Json) -> list[_Asked]:
        """Return what containers ask for by an extended resource that device classes provide."""
        by_name = dict[str, str]()
        for one in self._store.all("DeviceClass"):
            name = one["metadata"]["name"]
            by_name[IMPLICIT + name] = name
            if explicit := one["spec"].get("extendedResourceName"):
                by_name[explicit] = name
        spec = pod["spec"]
        containers: list[Json] = [*(spec.get("initContainers") or ()), *spec["containers"]]
        found = []
        for at, container in enumerate(containers):
            amounts: dict[str, Any] = (container.get("resources") or {}).get("requests") or {}
            wanted = sorted(name for name in amounts if name in by_name)
            for number, name in enumerate(wanted):
                request = f"container-{at}-request-{number}"
                count = int(amounts[name])
                found.append(_Asked(container["name"], name, request, by_name[name], count))
        return found


def is_ended(pod: Json) -> bool:
    """Whether a pod needs its claims no more."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def held(claim: Json) -> list[Device]:
    """Return the devices that a claim has, those of admin access left out."""
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {})
    return [
        (one["driver"], one["pool"], one["device"])
        for one in results.get("results") or ()
        if not one.get("adminAccess")
    ]


def _is_allocated(claim: Json) -> bool:
    return (claim.get("status") or {}).get("allocation") is not None
