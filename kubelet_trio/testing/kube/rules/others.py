"""Rules of kinds with few rules: certificate requests, kinds of storage.k8s.io, Event, Lease, and
the bodies that are posted to subresources (binding, eviction, token).
"""

from __future__ import annotations

import base64
import binascii
import copy
import re

from kubelet_trio.testing.kube.rules.formats import qualified_name, subdomain
from kubelet_trio.testing.kube.rules.problems import IMMUTABLE, NOT_NEGATIVE, Problems, shown
from kubelet_trio.testing.kube.store import Json

USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign",
    "data encipherment", "decipher only", "digital signature", "email protection", "encipher only",
    "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement", "key encipherment",
    "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime", "server auth", "signing",
    "timestamping",
)  # fmt: skip
_DRIVER_DEFAULTS = {
    "attachRequired": True,
    "podInfoOnMount": False,
    "storageCapacity": False,
    "fsGroupPolicy": "ReadWriteOnceWithFSType",
    "volumeLifecycleModes": ["Persistent"],
    "requiresRepublish": False,
    "seLinuxMount": False,
}
_LEAST, _MOST = 600, 2**32  # seconds of validity
_PEM = re.compile(rb"-----BEGIN (NEW )?CERTIFICATE REQUEST-----\s.*-----END ", re.DOTALL)


def check_binding(problems: Problems, body: Json) -> None:
    target = body.get("target") or {}
    if target.get("kind") not in (None, "", "Node"):
        problems.unsupported("target.kind", target["kind"], ("Node", "<empty>"))
    if not target.get("name"):
        problems.required("target.name")


def check_eviction(problems: Problems, body: Json) -> None:
    seconds = (body.get("deleteOptions") or {}).get("gracePeriodSeconds")
    if seconds is not None and seconds < 0:
        text = "must be greater than or equal to 0"
        problems.invalid("deleteOptions.gracePeriodSeconds", seconds, text)


def check_request(problems: Problems, obj: Json) -> None:
    spec = obj.get("spec") or {}
    if not _is_request(spec.get("request") or ""):
        text = "PEM block type must be CERTIFICATE REQUEST"
        problems.invalid("spec.request", spec.get("request"), text)
    usages = spec.get("usages") or []
    if not usages:
        problems.required("spec.usages")
    for at, usage in enumerate(usages):
        if usage not in USAGES:
            problems.unsupported(f"spec.usages[{at}]", usage, USAGES)
        if usage in usages[:at]:
            problems.duplicate(f"spec.usages[{at}]", usage)
    _check_signer(problems, spec.get("signerName") or "")
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _LEAST:
        text = "may not specify a duration less than 600 seconds (10 minutes)"
        problems.invalid("spec.expirationSeconds", seconds, text)


def check_changed_request(problems: Problems, old: Json, new: Json) -> None:
    if old.get("spec") != new.get("spec"):
        problems.invalid("spec", new.get("spec"), IMMUTABLE)


def _is_request(encoded: str) -> bool:
    try:
        # In JSON a []byte is base64, so the PEM text is encoded twice.
        return _PEM.search(base64.b64decode(encoded, validate=True)) is not None
    except (binascii.Error, ValueError):
        return False


def _check_signer(problems: Problems, name: str) -> None:
    path = "spec.signerName"
    if not name:
        problems.required(path)
        return
    domain, slash, rest = name.partition("/")
    if not slash or not rest:
        text = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        problems.invalid(path, name, text)
        return
    for text in subdomain(domain):
        problems.invalid(path, domain, text)
    if "." not in domain:
        problems.invalid(
            path, domain, "should be a domain with at least two segments separated by dots"
        )


def check_csi_node(problems: Problems, obj: Json) -> None:
    names = set()
    for at, driver in enumerate((obj.get("spec") or {}).get("drivers") or ()):
        path = f"spec.drivers[{at}]"
        _check_driver(problems, path, driver)
        name = driver.get("name") or ""
        if name in names:
            problems.duplicate(f"{path}.name", name)
        names.add(name)


