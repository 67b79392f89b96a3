"""/healthz, /livez and /readyz, as component-base's healthz package answers them.

A check is a function that returns None if it passes, else the reason of its failure. The
endpoints and their checks:

| endpoint | checks | meaning of a failure |
| --- | --- | --- |
| /healthz | ping, log, syncloop, device-plugin | as with the Go kubelet |
| /livez | ping, syncloop | a restart of the agent would help; the systemd watchdog fires |
| /readyz | ping, syncloop, pleg, runtime | pods cannot be started or observed |

Restarting the agent does not help if the runtime is down, so that fails only /readyz.
`/readyz/runtime` runs one check, `?verbose` lists them, `?exclude=` leaves one out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from types import MappingProxyType

from kubelet_trio.model import Meter
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.types import Request, Response

Check = Callable[[], str | None]

ENDPOINTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "healthz": ("ping", "log", "syncloop", "device-plugin"),
        "livez": ("ping", "syncloop"),
        "readyz": ("ping", "syncloop", "pleg", "runtime"),
    }
)


def _always_passes() -> str | None:
    return None


# Checks that upstream has at each server; both pass as long as the agent answers.
_BUILT_IN: Mapping[str, Check] = MappingProxyType({"ping": _always_passes, "log": _always_passes})


def health_router(checks: Mapping[str, Check], meter: Meter | None = None) -> Router:
    """Return the handler of the three endpoints.

    Args:
        checks: `syncloop`, `pleg`, `runtime`, `device-plugin` and others, which count for
            /readyz only. `ping` and `log` are added.
        meter: gets the result of each check.
    """
    known = {**_BUILT_IN, **checks}
    listed = {name for names in ENDPOINTS.values() for name in names}
    router = Router()
    for endpoint, names in ENDPOINTS.items():
        own = [name for name in names if name in known]
        if endpoint == "readyz":
            own += [name for name in known if name not in listed]
        _add_endpoint(router, endpoint, {name: known[name] for name in own}, meter)
    return router


def add_healthz(router: Router, checks: Mapping[str, Check], meter: Meter | None = None) -> None:
    """Add only /healthz, as the kubelet API has it."""
    known = {**_BUILT_IN, **checks}
    names = [name for name in ENDPOINTS["healthz"] if name in known]
    _add_endpoint(router, "healthz", {name: known[name] for name in names}, meter)


def is_healthy(checks: Mapping[str, Check]) -> bool:
    """Return whether /livez would pass: the agent notifies the systemd watchdog only then.

    The Go kubelet's watchdog also has `device-plugin`, whose socket only a restart opens again
    there. Here it is tried again.
    """
    return all(checks[name]() is None for name in ENDPOINTS["livez"] if name in checks)


def _add_endpoint(
    router: Router, endpoint: str, checks: Mapping[str, Check], meter: Meter | None
) -> None:
    async def answer_all(request: Request) -> Response:
        excluded = {value for name, value in request.arguments if name == "exclude"}
        failed = {name for name in checks if name not in excluded and checks[name]() is not None}
        if meter is not None:
            _record(meter, endpoint, {n: n not in failed for n in checks if n not in excluded})
        return _answer(endpoint, checks, failed, excluded, verbose="verbose" in request.query)

    async def answer_one(request: Request) -> Response:
        name = request.params["check"]
        if name not in checks:
            raise HttpError(404, "404 page not found")
        reason = checks[name]()
        if reason is not None:
            return Response(500, f"internal server error: {reason}\n".encode())
        return _plain(200, "ok")

    router.add("GET", f"/{endpoint}", answer_all)
    router.add("GET", f"/{endpoint}/{{check}}", answer_one)


def _record(meter: Meter, endpoint: str, passed: Mapping[str, bool]) -> None:
    for name, has_passed in passed.items():
        status = "success" if has_passed else "error"
        meter.set("kubernetes_healthcheck", float(has_passed), (name, endpoint))
        meter.count("kubernetes_healthchecks_total", (name, status, endpoint))


def _answer(
    endpoint: str,
    checks: Mapping[str, Check],
    failed: Set[str],
    excluded: Set[str],
    *,
    verbose: bool,
) -> Response:
    """Answer `ok`, or the list of checks, in upstream's words.

    Reasons are withheld: these endpoints need no authentication. The control socket has them.
    """
    lines = []
    for name in checks:
        if name in excluded:
            lines.append(f"[+]{name} excluded: ok")
        else:
            lines.append(
                f"[-]{name} failed: reason withheld" if name in failed else f"[+]{name} ok"
            )
    # Upstream warns in the body only; the status does not change.
    if unknown := sorted(excluded - set(checks)):
        quoted = ",".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    if failed:
        return _plain(500, "\n".join([*lines, f"{endpoint} check failed", ""]))
    if verbose:
        return _plain(200, "\n".join([*lines, f"{endpoint} check passed", ""]))
    return _plain(200, "ok")


def _plain(status: int, text: str) -> Response:
    return Response(status, text.encode(), headers=(("X-Content-Type-Options", "nosniff"),))
