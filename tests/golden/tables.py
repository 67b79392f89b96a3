"""The recorded data and a recording as two tables of the same shape, and what differs.

A table is one subject (a pod, a container, a page) -> what -> value. Both sides go through
the same words, and chance is taken out of both the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.golden import api, inside
from tests.golden.corpus import recorded
from tests.golden.normal import NO_WORDS, Words, flat, shown
from tests.golden.recording import Recording
from tests.harness.pods import Json

Table = dict[str, dict[str, str]]
ABSENT = "(absent)"


class Difference(NamedTuple):
    """What the Go kubelet has, and what this agent has."""

    table: str
    subject: str
    what: str
    go: str
    ours: str

    def __str__(self) -> str:
        return (
            f"{self.table} {self.subject} {self.what}\n    Go:   {self.go}\n    ours: {self.ours}"
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of thing that is compared: how to get its table of each side."""

    name: str
    go: Callable[[], Table]
    ours: Callable[[Recording, Words], Table]


def differences(kind: Kind, recording: Recording) -> Iterator[Difference]:
    """Yield what differs, by subject."""
    go, ours = kind.go(), kind.ours(recording, Words((a, b) for a, b in recording.words))
    for subject in sorted({*go, *ours}):
        theirs, mine = go.get(subject, {}), ours.get(subject, {})
        for what in sorted({*theirs, *mine}):
            left, right = theirs.get(what, ABSENT), mine.get(what, ABSENT)
            if left != right:
                yield Difference(kind.name, subject, what, left, right)


# Pods

# Go's encoder writes some fields even where there is nothing in them.
_WRITTEN_EMPTY = re.compile(r"\.(lastState|conditions)$")
# Of a container that crashes again and again: whatever of these was seen is as good.
_OF_A_CRASH = re.compile(r"(state|lastState)(\.|$)|(restartCount|containerID|ready|started)$")
_OF_ITS_POD = re.compile(r"status\.conditions\.(Ready|ContainersReady)\.(message|reason|status)$")


def _pods(pods: dict[str, Json]) -> Table:
    table: Table = {}
    for name, pod in pods.items():
        found = {
            path: _CAPACITY.sub("capacity: MACHINE", shown(value))
            for path, value in flat(pod["status"], "status").items()
            if value is not None and not (value in ({}, []) and _WRITTEN_EMPTY.search(path))
        }
        _take_out_chance(found)
        for kind in ("labels", "annotations"):
            found |= {f"{kind}.{k}": shown(v) for k, v in (pod.get(kind) or {}).items()}
        table[name] = found
    return table


_CONTAINER = re.compile(r"(status\.\w*[cC]ontainerStatuses\.[^.]+)\.")


def _take_out_chance(found: dict[str, str]) -> None:
    """Reduce a container that restarts to what it has ended with, and that it restarts."""
    containers = {m[1] for path in found if (m := _CONTAINER.match(path))}
    crashing = {c for c in containers if found.get(f"{c}.restartCount", "0") != "0"}
    for container in sorted(crashing):
        ends = set()
        for path in [p for p in found if p.startswith(f"{container}.")]:
            field = path.removeprefix(f"{container}.")
            if _OF_A_CRASH.match(field):
                value = found.pop(path)
                if field.endswith("terminated.exitCode"):
                    ends.add(value)
        found[f"{container}.restarts"] = f"after exit codes {sorted(ends)}"
    if crashing:
        for path in [path for path in found if _OF_ITS_POD.match(path)]:
            found.pop(path)


def _go_pods() -> Table:
    return _pods(NO_WORDS.json(recorded("pods")))


def _our_pods(recording: Recording, words: Words) -> Table:
    pods = {
        name: {
            "status": pod["status"],
            "labels": pod["metadata"].get("labels"),
            "annotations": pod["metadata"].get("annotations"),
        }
        for name, pod in recording.pods.items()
    }
    return _pods(words.json(pods))


# Events

