"""Reviews of what strangers show: they wait for nobody but each other, and few at a time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Secret
from trio.testing import MockClock

from kubelet_trio.agent import NodeApiSettings
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import Apis, build_agent, open_apis
from kubelet_trio.model import SystemClock, inline_offload
from kubelet_trio.server import Guard, HttpError, Request
from kubelet_trio.server.http.types import ClientPeer
from tests.kube.http_server import Asked, Reply, serve

TOKENS = 5_000
SOURCES = 100
ANSWER = 1.0  # seconds that the API server takes for a review


class Server:
    """An API server that knows one token, and lets its user do anything."""

    def __init__(self) -> None:
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.is_slow = True

    async def answer(self, asked: Asked, reply: Reply) -> None:
        kind = asked.target.rpartition("/")[2]
        if not kind.endswith("reviews"):
            body = {"kind": "Secret", "metadata": {"name": "s"}, "data": {}}
            await reply.send(200, json.dumps(body).encode())
            return
        self.under_way[kind] += 1
        self.most[kind] = max(self.most[kind], self.under_way[kind])
        try:
            await trio.sleep(ANSWER if self.is_slow else 0)
        finally:
            self.under_way[kind] -= 1
        told = json.loads(asked.body)
        if kind == "tokenreviews":
            known = told["spec"]["token"] == "of-prometheus"
            told["status"] = {"authenticated": known, "user": {"username": "prometheus"}}
        else:
            told["status"] = {"allowed": True}
        await reply.send(201, json.dumps(told).encode())


@asynccontextmanager
async def node(base: Path, server: Server) -> AsyncIterator[tuple[Apis, Guard]]:
    """The clients of a node and what stands before its port 10250, wired as by the daemon."""
    kubeconfig = base / "kubeconfig"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://kube.example"}}],
        "users": [{"name": "u", "user": {}}],
    }
    kubeconfig.write_text(json.dumps(config))
    arguments = [f"--kubeconfig={kubeconfig}", f"--cert-dir={base}", "--node-ip=127.0.0.1"]
    settings = load_settings(arguments)
    async with serve(server.answer) as network:
        opened = open_apis(settings, "node", SystemClock(), offload=inline_offload, network=network)
        async with opened as apis:
            agent = build_agent(settings, {}, apis)
            cluster = agent.parts.setup.cluster
            assert cluster is not None
            api = NodeApi(agent, NodeApiSettings("127.0.0.1"), cluster.reviews, inline_offload)
            yield apis, api._guard()


async def status_of(
    guard: Guard, token: str, source: str = "10.0.0.1"
) -> tuple[int, dict[str, str]]:
    headers = {"authorization": f"Bearer {token}"}
    try:
        await guard.admit(Request("GET", "/metrics", headers=headers, peer=ClientPeer(source)))
    except HttpError as exc:
        return exc.status, dict(exc.headers)
    return 200, {}


async def test_random_tokens_delay_nothing_that_the_node_has_to_say(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    server, found = Server(), Counter[int]()
    async with node(tmp_path, server) as (apis, guard), trio.open_nursery() as nursery:

        async def ask(number: int) -> None:
            status, _ = await status_of(guard, f"{number}", f"10.0.0.{number % SOURCES}")
            found[status] += 1

        for number in range(TOKENS):
            nursery.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        for _ in range(50):
            await apis.api.get(Secret, "s", namespace="default")
        assert trio.current_time() == began, "secrets waited for reviews"
    assert found == {401: TOKENS}
    assert server.most["tokenreviews"] <= 64


async def test_who_is_known_is_not_turned_away_by_random_tokens(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Tokens are reviewed by one rate and accesses by another."""
    server = Server()
    async with node(tmp_path, server) as (_, guard), trio.open_nursery() as nursery:
        assert (await status_of(guard, "of-prometheus"))[0] == 200
        for number in range(TOKENS):
            nursery.start_soon(status_of, guard, f"{number}", f"10.0.0.{number % SOURCES}")
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        headers = {"authorization": "Bearer of-prometheus"}
        await guard.admit(Request("GET", "/stats/summary", headers=headers))  # not asked for yet
        assert trio.current_time() - began == ANSWER


async def test_beyond_what_may_be_asked_is_refused_at_once_and_may_come_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = Server()
    async with node(tmp_path, server) as (_, guard):
        with trio.CancelScope() as waiting:
            async with trio.open_nursery() as nursery:
                for number in range(64):
                    nursery.start_soon(status_of, guard, f"{number}", f"10.0.0.{number // 16}")
                await trio.testing.wait_all_tasks_blocked()
                began = trio.current_time()
                refused = (401, {"Retry-After": "1"})
                assert await status_of(guard, "of-prometheus", "10.0.1.1") == refused
                assert trio.current_time() == began
                waiting.cancel()
        # Whoever gave up gives its place back at once.
        assert (await status_of(guard, "of-prometheus", "10.0.1.1"))[0] == 200


@pytest.mark.parametrize(("source", "status"), [("10.0.0.1", 401), ("10.0.0.2", 200)])
async def test_one_address_does_not_take_all_places(
    tmp_path: Path, autojump_clock: MockClock, source: str, status: int
) -> None:
    server = Server()
    async with node(tmp_path, server) as (_, guard), trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(status_of, guard, f"{number}", "10.0.0.1")
        await trio.testing.wait_all_tasks_blocked()
        assert (await status_of(guard, "of-prometheus", source))[0] == status


async def test_who_was_let_in_before_is_asked_about_again_however_many_strangers_come(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = Server()
    async with node(tmp_path, server) as (_, guard), trio.open_nursery() as nursery:
        assert (await status_of(guard, "of-prometheus"))[0] == 200
        await trio.sleep(121)  # what is known of a token holds for two minutes
        for number in range(1_000):
            nursery.start_soon(status_of, guard, f"{number}", f"10.0.0.{number % SOURCES}")
        await trio.testing.wait_all_tasks_blocked()
        assert (await status_of(guard, "of-prometheus"))[0] == 200
