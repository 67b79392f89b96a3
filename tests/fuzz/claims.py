"""Targets: what DRA drivers answer and report."""

from __future__ import annotations

from kubelet_trio.managers.claims.driver import prepared_claims
from kubelet_trio.managers.claims.generated.k8s.io.kubelet.pkg.apis.dra import v1
from kubelet_trio.managers.claims.generated.v1 import (
    DeviceHealth,
    DeviceIdentifier,
    HealthStatus,
    NodeWatchResourcesResponse,
)
from kubelet_trio.managers.claims.health import HealthBook, HealthReport, next_expiry
from kubelet_trio.managers.claims.watch import read_reports
from kubelet_trio.model import parse_message
from tests.fuzz.mutate import messages
from tests.fuzz.target import Target, in_trio


def _prepared(data: bytes) -> object:
    return prepared_claims(parse_message(v1.NodePrepareResourcesResponse, data))


def _reported(data: bytes) -> object:
    async def read() -> list[HealthReport]:
        return await read_reports(data)

    reports, book = in_trio(read), HealthBook()
    feed = book.open("d")
    changes = book.take(feed, reports, 0)
    for name, shown in changes.items():
        assert book.health("d", *name) == shown
    assert next_expiry(feed) > 0
    assert book.close(feed, 1).keys() == changes.keys()
    return changes


_PREPARED = bytes(
    v1.NodePrepareResourcesResponse(
        claims={
            "uid-1": v1.NodePrepareResourceResponse(
                devices=[
                    v1.Device(
                        request_names=["r", "s/t"],
                        pool_name="p",
                        device_name="a",
                        cdi_device_ids=["example.com/gpu=a"],
                        share_id="half",
                    )
                ]
            ),
            "uid-2": v1.NodePrepareResourceResponse(error="broken"),
        }
    )
)
_REPORTED = bytes(
    NodeWatchResourcesResponse(
        devices=[
            DeviceHealth(
                device=DeviceIdentifier("p", "a"),
                health=HealthStatus.UNHEALTHY,
                last_updated_time=1,
                health_check_timeout_seconds=60,
                message="hot",
            ),
            DeviceHealth(device=DeviceIdentifier("p", "b"), health=HealthStatus.HEALTHY),
        ]
    )
)

TARGETS = [
    Target(
        "a DRA driver's answer to NodePrepareResources",
        _prepared,
        [_PREPARED],
        messages([_PREPARED]),
        (ValueError, EOFError),
    ),
    Target(
        "what a DRA driver says of its devices' health",
        _reported,
        [_REPORTED],
        messages([_REPORTED]),
        (ValueError, EOFError),
    ),
]
