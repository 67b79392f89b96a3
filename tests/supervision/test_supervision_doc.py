"""`supervision.md` shows the tree that the code declares."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

from kubelet_trio.config.load import load_settings
from kubelet_trio.config.types import Tracing
from kubelet_trio.daemon import Apis, build_agent, machine_children
from kubelet_trio.kube import CertificateStore, ClientAccess, ClientConfig
from kubelet_trio.model import Meter, SystemClock, inline_offload
from kubelet_trio.node import ClientCertificate, awaited_certificate
from kubelet_trio.supervision import DeclaredNode
from kubelet_trio.testing import FakeKube

DOC = Path(__file__).parents[2] / "supervision.md"

# `│   ├── name   (kind)   words`; without a kind the child is a worker.
_LINE = re.compile(
    r"(?P<lead>(?:(?:│| )   )*(?:[├└]── )?)(?P<name>\S+)"
    r"(?:\s+\((?P<kind>one_for_one|rest_for_one|one_for_all|dynamic)\))?(?:\s{2,}\S.*)?"
)


def parse_tree(text: str) -> DeclaredNode:
    """Read a drawn tree; raises ValueError for a line that is not one of a tree."""
    rows: list[tuple[int, str, str]] = []
    for line in text.strip("\n").splitlines():
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(f"not a line of a tree: {line!r}")
        rows.append((len(match["lead"]) // 4, match["name"], match["kind"] or "worker"))
    root, rest = _take(rows, 0)
    if rest:
        raise ValueError(f"a second root, or a level left out: {rest[0][1]}")
    return root


def _take(
    rows: list[tuple[int, str, str]], depth: int
) -> tuple[DeclaredNode, list[tuple[int, str, str]]]:
    (_, name, kind), rest = rows[0], rows[1:]
    children = []
    while rest and rest[0][0] == depth + 1:
        child, rest = _take(rest, depth + 1)
        children.append(child)
    return DeclaredNode(name, kind, tuple(children)), rest


def differences(written: DeclaredNode, actual: DeclaredNode, path: str = "") -> list[str]:
    """Say where the document differs from the code.

    `<...>` in a written name stands for any text. What is written below a dynamic
    supervisor is a pattern of children to come, and the code declares none.
    """
    path = f"{path}/{actual.name}"
    if written.kind != actual.kind:
        return [f"{path}: written as {written.kind}, is {actual.kind}"]
    if actual.kind == "dynamic":
        return []
    if len(written.children) != len(actual.children) or not all(
        _is_name(ours.name, theirs.name)
        for ours, theirs in zip(written.children, actual.children, strict=True)
    ):
        names = [child.name for child in written.children]
        return [f"{path}: written {names}, is {[child.name for child in actual.children]}"]
    return [
        difference
        for ours, theirs in zip(written.children, actual.children, strict=True)
        for difference in differences(ours, theirs, path)
    ]


def _is_name(pattern: str, name: str) -> bool:
    parts = re.split(r"<[^>]*>", pattern)
    return re.fullmatch(".+".join(map(re.escape, parts)), name) is not None


def documented_tree() -> DeclaredNode:
    """Return the tree in the first fenced block of the section "The tree"."""
    section = DOC.read_text().split("\n## The tree\n", 1)[1]
    return parse_tree(section.split("```")[1].split("\n", 1)[1])


async def test_the_documented_tree_is_the_one_that_the_agent_declares() -> None:
    settings = load_settings(
        [
            "--pod-manifest-path=/manifests",
            "--manifest-url=http://host/pods",
            "--authorization-mode=AlwaysAllow",
            "--anonymous-auth",
            "--read-only-port=10255",
            "--kubeconfig=/k",
            "--system-cgroups=/system",
            "--cgroup-root=/",
            "--rotate-certificates",
            "--rotate-server-certificates",
            "--cpu-manager-policy=static",
            "--reserved-cpus=0",
        ]
    )
    traced = msgspec.structs.replace(settings.config, tracing=Tracing())
    settings = dataclasses.replace(settings, config=traced)
    kube = FakeKube()
    store = CertificateStore(Path("/pki"), "kubelet-client", inline_offload)
    access = ClientAccess(ClientConfig("https://api:6443"), store)
    client = ClientCertificate(
        access, "node", SystemClock(), kube, awaited_certificate(access), Meter(), rotate=True
    )
    apis = Apis(kube, kube, "https://api:6443", client)
    agent = build_agent(settings, {}, apis, machine_tasks=machine_children(settings))
    assert differences(documented_tree(), agent.declared()) == []


TREE = """
kubelet              (one_for_one)   the root
├── runtime          (one_for_all)
│   ├── connection                   gRPC
│   └── pleg
├── pods             (dynamic)       one a pod
│   └── <ns>/<name>@<uid>
│       └── probes/<container>
└── sources          (one_for_one)
    └── file:<dir>
"""

DECLARED = DeclaredNode(
    "kubelet",
    "one_for_one",
    (
        DeclaredNode("runtime", "one_for_all", (DeclaredNode("connection"), DeclaredNode("pleg"))),
        DeclaredNode("pods", "dynamic"),
        DeclaredNode("sources", "one_for_one", (DeclaredNode("file:/etc/manifests"),)),
    ),
)


def test_a_drawn_tree_is_read_with_its_kinds_and_levels() -> None:
    tree = parse_tree(TREE)
    assert tree.kind == "one_for_one"
    assert [child.kind for child in tree.children] == ["one_for_all", "dynamic", "one_for_one"]
    assert [child.name for child in tree.children[0].children] == ["connection", "pleg"]
    assert tree.children[1].children[0].children[0].name == "probes/<container>"


def test_a_tree_that_agrees_has_no_differences() -> None:
    assert differences(parse_tree(TREE), DECLARED) == []


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("pleg", "plug", "/kubelet/runtime: written ['connection', 'plug']"),
        ("│   └── pleg\n", "", "/kubelet/runtime: written ['connection']"),
        ("(one_for_all)", "(rest_for_one)", "/kubelet/runtime: written as rest_for_one"),
        ("(dynamic) ", "          ", "/kubelet/pods: written as worker, is dynamic"),
        ("file:<dir>", "http:<url>", "/kubelet/sources: written ['http:<url>']"),
    ],
)
def test_every_difference_is_found(old: str, new: str, difference: str) -> None:
    assert old in TREE
    found = differences(parse_tree(TREE.replace(old, new)), DECLARED)
    assert len(found) == 1
    assert found[0].startswith(difference)


def test_siblings_written_in_another_order_differ() -> None:
    lines = TREE.strip("\n").splitlines()
    lines[2], lines[3] = lines[3].replace("└", "├"), lines[2].replace("├", "└")
    assert len(differences(parse_tree("\n".join(lines)), DECLARED)) == 1


@pytest.mark.parametrize("text", ["a\n+-- b", "a\n│   └── b", "a\nb"])
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a line|second root"):
        parse_tree(text)