def check_changed_csi_node(problems: Problems, old: Json, new: Json) -> None:
    """Check a change: drivers may be added or removed; only their count may change (KEP-4876)."""
    check_csi_node(problems, new)
    before = {d.get("name"): d for d in (old.get("spec") or {}).get("drivers") or ()}
    for at, driver in enumerate((new.get("spec") or {}).get("drivers") or ()):
        was = before.get(driver.get("name"))
        if was is not None and {**was, "allocatable": None} != {**driver, "allocatable": None}:
            problems.invalid(f"spec.drivers[{at}]", shown(driver), "field is immutable")


def _check_driver(problems: Problems, path: str, driver: Json) -> None:
    name, node_id = driver.get("name") or "", driver.get("nodeID") or ""
    if not name:
        problems.required(f"{path}.name")
    else:
        if len(name) > 63:
            problems.too_long(f"{path}.name", 63)
        for text in subdomain(name.lower()) if name.islower() else subdomain(name):
            problems.invalid(f"{path}.name", name, text)
    if not node_id:
        problems.required(f"{path}.nodeID")
    elif len(node_id) > 256:
        problems.invalid(f"{path}.nodeID", node_id, "must be 256 characters or less")
    count = (driver.get("allocatable") or {}).get("count")
    if count is not None and count < 0:
        problems.invalid(f"{path}.allocatable.count", count, NOT_NEGATIVE)
    keys = set()
    for key in driver.get("topologyKeys") or ():
        if not key:
            problems.required(path)
        if key in keys:
            problems.duplicate(path, key)
        keys.add(key)
        for text in qualified_name(key):
            problems.invalid(path, key, text)


def default_csi_driver(obj: Json) -> None:
    """Set the defaults of a CSIDriver (SetDefaults_CSIDriver in pkg/apis/storage/v1)."""
    spec = obj.setdefault("spec", {})
    for name, value in _DRIVER_DEFAULTS.items():
        if spec.get(name) is None:
            spec[name] = copy.copy(value)


def default_csi_node(obj: Json) -> None:
    """Send no drivers as `null`, as the server does: Go's encoding of a nil slice."""
    spec = obj.setdefault("spec", {})
    if not spec.get("drivers"):
        spec["drivers"] = None


def default_attachment(obj: Json) -> None:
    """Set `status.attached`, which every VolumeAttachment has."""
    obj.setdefault("status", {}).setdefault("attached", False)


def check_volume_attachment(problems: Problems, obj: Json) -> None:
    spec = obj.get("spec") or {}
    if not spec.get("attacher"):
        problems.required("spec.attacher")
    source = spec.get("source") or {}
    if not (source.get("persistentVolumeName") or source.get("inlineVolumeSpec")):
        problems.required("spec.source")
    if not spec.get("nodeName"):
        problems.required("spec.nodeName")


def check_event(problems: Problems, obj: Json) -> None:
    """Check an event's namespace: `default` for cluster-scoped objects."""
    own = obj["metadata"].get("namespace") or ""
    # legacyValidateEvent: old clients put events of cluster-scoped objects into `default`.
    about = (obj.get("involvedObject") or {}).get("namespace") or ""
    if about != own and (about or own != "default"):
        problems.invalid("involvedObject.namespace", about, "does not match event.namespace")


def check_lease(problems: Problems, obj: Json) -> None:
    spec = obj.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        problems.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if transitions is not None and transitions < 0:
        problems.invalid("spec.leaseTransitions", transitions, NOT_NEGATIVE)
    if spec.get("preferredHolder") and not spec.get("strategy"):
        text = "may only be specified when `strategy` is defined"
        problems.forbidden("spec.preferredHolder", text)


def check_token_request(problems: Problems, body: Json) -> None:
    seconds, path = (body.get("spec") or {}).get("expirationSeconds"), "spec.expirationSeconds"
    if seconds is None:
        return
    if seconds < _LEAST:
        problems.invalid(path, seconds, "may not specify a duration less than 10 minutes")
    if seconds > _MOST:
        problems.invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")
