"""`describe pod`: all details of a pod, in the sections and words of kubectl describe. Pure.

Source: describePod and its helpers in k8s.io/kubectl/pkg/describe/describe.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubelet_trio.cli.ages import age, long_time
from kubelet_trio.cli.podstate import TERMINAL_PHASES, Json, items, part
from kubelet_trio.cli.tables import Table, event_age, printable

_NONE = "<none>"
_VOLUMES = {
    "configMap": "ConfigMap (a volume populated by a ConfigMap)",
    "csi": "CSI (a Container Storage Interface (CSI) volume source)",
    "downwardAPI": "DownwardAPI (a volume populated by information about the pod)",
    "emptyDir": "EmptyDir (a temporary directory that shares a pod's lifetime)",
    "hostPath": "HostPath (bare host directory volume)",
    "image": "Image (a container image or OCI artifact)",
    "nfs": "NFS (an NFS mount that lasts the lifetime of a pod)",
    "persistentVolumeClaim": (
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)"
    ),
    "projected": "Projected (a volume that contains injected data from multiple sources)",
    "secret": "Secret (a volume populated by a Secret)",
}


def describe_pod(
    pod: Json,
    events: Sequence[Json],
    now: float,
    manifest_errors: Sequence[str] = (),
    progress: Sequence[str] = (),
    why: Sequence[str] = (),
) -> str:
    """Return the description of a pod with its events, oldest first.

    `manifest_errors` are those of the manifest that it would follow if it were valid; `progress`
    is what is under way, `why` what stands between the pod and what is wanted of it.
    """
    lines = [
        *_head(pod, manifest_errors, progress, why),
        *_containers("Init Containers", pod, "initContainers", "initContainerStatuses"),
        *_containers("Containers", pod, "containers", "containerStatuses"),
        *_containers(
            "Ephemeral Containers", pod, "ephemeralContainers", "ephemeralContainerStatuses"
        ),
        *_conditions(pod),
        *_volumes(items(part(pod, "spec"), "volumes")),
        *_tail(pod),
        *event_lines(events, now),
    ]
    return printable("\n".join(lines) + "\n")


def _head(
    pod: Json, manifest_errors: Sequence[str], progress: Sequence[str], why: Sequence[str]
) -> Iterator[str]:
    meta, spec, status = part(pod, "metadata"), part(pod, "spec"), part(pod, "status")
    node = spec.get("nodeName") or _NONE
    if host := status.get("hostIP"):
        node = f"{node}/{host}"
    fields: list[tuple[str, Sequence[str]]] = [
        ("Name", [meta.get("name", "")]),
        ("Namespace", [meta.get("namespace", "")]),
        ("Priority", [str(spec.get("priority") or 0)]),
        ("Priority Class Name", [spec.get("priorityClassName") or ""]),
        ("Service Account", [spec.get("serviceAccountName") or ""]),
        ("Node", [node]),
        ("Start Time", [long_time(status.get("startTime"))]),
        ("UID", [meta.get("uid", "")]),
        ("Labels", mapping_lines(meta.get("labels"), "=")),
        ("Annotations", mapping_lines(meta.get("annotations"), ": ")),
        ("Status", [_phase(meta, status)]),
        ("Reason", [status.get("reason") or ""]),
        ("Message", [status.get("message") or ""]),
        ("Manifest Errors", manifest_errors),
        ("Progress", progress),
        ("Why", why),
        ("IP", [status.get("podIP") or ""]),
    ]
    # kubectl prints these fields only if they are set, all others always.
    may_be_left_out = {
        "Priority Class Name",
        "Service Account",
        "Reason",
        "Message",
        "Manifest Errors",
        "Progress",
        "Why",
    }
    shown = [(name, v) for name, v in fields if any(v) or name not in may_be_left_out]
    width = max(len(name) for name, _ in shown) + 3
    for name, values in shown:
        for index, value in enumerate(values):
            yield f"{name + ':' if index == 0 else '':<{width}}{value}".rstrip()
    addresses = items(status, "podIPs")
    # As kubectl: "IP:" is the first address, "IPs:" lists all of them.
    yield "IPs:" if addresses else f"{'IPs:':<{width}}{_NONE}"
    for address in addresses:
        yield f"  IP:  {address.get('ip', '')}"


def mapping_lines(values: Mapping[str, Any] | None, sign: str) -> Sequence[str]:
    """Return labels or annotations, one a line."""
    return [f"{key}{sign}{value}" for key, value in sorted((values or {}).items())] or [_NONE]


def _phase(meta: Json, status: Json) -> str:
    if meta.get("deletionTimestamp") and status.get("phase") not in TERMINAL_PHASES:
        grace = meta.get("deletionGracePeriodSeconds")
        return "Terminating" + (f" (grace period {grace}s)" if grace is not None else "")
    return str(status.get("phase") or "")


def _containers(title: str, pod: Json, spec_list: str, status_list: str) -> Iterator[str]:
    containers = items(part(pod, "spec"), spec_list)
    statuses = {s.get("name"): s for s in items(part(pod, "status"), status_list)}
    if containers:
        yield f"{title}:"
    for container in containers:
        yield f"  {container.get('name', '')}:"
        yield from _container(container, statuses.get(container.get("name"), {}))


def _container(container: Json, status: Json) -> Iterator[str]:
    ports = items(container, "ports")
    shown = ", ".join(f"{p.get('containerPort')}/{p.get('protocol', 'TCP')}" for p in ports)
    hosts = ", ".join(f"{p.get('hostPort') or 0}/{p.get('protocol', 'TCP')}" for p in ports)
    plural = "s" if len(ports) > 1 else ""
    yield from _fields(
        ("Container ID", status.get("containerID", "")),
        ("Image", container.get("image", "")),
        ("Image ID", status.get("imageID", "")),
        (f"Port{plural}", shown or _NONE),
        (f"Host Port{plural}", hosts or _NONE),
    )
    for title, name in (("Command", "command"), ("Args", "args")):
        words = container.get(name) or ()
        if words:
            yield f"    {title}:"
        for word in words:
            # A script in one argument keeps its lines.
            yield from (f"      {line}" for line in str(word).splitlines() or [""])
    yield from _state("State", part(status, "state"))
    if last := part(status, "lastState"):
        yield from _state("Last State", last)
    yield from _fields(
        ("Ready", "True" if status.get("ready") else "False"),
        ("Restart Count", str(status.get("restartCount") or 0)),
    )
    if container.get("restartPolicy"):
        yield from _fields(("Restart Policy", container["restartPolicy"]))
    for title in ("limits", "requests"):
        amounts = part(container, "resources", title)
        if amounts:
            yield f"    {title.capitalize()}:"
        for name, amount in sorted(amounts.items()):
            yield f"      {name + ':':<{max(map(len, amounts)) + 3}}{amount}"
    for title in ("liveness", "readiness", "startup"):
        if probe := part(container, f"{title}Probe"):
            yield from _fields((title.capitalize(), _probe(probe)))
    yield from _environment(container)
    yield from _mounts(container)


def _fields(*pairs: tuple[str, str]) -> Iterator[str]:
    for name, value in pairs:
        yield f"    {name + ':':<16}{value}".rstrip()


def _state(title: str, state: Json) -> Iterator[str]:
    if "running" in state:
        yield from _fields((title, "Running"))
        yield from _fields(("  Started", long_time(part(state, "running").get("startedAt"))))
    elif "terminated" in state:
        ended = part(state, "terminated")
        yield from _fields((title, "Terminated"))
        for name, key in (("Reason", "reason"), ("Message", "message")):
            if ended.get(key):
                yield from _fields((f"  {name}", str(ended[key]).strip()))
        yield from _fields(("  Exit Code", str(ended.get("exitCode", 0))))
        if ended.get("signal"):
            yield from _fields(("  Signal", str(ended["signal"])))
        yield from _fields(
            ("  Started", long_time(ended.get("startedAt"))),
            ("  Finished", long_time(ended.get("finishedAt"))),
        )
    else:
        yield from _fields((title, "Waiting"))
        waiting = part(state, "waiting")
        for name, key in (("Reason", "reason"), ("Message", "message")):
            if waiting.get(key):
                yield from _fields((f"  {name}", str(waiting[key]).strip()))


def _probe(probe: Json) -> str:
    numbers = " ".join(
        f"{name}={probe.get(key, default)}{unit}"
        for name, key, default, unit in (
            ("delay", "initialDelaySeconds", 0, "s"),
            ("timeout", "timeoutSeconds", 1, "s"),
            ("period", "periodSeconds", 10, "s"),
            ("#success", "successThreshold", 1, ""),
            ("#failure", "failureThreshold", 3, ""),
        )
    )
    if "exec" in probe:
        return f"exec {part(probe, 'exec').get('command', [])} {numbers}"
    if get := part(probe, "httpGet"):
        scheme = str(get.get("scheme", "HTTP")).lower()
        where = f"{scheme}://{get.get('host', '')}:{get.get('port')}{get.get('path', '/')}"
        return f"http-get {where} {numbers}"
    if "tcpSocket" in probe:
        socket = part(probe, "tcpSocket")
        return f"tcp-socket {socket.get('host', '')}:{socket.get('port')} {numbers}"
    grpc = part(probe, "grpc")
    return f"grpc <pod>:{grpc.get('port')} {grpc.get('service') or ''} {numbers}"


def _environment(container: Json) -> Iterator[str]:
    variables = items(container, "env")
    yield "    Environment:" if variables else f"    Environment:    {_NONE}"
    width = max((len(str(v.get("name"))) for v in variables), default=0) + 3
    for variable in variables:
        yield f"      {variable.get('name', '') + ':':<{width}}{_value(variable)}".rstrip()


def _value(variable: Json) -> str:
    source = part(variable, "valueFrom")
    if field := part(source, "fieldRef"):
        return f"({field.get('apiVersion', 'v1')}:{field.get('fieldPath')})"
    if resource := part(source, "resourceFieldRef"):
        return f"{resource.get('containerName', '')} ({resource.get('resource')})".strip()
    for kind, text in (("configMapKeyRef", "config map"), ("secretKeyRef", "secret")):
        if ref := part(source, kind):
            return f"<set to the key '{ref.get('key')}' of {text} '{ref.get('name')}'>"
    return str(variable.get("value") or "")


def _mounts(container: Json) -> Iterator[str]:
    mounts = items(container, "volumeMounts")
    yield "    Mounts:" if mounts else f"    Mounts:         {_NONE}"
    for mount in sorted(mounts, key=lambda m: str(m.get("mountPath"))):
        flags = "ro" if mount.get("readOnly") else "rw"
        if path := mount.get("subPath"):
            flags += f',path="{path}"'
        yield f"      {mount.get('mountPath')} from {mount.get('name')} ({flags})"


def _conditions(pod: Json) -> Iterator[str]:
    conditions = items(part(pod, "status"), "conditions")
    if not conditions:
        return
    yield "Conditions:"
    width = max(len(str(c.get("type"))) for c in conditions) + 2
    yield f"  {'Type':<{width}}Status"
    for condition in conditions:
        yield f"  {condition.get('type', ''):<{width}}{condition.get('status', '')}"


def _volumes(volumes: Sequence[Json]) -> Iterator[str]:
    if not volumes:
        yield "Volumes:           <none>"
        return
    yield "Volumes:"
    for volume in volumes:
        yield f"  {volume.get('name', '')}:"
        # A volume has its name and exactly one source, whose key is the type.
        kind = next((name for name in volume if name != "name"), "")
        source = part(volume, kind) if kind else {}
        details = [
            ("Type", _VOLUMES.get(kind, kind or "<unknown>")),
            *_volume_details(kind, source),
        ]
        width = max(len(name) for name, _ in details) + 3
        for name, value in details:
            yield f"    {name + ':':<{width}}{value}".rstrip()


def _volume_details(kind: str, source: Json) -> Iterator[tuple[str, str]]:
    if kind == "emptyDir":
        yield "Medium", str(source.get("medium") or "")
        yield "SizeLimit", str(source.get("sizeLimit") or "<unset>")
    elif kind == "hostPath":
        yield "Path", str(source.get("path") or "")
        yield "HostPathType", str(source.get("type") or "")
    else:
        for name, value in source.items():
            if isinstance(value, str | int | bool):
                yield name[:1].upper() + name[1:], str(value)


def _tail(pod: Json) -> Iterator[str]:
    spec = part(pod, "spec")
    yield f"QoS Class:         {part(pod, 'status').get('qosClass') or ''}"
    selectors = sorted((spec.get("nodeSelector") or {}).items())
    yield f"Node-Selectors:    {', '.join(f'{k}={v}' for k, v in selectors) or _NONE}"
    tolerations = [_toleration(t) for t in items(spec, "tolerations")] or [_NONE]
    for index, text in enumerate(tolerations):
        yield f"{'Tolerations:' if index == 0 else '':<19}{text}"


def _toleration(toleration: Json) -> str:
    text = toleration.get("key") or ""
    if toleration.get("value"):
        text += f"={toleration['value']}"
    if toleration.get("effect"):
        text += f":{toleration['effect']}"
    if toleration.get("operator") == "Exists":
        text += " op=Exists"
    seconds = toleration.get("tolerationSeconds")
    return text + (f" for {seconds}s" if seconds is not None else "")


def event_lines(events: Sequence[Json], now: float) -> Iterator[str]:
    """Yield the section of an object's events."""
    if not events:
        yield f"Events:            {_NONE}"
        return
    rows = [
        (
            event.get("type", ""),
            event.get("reason", ""),
            event_age(event, now) if event.get("lastTimestamp") else age(None, now),
            part(event, "source").get("component", ""),
            str(event.get("message", "")).strip(),
        )
        for event in events
    ]
    table = Table(("Type", "Reason", "Age", "From", "Message"), gap=2)
    rows.insert(0, ("----", "------", "----", "----", "-------"))
    table.fit(rows)
    yield "Events:"
    yield f"  {table.header()}"
    yield from (f"  {line}" for line in table.rows(rows))
