"""The page of several nodes: who may read it, and what it takes from agents."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubelet_trio.server import HttpError, Request, Router, failed_node, fleet_node, fleet_router

DATA: dict[str, Any] = {
    "version": "1",
    "now": 5.0,
    "node": {"name": "n1", "page": "127.0.0.1:4194"},
    "pods": [],
    "stats": {
        "node": {"cpu": {"usageNanoCores": 7}, "memory": {"usageBytes": 3, "availableBytes": 4}}
    },
}


def router() -> Router:
    async def nodes() -> list[Any]:
        return [failed_node("a", "", "gone")]

    return fleet_router(nodes, "s3cret")


async def status_of(path: str, method: str = "GET") -> int:
    try:
        return (await router()(Request(method, path))).status
    except HttpError as exc:
        return exc.status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/s3cret", 302),
        ("/s3cret/", 302),
        ("/s3cret/data", 200),
        ("/s3cret/fleet.js", 200),
        ("/s3cret/page.js", 404),
        ("/s3cret/../fleet.js", 404),
        ("/", 404),
        ("/guess", 404),
        ("/guess/", 404),
        ("/guess/data", 404),
        ("/guess/fleet.js", 404),
        ("/s3crét/data", 404),
    ],
)
async def test_only_who_knows_the_address_reads_it(path: str, status: int) -> None:
    assert await status_of(path) == (200 if path == "/s3cret/" else status)


async def test_nothing_can_be_changed() -> None:
    assert await status_of("/s3cret/data", "POST") == 405


async def test_the_page_may_load_its_own_files_alone() -> None:
    for path in ("/s3cret/", "/s3cret/data", "/s3cret/base.css"):
        answer = await router()(Request("GET", path))
        policy = dict(answer.headers)["Content-Security-Policy"]
        assert policy.startswith("default-src 'none';")


def test_a_node_is_told_by_its_name_here() -> None:
    told = fleet_node("mine", "", msgspec.json.encode(DATA))
    assert (told["name"], told["error"], told["cpu"]) == ("mine", "", 7)
    assert (told["memory"], told["memoryTotal"]) == (3, 7)
    assert told["link"] == "http://127.0.0.1:4194/ui/"
    # Where the user has forwarded it to comes first.
    assert fleet_node("mine", "http://localhost:1/ui/", msgspec.json.encode(DATA))["link"] == (
        "http://localhost:1/ui/"
    )


def test_an_agent_cannot_lead_elsewhere() -> None:
    evil = {**DATA, "node": {"name": "n1", "page": "evil.example:80"}}
    assert fleet_node("a", "", msgspec.json.encode(evil))["link"] == ""


@pytest.mark.parametrize("told", [b"", b"[]", b"{}", b'{"node":1,"stats":2}', b"<html>"])
def test_what_is_no_answer_of_a_page_is_refused(told: bytes) -> None:
    with pytest.raises(ValueError, match="not that of a node page"):
        fleet_node("a", "", told)