# What a run may or may not come by: a probe before the program listens or has made its file, or
# on a busy machine. A probe that is killed with its container has said nothing, and one of a server
# that is killed is reset or cut off.
_LUCK = re.compile(
    r"Unhealthy .*(connection refused|connection reset|: EOF|context deadline exceeded"
    r"|command timed out|errored and resulted in unknown|can't open '/tmp/ok'"
    r"|Readiness probe failed:  @)"
)
_ENDING = re.compile(r"Killing Stopping container")
_CAPACITY = re.compile(r"capacity: \d+")


def _events(events: dict[str, list[list[str]]]) -> Table:
    """Events by pod; whether a container that crashes was stopped at the end is chance."""
    table: Table = {}
    for pod, told in events.items():
        restarts = any(reason == "BackOff" for _, reason, _, _ in told)
        for kind, reason, message, path in told:
            what = _CAPACITY.sub("capacity: MACHINE", f"{kind} {reason} {message} @{path}")
            luck = _LUCK.search(what) and pod != "liveness-tcp"
            if not luck and not (restarts and _ENDING.search(what)):
                table.setdefault(pod, {})[what] = "there"
    return table


def _go_events() -> Table:
    return _events(NO_WORDS.json(recorded("events")))


def _our_events(recording: Recording, words: Words) -> Table:
    return _events(words.json(recording.events))


# Containers


def _containers(containers: dict[str, Json]) -> Table:
    table = {}
    for name, info in containers.items():
        spec = dict(info["Spec"])
        process = dict(spec["process"])
        if name.endswith("/SANDBOX"):
            # What the pause image says, which is another one here.
            for field in ("env", "args"):
                process.pop(field, None)
            if process.get("user", {}).get("uid") == _PAUSE_USER:
                process.pop("user")
            process.setdefault("user", {"uid": 0, "gid": 0, "additionalGids": [0]})
            if process["user"].get("uid", 0) == 0:
                process.pop("user")
        elif isinstance(process.get("env"), list):
            process["env"] = dict(sorted(v.split("=", 1) for v in process["env"]))
        linux = dict(spec["linux"])
        if "devices" in linux:
            linux["devices"] = "the machine's"
        if name.endswith("/SANDBOX"):
            sysctls = linux.get("sysctl", {})
            linux["sysctl"] = {k: v for k, v in sysctls.items() if k not in _RUNTIMES_OWN}
        if "seccomp" in linux:
            linux["seccomp"] = {**linux["seccomp"], "syscalls": "..."}
        spec |= {"process": process, "linux": linux}
        kept = {"Image": info["Image"], "Labels": info["Labels"], "Spec": spec}
        table[name] = {path: shown(value) for path, value in flat(kept).items()}
    return table


# What containerd sets by its own configuration (enable_unprivileged_ports, _icmp), which another
# one has here.
_RUNTIMES_OWN = {"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"}
_PAUSE_USER = 65535  # of the recorded pause image


def _go_containers() -> Table:
    return _containers(NO_WORDS.json(recorded("containers")))


def _our_containers(recording: Recording, words: Words) -> Table:
    return _containers(words.json(recording.containers))


# The node


_OF_THE_MACHINE = re.compile(
    r"\.(cpu|memory|ephemeral-storage|Port|kernelVersion|bootID|machineID|systemUUID|osImage)$"
)


def _node(node: Json, lease: Json) -> Table:
    meta = {k: v for k, v in node["metadata"].items() if k in ("name", "labels", "annotations")}
    # The controller's of node TTLs.
    meta["annotations"] = {
        k: v for k, v in meta["annotations"].items() if k != "node.alpha.kubernetes.io/ttl"
    }
    status = dict(node["status"])
    status.pop("images", None)  # the machine's; left out when the data was recorded
    kept = {"metadata": meta, "spec": node.get("spec", {}), "status": status}
    lease = {**lease, "metadata": {
        k: v for k, v in lease["metadata"].items() if k in ("name", "namespace", "ownerReferences")
    }}  # fmt: skip
    return {
        "node": {
            path: "MACHINE" if _OF_THE_MACHINE.search(path) else shown(value)
            for path, value in flat(kept).items()
        },
        "lease": {path: shown(value) for path, value in flat(lease).items()},
    }


