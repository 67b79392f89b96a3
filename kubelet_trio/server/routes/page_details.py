"""What the node page tells of one pod: its containers, volumes, conditions and YAML.

The page may be open to every user of the machine, so values that may be secrets are left out:
those of environment variables, of the HTTP headers of probes and hooks, of the attributes that
volume drivers get, and the annotation in which kubectl keeps the manifest. Command lines are shown:
/proc shows them to every user, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from lightkube.models.core_v1 import Container, ContainerStatus, Pod, Probe, Volume

from kubelet_trio.model import (
    ContainerKind,
    PodContainer,
    metadata,
    parse_quantity,
    pod_containers,
    pod_uid,
    spec,
)
from kubelet_trio.server.view import PullInfo, pull_text

LEFT_OUT = "(left out)"
_KEPT_MANIFEST = "kubectl.kubernetes.io/last-applied-configuration"
_KINDS = {
    ContainerKind.INIT: "init",
    ContainerKind.MAIN: "main",
    ContainerKind.EPHEMERAL: "ephemeral",
}
_AMOUNTS = ("cpu", "memory")  # nanocores, bytes


def amounts(pod: Pod) -> dict[str, dict[str, int]]:
    """Return the `requests` and `limits` of a pod by resource: nanocores and bytes.

    Those of the pod, else the sums over the containers that run side by side. A limit that one of
    them does not have is left out: the pod has none.
    """
    own = spec(pod).resources
    side = [c.spec for c in pod_containers(pod) if _runs_along(c)]
    found: dict[str, dict[str, int]] = {"requests": {}, "limits": {}}
    for kind in ("requests", "limits"):
        for name in _AMOUNTS:
            told = _amount(getattr(own, kind) if own is not None else None, name)
            each = [_amount(_of(container, kind), name) for container in side]
            known = [value for value in each if value is not None]
            if told is None and known and (kind == "requests" or len(known) == len(each)):
                told = sum(known)
            if told is not None:
                found[kind][name] = told
    return found


def pod_details(
    pod: Pod, pulls: Iterable[PullInfo] = (), now: float = 0.0, reasons: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the JSON of one pod. Times are RFC 3339; `now`, for the pulls, is in Unix seconds.

    `reasons` are the agent's own words for why it is not ready.
    """
    told = why(pod, pulls, now)
    meta, status, body = metadata(pod), pod.status, spec(pod)
    return {
        "uid": pod_uid(pod),
        "namespace": meta.namespace or "",
        "name": meta.name or "",
        "labels": dict(meta.labels or {}),
        "createdAt": meta.creationTimestamp,
        "qos": (status.qosClass if status else None) or "",
        "ips": [ip.ip for ip in (status.podIPs if status else None) or ()],
        "hostIP": (status.hostIP if status else None) or "",
        "hostNetwork": bool(body.hostNetwork),
        "priority": body.priority,
        "serviceAccount": body.serviceAccountName or "",
        "restartPolicy": body.restartPolicy or "Always",
        "gracePeriod": body.terminationGracePeriodSeconds,
        "isEnding": meta.deletionTimestamp is not None,
        "why": (list(reasons) or told) if told else [],
        "conditions": [
            {
                "type": c.type,
                "status": c.status,
                "reason": c.reason or "",
                "message": c.message or "",
                "since": c.lastTransitionTime,
            }
            for c in (status.conditions if status else None) or ()
        ],
        "containers": [_container(c) for c in pod_containers(pod)],
        "volumes": [_volume(v) for v in body.volumes or ()],
        **amounts(pod),
    }


def why(pod: Pod, pulls: Iterable[PullInfo] = (), now: float = 0.0) -> list[str]:
    """Return why a pod is not ready, a sentence for each cause; none if it is, or has ended."""
    status = pod.status
    if status is None:
        return ["The agent has not looked at it yet."]
    ready = next((c for c in status.conditions or () if c.type == "Ready"), None)
    if (ready is not None and ready.status == "True") or status.phase == "Succeeded":
        return []
    found = [": ".join(p for p in (status.reason, status.message) if p)]
    pulling = {p.container: pull_text(p, now) for p in pulls if p.uid == pod_uid(pod)}
    steps = {
        c.spec.name
        for c in pod_containers(pod)
        if c.kind is ContainerKind.INIT and not _runs_along(c)
    }
    for container in _statuses(pod):
        state, is_step = container.state, container.name in steps
        if state is None or (is_step and container.ready):
            continue
        if (waiting := state.waiting) is not None:
            text = pulling.get(container.name) or waiting.message
            told = (f"{container.name} waits", waiting.reason, text)
        elif (ended := state.terminated) is not None and ended.exitCode:
            exit_code = f"{container.name} has exited with {ended.exitCode}"
            told = (exit_code, ended.reason, ended.message)
        elif state.running is not None and is_step:
            told = (f"{container.name}, which initializes the pod, still runs", None, None)
        elif state.running is not None and not container.ready:
            probe = "startup" if container.started is False else "readiness"
            told = (f"{container.name} runs, but its {probe} probe has not passed", None, None)
        else:
            continue
        found.append(": ".join(part for part in told if part))
    if not any(found):
        found = [
            f"{c.type} is {c.status}: {c.message or c.reason}"
            for c in status.conditions or ()
            if c.status != "True" and (c.message or c.reason)
        ]
    return [text for text in found if text]


