"""Rules of the pod data that a node writes: mirror pods, and statuses."""

from __future__ import annotations

from typing import Any

from kubelet_trio.testing.kube.references import MIRROR
from kubelet_trio.testing.kube.rules.formats import IP_TEXT, ip_version, qualified_name, subdomain
from kubelet_trio.testing.kube.rules.pod_claims import check_claim_statuses, check_pod_claims
from kubelet_trio.testing.kube.rules.problems import IMMUTABLE, Problems
from kubelet_trio.testing.kube.store import Json

_HEALTH = ("Healthy", "Unhealthy", "Unknown")
_LAST_ID = 2**31 - 1
_NOT_NEGATIVE = "must be a non-negative integer"


def check_new_pod(problems: Problems, obj: Json) -> None:
    """Check a new pod's metadata, beyond the rules of all kinds; of its spec only the claims."""
    spec, marks = obj.get("spec") or {}, obj["metadata"].get("annotations") or {}
    if MIRROR in marks and not spec.get("nodeName"):
        path = f"metadata.annotations[{MIRROR}]"
        problems.invalid(path, None, "must set spec.nodeName if mirror pod annotation is set")
    check_pod_claims(problems, spec)


def check_changed_pod(problems: Problems, old: Json, new: Json) -> None:
    was, now = (pod["metadata"].get("annotations") or {} for pod in (old, new))
    path = f"metadata.annotations[{MIRROR}]"
    if MIRROR in was and was[MIRROR] != now.get(MIRROR):
        problems.forbidden(path, "may not remove or update mirror pod annotation")
    if MIRROR not in was and MIRROR in now:
        problems.forbidden(path, "may not add mirror pod annotation")


def default_status(status: Json) -> None:
    """Make `podIP` and `podIPs` agree; the older field wins."""
    first, all_ = status.get("podIP") or "", status.get("podIPs") or []
    if first and (not all_ or all_[0].get("ip") != first):
        all_ = [{"ip": first}]
    if all_:
        status["podIP"], status["podIPs"] = all_[0].get("ip") or "", all_


def check_status(problems: Problems, old: Json, new: Json) -> None:
    """Check a status against the previous one."""
    was, now = old.get("status") or {}, new.get("status") or {}
    if (generation := now.get("observedGeneration") or 0) < 0:
        problems.invalid("status.observedGeneration", generation, _NOT_NEGATIVE)
    _check_conditions(problems, now.get("conditions") or [])
    _check_nominated(problems, was, now, new["spec"])
    before, after = was.get("qosClass") or "", now.get("qosClass") or ""
    if before and after and before != after:
        problems.invalid("status.qosClass", after, IMMUTABLE)
    _check_transitions(problems, was, now, new["spec"])
    for field, part in _LISTS:
        for at, status in enumerate(now.get(field) or ()):
            spec = _named(new["spec"].get(part) or [], status.get("name"))
            _check_container(problems, f"status.{field}[{at}]", status, spec)
    check_claim_statuses(problems, now, new["spec"])
    _check_host_ips(problems, was, now)
    _check_ips(problems, "status.podIPs", was.get("podIPs"), now.get("podIPs"))


_LISTS = (
    ("initContainerStatuses", "initContainers"),
    ("containerStatuses", "containers"),
    ("ephemeralContainerStatuses", "ephemeralContainers"),
)


def _check_conditions(problems: Problems, conditions: list[Json]) -> None:
    for at, condition in enumerate(conditions):
        type_ = condition.get("type") or ""
        # `Type` with a capital is upstream's.
        for text in qualified_name(type_):
            problems.invalid(f"status.conditions[{at}].Type", type_, text)
        if (generation := condition.get("observedGeneration") or 0) < 0:
            path = f"status.conditions[{at}].observedGeneration"
            problems.invalid(path, generation, _NOT_NEGATIVE)


def _check_nominated(problems: Problems, was: Json, now: Json, spec: Json) -> None:
    name, path = now.get("nominatedNodeName") or "", "status.nominatedNodeName"
    if not name or name == was.get("nominatedNodeName"):
        return
    for text in subdomain(name):
        problems.invalid(path, name, text)
    if spec.get("nodeName"):
        problems.forbidden(path, "may not be set on pods that are already bound to a node")