def _go_node() -> Table:
    return _node(NO_WORDS.json(recorded("node")), NO_WORDS.json(recorded("lease")))


def _our_node(recording: Recording, words: Words) -> Table:
    return _node(words.json(recording.node), words.json(recording.lease))


# Metrics and shapes


def _go_metrics() -> Table:
    return {
        page: {name: shown(labels) for name, labels in families.items()}
        for page, families in recorded("metrics").items()
    }


def _our_metrics(recording: Recording, _: Words) -> Table:
    return {
        page: {name: shown(labels) for name, labels in api.families(text).items()}
        for page, text in recording.metrics.items()
    }


def _present(paths: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(paths, "there")


def _go_shapes() -> Table:
    return {page: _present(paths) for page, paths in recorded("shapes").items()}


def _our_shapes(recording: Recording, _: Words) -> Table:
    return {page: _present(api.shape(answer)) for page, answer in recording.answers.items()}


# Cgroups and files


def _by_line(lines: Iterable[str]) -> dict[str, str]:
    return _present(set(lines))


# Figures of the machine: what all pods may have.
_MACHINE = re.compile(r"(cpuset\.cpus|\./kubepods (?:memory\.limit_in_bytes|pids\.max)) \S+")


def _go_cgroups() -> Table:
    return {"kubepods": _by_line(_MACHINE.sub(r"\1 MACHINE", line) for line in recorded("cgroups"))}


def _our_cgroups(recording: Recording, words: Words) -> Table:
    lines = (_MACHINE.sub(r"\1 MACHINE", words.text(line)) for line in recording.cgroups)
    return {"kubepods": _by_line(lines)}


# A file that a container writes at its end is empty until then.
_TERMINATION_LOG = re.compile(r"regular (?:empty )?(file \S+/containers/\S+/RANDOM)")


def _files(lines: Iterable[str]) -> Table:
    table: dict[str, str] = {}
    for line in set(lines):
        what, _, path = _TERMINATION_LOG.sub(r"regular \1", line).rpartition(" ")
        table[path] = " and ".join(sorted({what, *table.get(path, what).split(" and ")}))
    return {"pods": table}


def _go_files() -> Table:
    return _files(NO_WORDS.json(recorded("files")))


def _our_files(recording: Recording, words: Words) -> Table:
    return _files(words.json(recording.files))


def _inside(shown_lines: dict[str, list[str]]) -> Table:
    return {
        pod: inside.facts(lines, host_files=pod == "hostnet") for pod, lines in shown_lines.items()
    }


def _go_inside() -> Table:
    return _inside(NO_WORDS.json(recorded("inside")))


def _our_inside(recording: Recording, words: Words) -> Table:
    told: dict[str, Any] = {pod: text.splitlines() for pod, text in recording.inside.items()}
    found, go = _inside(words.json(told)), _go_inside()
    # The recorded data has not everything of every pod.
    asked = {pod: {what.partition(" ")[0] for what in facts} for pod, facts in go.items()}
    return {
        pod: {
            what: value
            for what, value in facts.items()
            if what.partition(" ")[0] in asked.get(pod, ())
        }
        for pod, facts in found.items()
    }


KINDS = (
    Kind("pods", _go_pods, _our_pods),
    Kind("events", _go_events, _our_events),
    Kind("containers", _go_containers, _our_containers),
    Kind("node", _go_node, _our_node),
    Kind("metrics", _go_metrics, _our_metrics),
    Kind("shapes", _go_shapes, _our_shapes),
    Kind("cgroups", _go_cgroups, _our_cgroups),
    Kind("files", _go_files, _our_files),
    Kind("inside", _go_inside, _our_inside),
)