def manifest(pod: Pod) -> str:
    """Return a pod's YAML without the values that may be secrets. Slow: call it in a thread."""
    import yaml  # loaded when somebody asks

    body = without_secrets(msgspec.to_builtins(pod))
    text: str = yaml.dump(
        _present({"apiVersion": "v1", "kind": "Pod", **body}),
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        default_flow_style=False,
        allow_unicode=True,
        sort_keys=False,
    )
    return text


def without_secrets(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's JSON, changed in place: without the values that may be secrets."""
    meta = pod.get("metadata") or {}
    meta.pop("managedFields", None)
    if _KEPT_MANIFEST in (meta.get("annotations") or {}):
        meta["annotations"][_KEPT_MANIFEST] = LEFT_OUT
    body = pod.get("spec") or {}
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in body.get(field) or ():
            for variable in container.get("env") or ():
                if variable.get("value") is not None:
                    variable["value"] = LEFT_OUT
            for action in _actions(container):
                for header in (action.get("httpGet") or {}).get("httpHeaders") or ():
                    header["value"] = LEFT_OUT
    for volume in body.get("volumes") or ():
        for driver, field in (("csi", "volumeAttributes"), ("flexVolume", "options")):
            attributes = (volume.get(driver) or {}).get(field) or {}
            attributes.update(dict.fromkeys(attributes, LEFT_OUT))
    return pod


def _actions(container: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the probes and hooks of a container's JSON."""
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        yield container.get(name) or {}
    hooks = container.get("lifecycle") or {}
    for name in ("postStart", "preStop"):
        yield hooks.get(name) or {}


def _present(thing: Any) -> Any:
    """Return JSON without nulls."""
    if isinstance(thing, dict):
        return {key: _present(value) for key, value in thing.items() if value is not None}
    if isinstance(thing, list):
        return [_present(item) for item in thing]
    return thing


def _statuses(pod: Pod) -> Iterator[ContainerStatus]:
    status = pod.status
    if status is not None:
        yield from status.initContainerStatuses or ()
        yield from status.containerStatuses or ()


def _runs_along(container: PodContainer) -> bool:
    """Whether a container counts for the whole life of its pod: a main one, or a sidecar."""
    if container.kind is ContainerKind.INIT:
        return container.spec.restartPolicy == "Always"
    return container.kind is ContainerKind.MAIN


def _of(container: Container, kind: str) -> Mapping[str, object] | None:
    resources = container.resources
    found: Mapping[str, object] | None = getattr(resources, kind) if resources else None
    return found


def _amount(resources: Mapping[str, object] | None, name: str) -> int | None:
    if not resources or name not in resources:
        return None
    nano = parse_quantity(resources[name])
    return nano if name == "cpu" else nano // 10**9


def _container(container: PodContainer) -> dict[str, Any]:
    given = container.spec
    env_from = [
        source.name or ""
        for each in given.envFrom or ()
        for source in (each.configMapRef, each.secretRef)
        if source is not None
    ]
    probes = {
        "startup": given.startupProbe,
        "readiness": given.readinessProbe,
        "liveness": given.livenessProbe,
    }
    return {
        "name": given.name,
        "kind": _KINDS[container.kind],
        "image": given.image or "",
        "command": [*(given.command or ()), *(given.args or ())],
        "env": [variable.name for variable in given.env or ()],
        "envFrom": env_from,
        "probes": {name: _probe(probe) for name, probe in probes.items() if probe is not None},
        "ports": [
            f"{port.containerPort}/{port.protocol or 'TCP'}{f' {port.name}' if port.name else ''}"
            for port in given.ports or ()
        ],
        "mounts": [
            {"volume": m.name, "path": m.mountPath, "readOnly": bool(m.readOnly)}
            for m in given.volumeMounts or ()
        ],
        "tty": bool(given.tty),
        **{
            kind: {
                name: value
                for name in _AMOUNTS
                if (value := _amount(_of(given, kind), name)) is not None
            }
            for kind in ("requests", "limits")
        },
    }


def _probe(probe: Probe) -> str:
    """Return a probe in one line, as `kubectl describe` has it."""
    if (http := probe.httpGet) is not None:
        scheme = (http.scheme or "HTTP").lower()
        what = f"{scheme}-get :{http.port}{http.path or '/'}"
    elif (command := probe.exec) is not None:
        what = f"exec {command.command or []}"
    elif (tcp := probe.tcpSocket) is not None:
        what = f"tcp-socket :{tcp.port}"
    elif (grpc := probe.grpc) is not None:
        what = f"grpc :{grpc.port}"
    else:
        what = "unknown"
    timings = (
        ("delay", probe.initialDelaySeconds or 0),
        ("timeout", probe.timeoutSeconds or 1),
        ("period", probe.periodSeconds or 10),
    )
    counts = f"success {probe.successThreshold or 1} failure {probe.failureThreshold or 3}"
    return " ".join((what, *(f"{name} {seconds}s" for name, seconds in timings), counts))


def _volume(volume: Volume) -> dict[str, str]:
    kind, source = next(
        (
            (name, value)
            for name in volume.__struct_fields__
            if name != "name" and (value := getattr(volume, name)) is not None
        ),
        ("emptyDir", None),
    )
    return {"name": volume.name, "kind": kind, "source": " ".join(_source_words(source))}


_NAMES = (
    "path", "claimName", "secretName", "name", "driver", "server", "volumeID", "medium",
    "reference",
)  # fmt: skip


def _source_words(source: Any) -> Iterable[str]:
    """Yield what tells volumes of one kind apart: names and paths, never attributes."""
    for name in _NAMES:
        value = getattr(source, name, None)
        if isinstance(value, str) and value:
            yield value
