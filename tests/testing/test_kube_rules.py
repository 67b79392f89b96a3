"""What API server 1.36.2 answered, asked of the fake: code, reason and message."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from lightkube.models import (
    authentication_v1,
    authorization_v1,
    coordination_v1,
    core_v1,
    node_v1,
    resource_v1,
    storage_v1,
)
from lightkube.models.coordination_v1 import Lease
from lightkube.models.core_v1 import Node, NodeStatus, NodeSwapStatus, ServiceAccount
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.kube import ROUTES, KubeError, apply_merge, from_json
from kubelet_trio.testing import FakeKube
from tests.node.make import INFO
from tests.testing.replay import (
    CSI_NODE,
    EVENT,
    LEASE,
    NODE,
    NODE_STATUS,
    NOW,
    POD,
    POD_STATUS,
    Recorded,
    recorded,
    shortened,
)

# What is not compared, and why: (kind, request, path) -> (how many, reason).
LEFT_OUT: dict[tuple[str, str, str], tuple[int, str]] = {
    (
        "access",
        "GET /apis/certificates.k8s.io/v1beta1/clustertrustbundles",
        "cluster trust bundles",
    ): (1, "nothing here has a route to them: no volume of them is supported"),
}
_CREATED = {"Node": NODE, "Lease": LEASE, "Event": EVENT, "CSINode": CSI_NODE}

Answer = tuple[int, str, str]


def rows(kind: str, request: str) -> list[Recorded]:
    return [
        row
        for row in recorded()
        if row.kind == kind
        and row.request.startswith(request)
        and (row.kind, row.request, row.path) not in LEFT_OUT
    ]


def answer(code: int, call: Callable[[], object]) -> Answer:
    """Return what the server says; `code` where it refuses nothing."""
    try:
        call()
    except KubeError as exc:
        return exc.code, exc.reason, shortened(exc.message)
    return code, "", ""


def differences(found: Iterable[tuple[Recorded, Answer]]) -> list[str]:
    return [
        f"{row}\n  real {row.code, row.reason, row.message}\n  fake {got}"
        for row, got in found
        if got != (row.code, row.reason, row.message)
    ]


@pytest.mark.parametrize("kind", _CREATED)
def test_what_a_node_creates_is_judged_as_by_a_real_server(kind: str) -> None:
    def create(row: Recorded) -> Answer:
        server, route = FakeKube().server, ROUTES[kind]
        body = row.body(_CREATED[kind])
        return answer(201, lambda: server.create(route, body, "default" * route.namespaced))

    cases = rows(kind, "create")
    assert len(cases) > 40
    assert differences((row, create(row)) for row in cases) == []


def patched(
    cases: list[Recorded],
    base: dict[str, Any],
    first: dict[str, Any],
    patch: dict[str, Any],
    sub: str,
) -> list[str]:
    """Patch one object again and again, as the record was made."""
    server, route = FakeKube().server, ROUTES[cases[0].kind]
    namespace = "default" * route.namespaced
    server.create(route, base, namespace)
    name = base["metadata"]["name"]
    server.patch(route, name, first, namespace, sub)

    def ask(row: Recorded) -> Answer:
        body = row.body(patch)
        return answer(200, lambda: server.patch(route, name, body, namespace, sub))

    return differences([(row, ask(row)) for row in cases])


def test_a_nodes_status_is_judged_as_by_a_real_server() -> None:
    whole = {"status": NODE_STATUS}
    cases = rows("Node", "patch status")
    assert len(cases) > 300
    assert patched(cases, {"metadata": {"name": "probe"}}, whole, whole, "status") == []


def test_a_pods_status_is_judged_as_by_a_real_server() -> None:
    whole = {"status": POD_STATUS}
    cases = [r for r in rows("Pod", "patch status") if r.request.endswith("(strategic merge)")]
    assert len(cases) > 430
    assert patched(cases, POD, whole, whole, "status") == []


def test_events_are_patched_as_at_a_real_server() -> None:
    cases = rows("Event", "patch")
    assert len(cases) == 8
    # Each of these patches is of one field alone.
    found = [
        patched([row], EVENT, {}, row.body({**EVENT, row.path[1:]: None}), "") for row in cases
    ]
    assert [text for texts in found for text in texts] == []


RUNNING = {"running": {"startedAt": NOW}}
TERMINATED = {"terminated": {"exitCode": 1, "startedAt": NOW, "finishedAt": NOW}}


def _orders() -> list[Recorded]:
    return [r for r in rows("Pod", "patch status") if not r.request.endswith("(strategic merge)")]


@pytest.mark.parametrize("row", _orders(), ids=str)
def test_phases_and_states_may_follow_each_other_as_at_a_real_server(row: Recorded) -> None:
    def status(value: str) -> dict[str, Any]:
        if row.path == ".status.phase":
            return {"status": {"phase": value}}
        state = {"running": RUNNING, "terminated": TERMINATED}[value]
        container = {"name": "c", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
                     "state": state}  # fmt: skip
        return {"status": {"containerStatuses": [container]}}

    server, pod = FakeKube().server, copy.deepcopy(POD)
    for policy in ("Always", "Never"):
        if f"restartPolicy {policy}" in row.request:
            pod["spec"]["restartPolicy"] = policy
    server.create(ROUTES["Pod"], pod, "default")
    if row.path == ".status.phase":
        before = row.request.removeprefix("patch status: phase ").removesuffix(", then")
    else:
        before = "terminated" if "back to running" in row.request else "running"
    server.patch(ROUTES["Pod"], "probe", status(before), "default", "status")
    got = answer(
        200, lambda: server.patch(ROUTES["Pod"], "probe", status(row.value), "default", "status")
    )
    assert differences([(row, got)]) == []


NAME = "node-1"  # "NODE" in the record
PATCHES: dict[str, dict[str, Any]] = {
    "taint own node": {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}},
    "cordon own node": {"spec": {"unschedulable": True}},
    "status of other node": {"status": {"phase": "Running"}},
}
MIRRORS: dict[str, dict[str, Any]] = {
    "no mirror annotation": {"metadata": {"annotations": None}},
    "no owner": {"metadata": {"ownerReferences": None}},
    "owner not controller": {"metadata": {"ownerReferences": [{"controller": None}]}},
    "other node": {"spec": {"nodeName": "other"}},
    "service account": {"spec": {"serviceAccountName": "default"}},
    "secret volume": {"spec": {"volumes": [{"name": "s", "secret": {"secretName": "none"}}]}},
    "config map env": {
        "spec": {"containers": [{
            "name": "c", "image": "x", "envFrom": [{"configMapRef": {"name": "none"}}],
        }]},
    },
    "claim": {
        "spec": {"volumes": [{"name": "p", "persistentVolumeClaim": {"claimName": "none"}}]},
    },
}  # fmt: skip
TOKENS = {
    "token for a pod not here": {"boundObjectRef": {"kind": "Pod", "name": "none", "uid": "u"}},
    "token without a pod": {},
}
REVIEWS = {
    "TokenReview": {"token": "t"},
    "SubjectAccessReview": {"user": "u", "nonResourceAttributes": {"path": "/", "verb": "get"}},
}
MODULES = (
    core_v1,
    authentication_v1,  # before storage, which has a TokenRequest of its own
    authorization_v1,
    coordination_v1,
    node_v1,
    resource_v1,
    storage_v1,
)


def model(kind: str) -> Any:
    return next(getattr(m, kind) for m in MODULES if hasattr(m, kind))


def mirror(uid: str, change: dict[str, Any]) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": NAME, "uid": uid, "controller": True}
    meta = {"name": f"mirror-{NAME}", "annotations": {"kubernetes.io/config.mirror": "h"}}
    base = {
        "metadata": {**meta, "ownerReferences": [owner]},
        "spec": {"nodeName": NAME, "containers": [{"name": "c", "image": "x"}]},
    }
    body: dict[str, Any] = apply_merge(base, change)
    if body["metadata"].get("ownerReferences") == [{"controller": None}]:
        body["metadata"]["ownerReferences"] = [{**owner, "controller": False}]
    return body


def posted(row: Recorded, uid: str) -> dict[str, Any]:
    """Return the body of a request of which the record says the purpose alone."""
    what, _, how = row.path.partition(": ")
    if what == "mirror pod":
        return mirror(uid, MIRRORS.get(how, {}))
    if row.path in TOKENS:
        return {"spec": {"audiences": ["a"], **TOKENS[row.path]}}
    if row.path in REVIEWS:
        return {"spec": REVIEWS[row.path]}
    about = {"kind": "Node", "name": NAME, "uid": NAME}
    return {"metadata": {"name": f"{NAME}.1"}, "involvedObject": about, "reason": "R"}


async def ask(kube: FakeKube, row: Recorded) -> Answer:
    """Make a request of the record as the node of that name."""
    verb, url = row.request.split()
    path, _, query = url.partition("?")
    parts = path.split("/")[3:] if path.startswith("/api/") else path.split("/")[4:]
    namespace, parts = (
        (parts[1], parts[2:]) if parts[0] == "namespaces" and parts[1:] else ("", parts)
    )
    kind = next(r.kind for r in ROUTES.values() if r.plural == parts[0])
    name, sub = [*parts[1:], "", ""][:2]
    client, type_ = kube.node(NAME), model("TokenRequest" if sub == "token" else kind)
    found = kube.find(Node, NAME)
    uid = (found.metadata.uid if found and found.metadata else None) or ""
    try:
        if verb == "GET" and name:
            await client.get(type_, name, namespace=namespace)
        elif verb == "GET":
            fields = query.removeprefix("fieldSelector=").replace("%3D", "=")
            await client.list(type_, namespace=namespace, field_selector=fields)
        elif verb == "PATCH":
            label = row.path.removeprefix("label ").removesuffix(" of own node")
            body = PATCHES.get(row.path, {"metadata": {"labels": {label: "x"}}})
            await client.patch(type_, name, body, subresource=sub)
        elif verb == "DELETE":
            await client.delete(type_, name)
        else:
            body = from_json(posted(row, uid), type_)
            await client.create(body, namespace=namespace, name=name, subresource=sub)
    except KubeError as exc:
        return exc.code, exc.reason, exc.message
    return row.code if row.code < 300 else 200, "", ""


async def test_a_node_may_do_what_a_real_server_lets_it(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(Node(metadata=ObjectMeta(name=NAME, labels={"kubernetes.io/hostname": NAME})))
    kube.add(ServiceAccount(metadata=ObjectMeta(name="default")))
    kube.add(Lease(metadata=ObjectMeta(name=NAME)), namespace="kube-node-lease")
    cases = [
        replace(r, request=r.request.replace("NODE", NAME), message=r.message.replace("NODE", NAME))
        for r in rows("access", "")
    ]
    assert len(cases) == 50
    found = [(row, await ask(kube, row)) for row in cases]
    assert differences(found) == []


def test_what_is_left_out_is_little_and_has_a_reason() -> None:
    for (kind, request, path), (count, reason) in LEFT_OUT.items():
        named = [r for r in recorded() if (r.kind, r.request, r.path) == (kind, request, path)]
        assert len(named) == count
        assert reason
    assert sum(count for count, _ in LEFT_OUT.values()) <= 10
    assert sum(1 for _ in recorded()) == 1446


async def test_the_node_of_a_machine_without_swap_may_not_say_zero() -> None:
    info = msgspec.structs.replace(INFO, swap=NodeSwapStatus(capacity=0))
    node = Node(metadata=ObjectMeta(name="n"), status=NodeStatus(nodeInfo=info))
    with pytest.raises(KubeError, match=r"nodeSwapStatus\.capacity: Invalid value: 0"):
        await FakeKube().node("n").create(node)


# Rules of which the record holds nothing: from upstream's validation, without a server's word.

PEM = base64.b64encode(
    b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
).decode()
REQUEST: dict[str, Any] = {
    "metadata": {"name": "csr-1"},
    "spec": {"request": PEM, "signerName": "kubernetes.io/kubelet-serving",
             "usages": ["digital signature", "server auth"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"spec": {"request": "AAAA"}}, "spec.request: Invalid value: "),
        ({"spec": {"usages": []}}, "spec.usages: Required value"),
        ({"spec": {"usages": ["baking"]}}, 'spec.usages[0]: Unsupported value: "baking"'),
        ({"spec": {"usages": ["any", "any"]}}, 'spec.usages[1]: Duplicate value: "any"'),
        ({"spec": {"signerName": ""}}, "spec.signerName: Required value"),
        ({"spec": {"signerName": "kubelet"}}, 'spec.signerName: Invalid value: "kubelet"'),
        ({"spec": {"expirationSeconds": 599}}, "spec.expirationSeconds: Invalid value: 599"),
        ({"metadata": {"name": "a/b"}}, 'metadata.name: Invalid value: "a/b"'),
    ],
)
def test_a_request_for_a_certificate_is_judged(change: dict[str, Any], problem: str) -> None:
    server, body = FakeKube().server, apply_merge(REQUEST, change)
    got = answer(201, lambda: server.create(ROUTES["CertificateSigningRequest"], body))
    assert (got[0], problem in got[2]) == (422 if problem else 201, True)


@pytest.mark.parametrize(
    ("subresource", "body", "problem"),
    [
        ("binding", {"target": {"kind": "Node", "name": "n"}}, ""),
        (
            "binding",
            {"target": {"kind": "Pod", "name": "n"}},
            'target.kind: Unsupported value: "Pod"',
        ),
        ("binding", {"target": {"kind": "Node"}}, "target.name: Required value"),
        ("eviction", {"metadata": {"name": "web"}, "deleteOptions": {"gracePeriodSeconds": 1}}, ""),
        (
            "eviction",
            {"metadata": {"name": "web"}, "deleteOptions": {"gracePeriodSeconds": -2}},
            "deleteOptions.gracePeriodSeconds: Invalid value: -2",
        ),
        (
            "eviction",
            {"metadata": {"name": "other"}},
            "name in URL does not match name in Eviction object",
        ),
    ],
)
def test_what_is_posted_to_a_pod_is_judged(
    subresource: str, body: dict[str, Any], problem: str
) -> None:
    server, route = FakeKube().server, ROUTES["Pod"]
    spec = {"containers": [{"name": "c", "image": "x"}]}
    server.create(route, {"metadata": {"name": "web"}, "spec": spec}, "default")
    got = answer(201, lambda: server.create(route, body, "default", "web", subresource))
    assert problem in got[2]
    assert (got[0] == 201) is (not problem)


@pytest.mark.parametrize(
    ("seconds", "problem"),
    [
        (None, ""),
        (600, ""),
        (599, "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than"),
        (2**32 + 1, "may not specify a duration larger than 2^32 seconds"),
    ],
)
def test_a_request_for_a_token_is_judged(seconds: int | None, problem: str) -> None:
    kube, route = FakeKube(), ROUTES["ServiceAccount"]
    kube.add(ServiceAccount(metadata=ObjectMeta(name="default")))
    body = {"spec": {"audiences": ["a"], "expirationSeconds": seconds}}
    got = answer(201, lambda: kube.server.create(route, body, "default", "default", "token"))
    assert (got[0], problem in got[2]) == (422 if problem else 201, True)


@pytest.mark.parametrize(
    ("kind", "meta", "problem"),
    [
        ("Lease", {"labels": {"a b": "c"}}, 'metadata.labels: Invalid value: "a b"'),
        ("Lease", {"labels": {"-/a": "c"}}, "prefix part a lowercase RFC 1123 subdomain"),
        ("Lease", {"annotations": {"a/b/c": "c"}}, "a qualified name must consist of"),
        ("Lease", {"annotations": {"a": "x" * 2**18}}, "Too long: may not be more than 2621"),
        ("Lease", {"ownerReferences": [{"kind": "Node"}]}, "uid must not be empty"),
        (
            "Lease",
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": n, "uid": n,
                                  "controller": True} for n in "ab"]},
            "Only one reference can have Controller set to true",
        ),
        ("Namespace", {"name": "a.b"}, "a lowercase RFC 1123 label"),
    ],
)  # fmt: skip
def test_metadata_is_judged(kind: str, meta: dict[str, Any], problem: str) -> None:
    body = {"metadata": {"name": "probe", **meta}}
    server, route = FakeKube().server, ROUTES[kind]
    got = answer(201, lambda: server.create(route, body, "default" * route.namespaced))
    assert got[0] == 422
    assert problem in got[2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"spec": {"providerID": "z://"}},
            "spec.providerID: Forbidden: node updates may not change",
        ),
        ({"spec": {"podCIDR": "10.2.0.0/24"}}, "spec.podCIDRs: Forbidden: node updates may not"),
        ({"spec": {"externalID": "x"}}, "spec: Forbidden: node updates may only change labels"),
        ({"status": {"capacity": {"pods": "1500m"}}}, "status.capacity.pods: Invalid value"),
    ],
)
def test_what_a_node_is_may_not_be_changed(change: dict[str, Any], problem: str) -> None:
    server, route = FakeKube().server, ROUTES["Node"]
    server.create(route, NODE)
    sub = "status" if "status" in change else ""
    got = answer(200, lambda: server.patch(route, "probe", change, "", sub))
    assert (got[0], problem in got[2]) == (422, True)


@pytest.mark.parametrize("mark", [None, "other"])
def test_a_mirror_stays_the_mirror_that_it_is(mark: str | None) -> None:
    server, route = FakeKube().server, ROUTES["Pod"]
    body = mirror("uid", {})
    server.create(route, body, "default")
    change = {"metadata": {"annotations": {"kubernetes.io/config.mirror": mark}}}
    got = answer(200, lambda: server.patch(route, body["metadata"]["name"], change, "default"))
    assert got[0] == 422
    assert "may not remove or update mirror pod annotation" in got[2]
