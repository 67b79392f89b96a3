"""What a node asks of its API server, by the server's own audit log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.harness import Agent, container, eventually, forever, is_ready, pod
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeClient
from tests.harness.pods import Json, WaitTimeoutError

NODE = "quiet"  # its own, as every module's that shares the server
NODE_PATH = f"/api/v1/nodes/{NODE}"
USER = f"system:node:{NODE}"
STATIC, BOUND = 10, 20
A_MINUTE = 12  # requests that an idle node of 30 pods may make
_RENEWALS = 6  # of the lease, in a minute
_SERVER_ENDS = 2700.0  # seconds on average after which a server ends a watch that names no end
_QUIET = 8.0  # seconds without a request beside the lease's: what was to be said has been


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, kube: KubeClient, make_agent: Callable[..., Agent]) -> Agent:
    """A node from its first registration on."""
    kube.prepare_namespace("kube-node-lease", plane.authority.certificate)
    kubeconfig = str(plane.node_kubeconfig(NODE))
    agent = make_agent(arguments=("--kubeconfig", kubeconfig, "--hostname-override", NODE))
    agent.start()
    kube.wait(NODE_PATH, is_ready, what="Ready")
    return agent


def needy(name: str) -> Json:
    """Return a pod bound to the node that refers to objects of its own, and has a token."""
    main = container(
        "main",
        forever(),
        volumeMounts=[{"name": "secret", "mountPath": "/secret"}],
        envFrom=[{"configMapRef": {"name": name}}],
    )
    volume = {"name": "secret", "secret": {"secretName": name}}
    return pod(name, main, nodeName=NODE, volumes=[volume])


def is_lease(entry: Json) -> bool:
    return "/leases/" in str(entry["requestURI"])


def asked(plane: ControlPlane) -> dict[str, Json]:
    """Return the node's requests by their ID, each as it was last told of; watches as others."""
    return {entry["auditID"]: entry for entry in plane.audit(USER)}


def wait_quiet(plane: ControlPlane, within: float = 180) -> None:
    """Wait until the node has nothing to say beside that it lives."""
    seen, since = -1, time.monotonic()
    deadline = since + within
    while time.monotonic() - since < _QUIET:
        others = sum(not is_lease(entry) for entry in asked(plane).values())
        if others != seen:
            seen, since = others, time.monotonic()
        if since > deadline:
            raise WaitTimeoutError(f"{USER} still asks after {within:g} s: {seen} requests")
        time.sleep(0.5)


def rewatches_a_minute(entries: list[Json]) -> float:
    """Return how often the watches will be begun anew, by the seconds that they ask for."""
    wanted = [re.search(r"timeoutSeconds=(\d+)", e["requestURI"]) for e in entries]
    return sum(60 / (float(found[1]) if found else _SERVER_ENDS) for found in wanted)


def test_an_idle_node_of_30_pods_asks_little(
    agent: Agent, kube: KubeClient, plane: ControlPlane, namespace: str
) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    bound = [f"needy-{n}" for n in range(BOUND)]
    for name in bound:
        kube.create(f"{base}/secrets", {"metadata": {"name": name}, "stringData": {"a": name}})
        kube.create(f"{base}/configmaps", {"metadata": {"name": name}, "data": {"A": name}})
        kube.create(f"{base}/pods", needy(name))
    static = [f"quiet-{n}" for n in range(STATIC)]
    for name in static:
        agent.put(pod(name))
    for path in (
        *(f"{base}/pods/{name}" for name in bound),
        *(f"/api/v1/namespaces/default/pods/{name}-{NODE}" for name in static),
    ):
        kube.wait(path, is_ready, 240, "Ready")
    wait_quiet(plane)

    before = asked(plane)

    def new() -> list[Json]:
        return [entry for key, entry in asked(plane).items() if key not in before]

    eventually(
        lambda: sum(map(is_lease, new())) >= _RENEWALS, 180, f"{_RENEWALS} renewals of the lease"
    )
    others = [entry for entry in new() if not is_lease(entry)]
    told = [f"{entry['verb']} {entry['requestURI']}" for entry in others]
    watches = [entry for entry in before.values() if entry["verb"] == "watch"]
    assert len(watches) >= 2 * BOUND, "one of each secret and config map"
    assert _RENEWALS + len(others) + rewatches_a_minute(watches) <= A_MINUTE, told
    # The node is well and nothing of it changes: at most the report that is due in any case.
    assert sum(NODE_PATH in entry["requestURI"] for entry in others) <= 1, told

    for name in bound:
        kube.delete(f"{base}/pods/{name}", gracePeriodSeconds=1)
    for name in static:
        agent.drop(name)
    for name in bound:
        kube.wait_gone(f"{base}/pods/{name}", 120)
    for name in static:
        kube.wait_gone(f"/api/v1/namespaces/default/pods/{name}-{NODE}", 120)


def test_nothing_that_the_node_did_was_denied(agent: Agent, plane: ControlPlane) -> None:
    """The last one here: registration, pods, tokens, events, mirrors, deletion."""
    agent.stop()
    entries = list(asked(plane).values())
    assert {"create", "patch", "update", "delete", "watch", "list"} <= {e["verb"] for e in entries}

    def code(entry: Json) -> int:
        return int(entry.get("responseStatus", {}).get("code", 0))

    def named(entry: Json) -> tuple[str, ...]:
        ref = entry.get("objectRef", {})
        return tuple(str(ref.get(part, "")) for part in ("resource", "namespace", "name"))

    # The authoriser hears of a pod by a watch of its own, and may hear of it after the node
    # does: what it refuses then, and grants when it is asked again, was the node's right.
    granted = {named(entry) for entry in entries if code(entry) < 400}
    denied = [entry for entry in entries if code(entry) in (401, 403)]
    never = [
        f"{entry['verb']} {entry['requestURI']}"
        for entry in denied
        if named(entry) not in granted
        or named(entry)[0] not in ("secrets", "configmaps", "serviceaccounts")
    ]
    assert never == []
