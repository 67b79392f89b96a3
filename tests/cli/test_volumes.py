"""`kubelet-trio volumes` against a real control socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.cli.volumes import size
from tests.cli.running import ServedView, served
from tests.server.fake_view import FakeView

GIB = 2**30
ROWS: list[dict[str, Any]] = [
    {
        "state": "Mounted",
        "kind": "csi",
        "path": "/pods/1/mount",
        "namespace": "shop",
        "pod": "web-node1",
        "uid": "u1",
        "volume": "store",
        "claim": "web-data",
        "persistent_volume": "pv-7",
        "driver": "hostpath.csi.k8s.io",
        "handle": "h-1",
        "read_only": True,
        "use": {
            "capacity_bytes": 10 * GIB,
            "used_bytes": 5 * GIB,
            "inodes": 100,
            "inodes_used": 7,
            "abnormal": True,
            "message": "disk is\x1b[31m failing",
        },
    },
    {
        "state": "Present",
        "kind": "emptyDir",
        "path": "/pods/1/tmp",
        "namespace": "shop",
        "pod": "web-node1",
        "uid": "u1",
        "volume": "tmp",
    },
    {
        "state": "NotMounted",
        "kind": "csi",
        "mode": "Block",
        "path": "/pods/2/pv",
        "uid": "u-gone",
        "driver": "d",
    },
    {
        "state": "Staged",
        "kind": "csi",
        "path": "/staged",
        "driver": "hostpath.csi.k8s.io",
        "handle": "h-1",
        "users": ["shop/web-node1"],
    },
    {
        "state": "Staged",
        "kind": "csi",
        "path": "/staged-8",
        "driver": "hostpath.csi.k8s.io",
        "handle": "h-8",
        "persistent_volume": "pv-8",
    },
]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    with served(FakeView(), tmp_path) as running:
        running.volumes = msgspec.json.encode({"items": ROWS})
        yield running


def invoke(agent: ServedView, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--root-dir", str(agent.root), "volumes", *words])


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()]


def test_claims_and_drivers_come_first_without_the_pods_own_volumes(agent: ServedView) -> None:
    assert [" ".join(row) for row in rows(invoke(agent))] == [
        "NAMESPACE POD VOLUME KIND CLAIM STATE USED CAPACITY USE%",
        "shop web-node1 store hostpath.csi.k8s.io web-data Mounted 5.0Gi 10Gi 50%",
        "<none> u-gone <none> d <none> NotMounted <unknown> <unknown> <unknown>",
        "<none> <none> h-1 hostpath.csi.k8s.io <none> Staged(1) <unknown> <unknown> <unknown>",
        "<none> <none> pv-8 hostpath.csi.k8s.io <none> Staged(0) <unknown> <unknown> <unknown>",
    ]


def test_all_includes_the_pods_own_volumes(agent: ServedView) -> None:
    assert [row[3] for row in rows(invoke(agent, "--all"))] == [
        "KIND",
        "hostpath.csi.k8s.io",
        "emptyDir",
        "d",
        "hostpath.csi.k8s.io",
        "hostpath.csi.k8s.io",
    ]


def test_a_namespace_has_its_pods_volumes_and_what_is_staged_for_them(agent: ServedView) -> None:
    assert [row[5] for row in rows(invoke(agent, "-n", "shop"))] == [
        "STATE",
        "Mounted",
        "Staged(1)",
    ]


def test_wide_shows_where_and_how_and_escapes_what_a_driver_says(agent: ServedView) -> None:
    result = invoke(agent, "-o", "wide")
    header, first, second, *_ = result.output.splitlines()
    assert header.split()[9:] == ["MODE", "ACCESS", "INODES%", "HEALTH", "PV", "HANDLE", "PATH"]
    assert r"Filesystem   ro       7%          Abnormal: disk is\x1b[31m failing" in first
    assert first.endswith("pv-7     h-1      /pods/1/mount")
    assert second.split()[9:11] == ["Block", "rw"]


def test_json_has_every_field(agent: ServedView) -> None:
    result = invoke(agent, "-o", "json", "--all")
    assert msgspec.json.decode(result.output)["items"] == ROWS


def test_a_node_without_volumes_says_so(agent: ServedView) -> None:
    agent.volumes = b'{"items":[]}'
    result = invoke(agent)
    assert (result.exit_code, result.output) == (0, "No resources found\n")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (None, "<unknown>"),
        (0, "0"),
        (1023, "1023"),
        (1024, "1.0Ki"),
        (10 * 1024, "10Ki"),
        (2**20 - 1, "1.0Mi"),
        (5 * GIB + 3, "5.0Gi"),
        (2**63, "8.0Ei"),
    ],
)
def test_sizes_are_short(count: int | None, expected: str) -> None:
    assert size(count) == expected