def _check_transitions(problems: Problems, was: Json, now: Json, spec: Json) -> None:
    """Check that a container that will not restart stays terminated."""
    # As ValidateContainerStateTransition: a path has the index in the old list.
    for field, part in _LISTS:
        after = {status.get("name"): status for status in now.get(field) or ()}
        for at, status in enumerate(was.get(field) or ()):
            name, ended = status.get("name"), (status.get("state") or {}).get("terminated")
            container = _named(spec.get(part) or [], name)
            if ended is None or name not in after or _may_restart(field, ended, container, spec):
                continue
            if (after[name].get("state") or {}).get("terminated") is None:
                path = f"status.{field}[{at}].state"
                problems.forbidden(path, "may not be transitioned to non-terminated state")


def _may_restart(field: str, ended: Json, container: Json, spec: Json) -> bool:
    if field == "ephemeralContainerStatuses":
        return False
    # KEP-5532: the rule of one container restarts all.
    every = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    rules = [rule for one in every for rule in one.get("restartPolicyRules") or ()]
    if any(rule.get("action") == "RestartAllContainers" for rule in rules):
        return True
    own = container.get("restartPolicy")
    policy = own or spec.get("restartPolicy") or "Always"
    if container.get("restartPolicyRules") or policy == "Always":
        return True
    return policy == "OnFailure" and bool(ended.get("exitCode"))


def _check_container(problems: Problems, path: str, status: Json, spec: Json) -> None:
    linux = (status.get("user") or {}).get("linux") or {}
    for field in ("uid", "gid"):
        _check_id(problems, f"{path}.user.linux.{field}", linux.get(field))
    for at, group in enumerate(linux.get("supplementalGroups") or ()):
        _check_id(problems, f"{path}.user.linux.supplementalGroups[{at}]", group)
    asked = _requests(spec)
    for at, allocated in enumerate(status.get("allocatedResourcesStatus") or ()):
        below, name = f"{path}.allocatedResourcesStatus[{at}]", allocated.get("name") or ""
        if spec and name not in asked:  # without a spec the pod has no such container
            text = "must match one of the container's resource requests"
            problems.invalid(f"{below}.name", name, text)
        seen = set()
        for number, resource in enumerate(allocated.get("resources") or ()):
            inner, id_ = f"{below}.resources[{number}]", resource.get("resourceID") or ""
            if id_ in seen:
                problems.duplicate(f"{inner}.resourceID", id_)
            seen.add(id_)
            if (health := resource.get("health") or "") not in _HEALTH:
                problems.unsupported(f"{inner}.health", health, _HEALTH)


def _requests(spec: Json) -> set[str]:
    resources = spec.get("resources") or {}
    claims = {
        f"claim:{claim.get('name')}" + (f"/{claim['request']}" if claim.get("request") else "")
        for claim in resources.get("claims") or ()
    }
    return {*(resources.get("requests") or {}), *(resources.get("limits") or {}), *claims}


def _check_id(problems: Problems, path: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= _LAST_ID:
        problems.invalid(path, value, f"must be between 0 and {_LAST_ID}, inclusive")


def _check_host_ips(problems: Problems, was: Json, now: Json) -> None:
    ips = now.get("hostIPs") or []
    if not ips or (ips == (was.get("hostIPs") or []) and now.get("hostIP") == was.get("hostIP")):
        return
    if ips[0].get("ip") != now.get("hostIP"):
        problems.invalid("status.hostIPs[0].ip", ips[0].get("ip"), "must be equal to `hostIP`")
    _check_ips(problems, "status.hostIPs", None, ips)


def _check_ips(problems: Problems, path: str, before: Any, after: Any) -> None:
    # An unchanged value stays valid, even if today's rules would refuse it.
    if not after or after == before:
        return
    texts = [ip.get("ip") or "" for ip in after]
    for at, text in enumerate(texts):
        if not ip_version(text):
            problems.invalid(f"{path}[{at}]", text, IP_TEXT)
    if len(texts) < 2:
        return
    wrong = next((at for at, text in enumerate(texts) if not ip_version(text)), None)
    if wrong is not None:
        text = f"failed to check for dual stack with error:invalid IP[{wrong}]: {texts[wrong]}"
        problems.internal(path, text)
    if wrong is not None or len(texts) > 2 or len({ip_version(text) for text in texts}) < 2:
        whole = [{"IP": text} for text in texts]
        problems.invalid(path, whole, "may specify no more than one IP for each IP family")


def _named(items: list[Json], name: str | None) -> Json:
    return next((item for item in items if item.get("name") == name), {})
