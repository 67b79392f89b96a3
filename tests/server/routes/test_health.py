"""Health answers in upstream's words, and a runtime that is down is not the agent's death."""

from __future__ import annotations

import pytest

from kubelet_trio.model import Meter
from kubelet_trio.server import Check, HttpError, Request, Response, health_router, is_healthy


def checks(**reasons: str | None) -> dict[str, Check]:
    every = {"syncloop": None, "pleg": None, "runtime": None, **reasons}
    return {name: lambda reason=reason: reason for name, reason in every.items()}  # type: ignore[misc]


async def ask(path: str, *arguments: tuple[str, str], **reasons: str | None) -> Response:
    return await health_router(checks(**reasons))(Request("GET", path, arguments))


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/healthz/ping", "/readyz/pleg"])
async def test_all_well_is_ok(path: str) -> None:
    answer = await ask(path)
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize(
    ("broken", "statuses"),
    [
        ("runtime", (200, 200, 500)),
        ("pleg", (200, 200, 500)),
        ("syncloop", (500, 500, 500)),
        ("device-plugin", (500, 200, 200)),
    ],
)
async def test_which_trouble_shows_where(broken: str, statuses: tuple[int, int, int]) -> None:
    for path, status in zip(("/healthz", "/livez", "/readyz"), statuses, strict=True):
        assert (await ask(path, **{broken: "it is down"})).status == status


async def test_a_failure_lists_the_checks_and_withholds_the_reason() -> None:
    answer = await ask("/readyz", runtime="socket /secret is gone")
    assert answer.body == (
        b"[+]ping ok\n[+]syncloop ok\n[+]pleg ok\n"
        b"[-]runtime failed: reason withheld\nreadyz check failed\n"
    )


async def test_verbose_lists_the_checks_as_well() -> None:
    answer = await ask("/healthz", ("verbose", ""))
    assert answer.body == b"[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"


async def test_a_check_can_be_left_out() -> None:
    answer = await ask(
        "/readyz", ("exclude", "runtime"), ("exclude", "x"), ("verbose", ""), runtime="r"
    )
    assert answer.status == 200
    assert b"[+]runtime excluded: ok\n" in answer.body
    assert b'warn: some health checks cannot be excluded: no matches for "x"\n' in answer.body


async def test_one_check_tells_its_reason() -> None:
    answer = await ask("/readyz/runtime", runtime="connection refused")
    assert (answer.status, answer.body) == (500, b"internal server error: connection refused\n")


async def test_an_unknown_check_is_404() -> None:
    with pytest.raises(HttpError, match="404 page not found"):
        await ask("/healthz/nope")


async def test_a_further_check_counts_in_readyz() -> None:
    router = health_router({**checks(), "extra": lambda: "bad"})
    assert (await router(Request("GET", "/readyz"))).status == 500
    assert (await router(Request("GET", "/healthz"))).status == 200


def test_the_watchdog_goes_by_livez() -> None:
    assert is_healthy(checks(runtime="down", pleg="late"))
    assert is_healthy({**checks(), "device-plugin": lambda: "its socket cannot be opened"})
    assert not is_healthy(checks(syncloop="stuck"))
    assert is_healthy({})


async def test_the_results_of_checks_are_counted_when_somebody_asks() -> None:
    meter, state = Meter(), ""
    router = health_router({"syncloop": lambda: state or None}, meter)
    assert (await router(Request("GET", "/healthz"))).status == 200
    state = "stuck"
    assert (await router(Request("GET", "/healthz"))).status == 500
    excluded = (("exclude", "syncloop"),)
    assert (await router(Request("GET", "/livez", excluded))).status == 200
    await router(Request("GET", "/healthz/ping"))  # one alone is not counted, as upstream
    assert dict(meter.counters("kubernetes_healthchecks_total")) == {
        ("ping", "success", "healthz"): 2,
        ("log", "success", "healthz"): 2,
        ("syncloop", "success", "healthz"): 1,
        ("syncloop", "error", "healthz"): 1,
        ("ping", "success", "livez"): 1,
    }
    told = dict(meter.gauges("kubernetes_healthcheck"))
    assert (told["syncloop", "healthz"], told["ping", "healthz"]) == (0, 1)
