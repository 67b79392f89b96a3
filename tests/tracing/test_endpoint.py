"""Which endpoints are accepted, and where they lead; the texts are Go's."""

from __future__ import annotations

import pytest

from kubelet_trio.model import Meter, SystemClock
from kubelet_trio.tracing import EndpointError, TracingConfig, check_endpoint, make_tracing
from kubelet_trio.tracing.endpoint import target_of

NAMING = "https://github.com/grpc/grpc/blob/master/doc/naming.md"


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("localhost:4317", "localhost:4317"),
        ("collector", "collector:4317"),
        ("192.0.2.1:99", "192.0.2.1:99"),
        ("[2001:db8::1]:99", "[2001:db8::1]:99"),
        ("[2001:db8::1]", "[2001:db8::1]:4317"),
        ("dns://localhost:4317", "localhost:4317"),
        ("dns:///otel.example:4318", "otel.example:4318"),
        ("dns://192.0.2.53/otel.example:4318", "otel.example:4318"),
        ("unix:///run/otel.sock", "unix:///run/otel.sock"),
    ],
)
def test_an_endpoint_leads_to_a_target(endpoint: str, target: str) -> None:
    assert target_of(endpoint) == target


@pytest.mark.parametrize("endpoint", ["unix://run/otel.sock", "unix-abstract://otel"])
def test_other_sockets_are_dialed_by_a_function(endpoint: str) -> None:
    assert callable(target_of(endpoint))


@pytest.mark.parametrize(
    ("endpoint", "value", "problem"),
    [
        (
            "foo://localhost:4317",
            "foo://localhost:4317",
            "unsupported scheme: foo.  Options are none, dns, unix, or unix-abstract.  "
            f"See {NAMING}",
        ),
        (
            "https://localhost:4317",
            "https://localhost:4317",
            "unsupported scheme: https.  Options are none, dns, unix, or unix-abstract.  "
            f"See {NAMING}",
        ),
        # The tests of validateEndpoint upstream.
        (
            "dn%2s://localhost:4317",
            "dn%2s://localhost:4317",
            'parse "dn%2s://localhost:4317": first path segment in URL cannot contain colon',
        ),
        (
            "localhost:port",
            "dns://localhost:port",
            'parse "dns://localhost:port": invalid port ":port" after host',
        ),
        (
            "local host:4317",
            "dns://local host:4317",
            'parse "dns://local host:4317": invalid character " " in host name',
        ),
        (
            "local%zzhost",
            "dns://local%zzhost",
            'parse "dns://local%zzhost": invalid URL escape "%zz"',
        ),
        ("[::1:4317", "dns://[::1:4317", "parse \"dns://[::1:4317\": missing ']' in host"),
        (
            "a\nb",
            "dns://a\nb",
            'parse "dns://a\\nb": net/url: invalid control character in URL',
        ),
        ("://x", "://x", 'parse "://x": missing protocol scheme'),
    ],
)
def test_what_the_go_kubelet_refuses_is_refused_with_its_text(
    endpoint: str, value: str, problem: str
) -> None:
    with pytest.raises(EndpointError) as refused:
        check_endpoint(endpoint)
    assert (refused.value.value, refused.value.problem) == (value, problem)


@pytest.mark.parametrize("endpoint", ["unix://", "dns:///", "dns://"])
def test_an_endpoint_that_names_nothing_is_refused_when_tracing_is_set_up(endpoint: str) -> None:
    check_endpoint(endpoint)  # upstream accepts it, and never connects
    with pytest.raises(EndpointError, match="names no"):
        make_tracing(TracingConfig("node", endpoint), SystemClock(), Meter())
