"""A Prometheus of Debian's package, which scrapes one node by a configuration of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.harness.authority import Pair
from tests.harness.ports import free_port

PAGES = ("/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes")
_PATIENCE = 120.0


def linted(page: str) -> list[str]:
    """Return what `promtool check metrics` says of a page: the metric's name, and the words."""
    done = subprocess.run(
        [_program("promtool"), "check", "metrics"],
        input=page.encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    # 0: nothing; 3: remarks. Anything else is a page that cannot be parsed.
    assert done.returncode in (0, 3), done.stderr.decode()
    return done.stderr.decode().splitlines()


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"no {name}: apt-get install prometheus"
    return found


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **query: str) -> Any:
        """Return the `data` of an answer of its API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(query)}"
        with urlopen(url, timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def wait_ready(self) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=10).close()
            except (URLError, ConnectionError):
                time.sleep(0.2)
            else:
                return
        raise AssertionError("Prometheus does not get ready")

    def missing(self, expressions: Sequence[str]) -> list[str]:
        """Wait until every expression has data; return those that had none to the end."""
        end, left = time.monotonic() + _PATIENCE, list(expressions)
        while left and time.monotonic() < end:
            left = [text for text in left if not self.ask("query", query=text)["result"]]
            if left:
                time.sleep(1)
        return left

    def targets(self) -> list[Any]:
        found: list[Any] = self.ask("targets", state="active")["activeTargets"]
        return found


def by_certificate(client: Pair) -> dict[str, Any]:
    """Return the settings of a scraper with a certificate, of a node that signed its own."""
    return {
        "tls_config": {
            "cert_file": str(client.certificate),
            "key_file": str(client.key),
            "insecure_skip_verify": True,
        }
    }


def by_token(token: Path, authority: Path) -> dict[str, Any]:
    """Return those of a cluster's: the token of a service account, the certificate checked."""
    return {"bearer_token_file": str(token), "tls_config": {"ca_file": str(authority)}}


@contextmanager
def scraping(
    base: Path, target: str, access: dict[str, Any], interval: str = "2s"
) -> Iterator[Prometheus]:
    """Run a server that scrapes the four pages of a node until the end of the block.

    Args:
        base: an empty directory.
        target: host and port.
        access: of `by_certificate` or `by_token`.
        interval: between two scrapes.
    """
    port, config = free_port(), base / "prometheus.yml"
    config.write_text(yaml.safe_dump(_config(target, access, interval)))
    command = [
        _program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={base / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (base / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            server = Prometheus(port)
            server.wait_ready()
            yield server
        finally:
            process.terminate()
            process.wait(timeout=30)


def _config(target: str, access: dict[str, Any], interval: str) -> dict[str, Any]:
    def job(path: str) -> dict[str, Any]:
        return {
            "job_name": path,
            "scheme": "https",
            "metrics_path": path,
            **access,
            "static_configs": [{"targets": [target]}],
            # As the Prometheus operator labels a kubelet's pages.
            "relabel_configs": [
                {"target_label": "job", "replacement": "kubelet"},
                {"source_labels": ["__metrics_path__"], "target_label": "metrics_path"},
                {"target_label": "node", "replacement": "node"},
                {"target_label": "cluster", "replacement": "here"},
            ],
        }

    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [job(path) for path in PAGES],
    }
