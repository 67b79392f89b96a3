"""The node's own API, asked over TLS as a monitoring system does."""

from __future__ import annotations

import http.client
import json
import re
import ssl

from tests.harness.authority import Authority
from tests.harness.pods import Json

_METRICS = {
    "metrics": "/metrics",
    "metrics_cadvisor": "/metrics/cadvisor",
    "metrics_resource": "/metrics/resource",
    "metrics_probes": "/metrics/probes",
}
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"')


class NodeApi:
    """A client with a certificate of its own."""

    def __init__(self, port: int, authority: Authority) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(authority.certificate))
        pair = authority.issue("scraper", "scraper", "system:masters")
        self._context.load_cert_chain(pair.certificate, pair.key)

    def metrics(self) -> dict[str, str]:
        return {name: self._get(path).decode() for name, path in _METRICS.items()}

    def answers(self) -> dict[str, Json]:
        found = {"stats_summary": "/stats/summary", "configz": "/configz"}
        return {name: json.loads(self._get(path)) for name, path in found.items()}

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._context, timeout=60
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, (path, answer.status, body)
            return body
        finally:
            connection.close()


def families(text: str) -> dict[str, list[str]]:
    """Return metric name -> the names of all labels that its samples have."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if (sample := _SAMPLE.match(line)) and not line.startswith("#"):
            labels = found.setdefault(sample[1], set())
            labels.update(_LABEL.findall(sample[2] or ""))
    return {name: sorted(labels) for name, labels in found.items()}


def shape(value: object, path: str = "") -> set[str]:
    """Return the paths of the leaves; every entry of a list is `[]`."""
    if isinstance(value, dict):
        return {p for key, item in value.items() for p in shape(item, f"{path}.{key}")} or {path}
    if isinstance(value, list):
        return {p for item in value for p in shape(item, f"{path}[]")} or {f"{path}[]"}
    return {path}
