"""A real Prometheus scrapes a node, and dashboards and alerts made for the Go kubelet have data."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import container, forever, pod
from tests.harness.authority import Authority, Pair
from tests.harness.mixin import OF_A_NODE
from tests.harness.ports import free_port
from tests.harness.prometheus import PAGES, Prometheus, by_certificate, linted, scraping

_DATA = Path(__file__).parents[1]


@dataclass(frozen=True)
class Served:
    """A node's port, and a client that may scrape it."""

    port: int
    client: Pair


@pytest.fixture(scope="module")
def served(make_agent: MakeAgent, tmp_path_factory: pytest.TempPathFactory) -> Served:
    authority, port = Authority(tmp_path_factory.mktemp("authority")), free_port()
    agent = make_agent(
        config={
            "address": "127.0.0.1",
            "port": port,
            "authentication": {
                "x509": {"clientCAFile": str(authority.certificate)},
                "webhook": {"enabled": False},
            },
            "authorization": {"mode": "AlwaysAllow"},
        },
        arguments=("--cert-dir", str(authority.directory / "pki")),
    )
    agent.start()
    limits = {"limits": {"cpu": "100m", "memory": "64Mi"}}
    check = {"livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 2}}
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    agent.put(
        pod(
            "web",
            container("main", forever(), resources=limits, volumeMounts=mounts, **check),
            volumes=[{"name": "scratch", "emptyDir": {}}],
        )
    )
    agent.wait_ready("web")
    return Served(port, authority.issue("scraper", "prometheus", "system:masters"))


@pytest.fixture(scope="module")
def prometheus(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with scraping(
        tmp_path_factory.mktemp("prometheus"),
        f"127.0.0.1:{served.port}",
        by_certificate(served.client),
    ) as server:
        yield server


def test_dashboards_and_alerts_have_data(prometheus: Prometheus) -> None:
    assert prometheus.missing(OF_A_NODE) == []


def test_every_page_is_scraped_without_an_error(prometheus: Prometheus) -> None:
    assert prometheus.missing([f'up{{metrics_path="{path}"}} == 1' for path in PAGES]) == []
    assert {target["lastError"] for target in prometheus.targets()} == {""}


@pytest.mark.parametrize("path", PAGES)
def test_promtool_has_remarks_on_the_go_kubelets_own_names_alone(served: Served, path: str) -> None:
    page = fetched(served, path)
    assert page.startswith("# HELP")
    own = (_DATA / "agent/kubelet_metrics.txt").read_text().splitlines()
    recorded = json.loads((_DATA / "golden/data/metrics.json").read_text())
    known = {line.split()[0] for line in own} | {n for page in recorded.values() for n in page}
    assert [line for line in linted(page) if line.split()[0] not in known] == []


def fetched(served: Served, path: str) -> str:
    context = ssl._create_unverified_context()
    context.load_cert_chain(served.client.certificate, served.client.key)
    connection = http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()
