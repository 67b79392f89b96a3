"""Validation of probes and lifecycle hooks."""

from __future__ import annotations

from collections.abc import Callable

from lightkube.models.core_v1 import (
    Container,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    PodSpec,
    Probe,
    SleepAction,
    TCPSocketAction,
)

from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors

SCHEMES = ("HTTP", "HTTPS")
_NUMBERS = (
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
)
_ONE_KIND = "may not specify more than 1 handler type"
_SIDECARS_ONLY = "may not be set for init containers without restartPolicy=Always"
# The signals that a container on Linux may name as its stop signal (KEP-4960).
_NAMED = (
    *("ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT"),
    *("KILL", "PIPE", "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM"),
    *("TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ"),
)
STOP_SIGNALS = frozenset(
    f"SIG{name}"
    for name in (
        *_NAMED,
        *("RTMIN", *(f"RTMIN+{n}" for n in range(1, 16))),
        *("RTMAX", *(f"RTMAX-{n}" for n in range(1, 15))),
    )
)


def validate_handlers(errors: FieldErrors, spec: PodSpec, container: Container, path: str) -> None:
    """Check a container's probes and hooks."""
    _probe(errors, container.livenessProbe, f"{path}.livenessProbe")
    _probe(errors, container.startupProbe, f"{path}.startupProbe")
    _probe(errors, container.readinessProbe, f"{path}.readinessProbe")
    for name in ("livenessProbe", "startupProbe"):
        probe: Probe | None = getattr(container, name)
        if probe is not None and probe.successThreshold != 1:
            errors.invalid(f"{path}.{name}.successThreshold", probe.successThreshold, "must be 1")
    readiness = container.readinessProbe
    if readiness is not None and readiness.terminationGracePeriodSeconds is not None:
        errors.invalid(
            f"{path}.readinessProbe.terminationGracePeriodSeconds",
            readiness.terminationGracePeriodSeconds,
            "must not be set for readinessProbes",
        )
    _lifecycle(errors, spec, container.lifecycle or Lifecycle(), f"{path}.lifecycle")


def validate_no_handlers(errors: FieldErrors, container: Container, path: str) -> None:
    """Check that an ordinary init container has neither probes nor hooks."""
    for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        if getattr(container, name) is not None:
            errors.forbidden(f"{path}.{name}", _SIDECARS_ONLY)


def _probe(errors: FieldErrors, probe: Probe | None, path: str) -> None:
    if probe is None:
        return
    _handler(errors, probe, path)
    for name in _NUMBERS:
        errors.at_least(f"{path}.{name}", getattr(probe, name), 0)
    grace = probe.terminationGracePeriodSeconds
    if grace is not None and grace <= 0:
        errors.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")


def _lifecycle(errors: FieldErrors, spec: PodSpec, lifecycle: Lifecycle, path: str) -> None:
    for name in ("postStart", "preStop"):
        hook: LifecycleHandler | None = getattr(lifecycle, name)
        if hook is not None:
            _handler(errors, hook, f"{path}.{name}")
            if hook.sleep is not None:
                _sleep(errors, spec, hook.sleep, f"{path}.{name}.sleep")
    signal = lifecycle.stopSignal
    if signal is None:
        return
    if spec.os is None or not spec.os.name:
        errors.forbidden(
            f"{path}.stopSignal", "may not be set for containers with empty `spec.os.name`"
        )
    elif signal not in STOP_SIGNALS:
        errors.unsupported(f"{path}.stopSignal", signal, sorted(STOP_SIGNALS))


def _sleep(errors: FieldErrors, spec: PodSpec, sleep: SleepAction, path: str) -> None:
    grace = spec.terminationGracePeriodSeconds
    if grace is not None and not 0 <= sleep.seconds <= grace:
        errors.invalid(
            path,
            sleep.seconds,
            f"must be non-negative and less than terminationGracePeriodSeconds ({grace})",
        )


def _handler(errors: FieldErrors, handler: Probe | LifecycleHandler, path: str) -> None:
    """Check that there is exactly one handler, and check its fields."""
    given = [name for name in (*_CHECKS, "sleep") if getattr(handler, name, None) is not None]
    if not given:
        errors.required(path, "must specify a handler type")
        return
    for name in given[1:]:
        errors.forbidden(f"{path}.{name}", _ONE_KIND)
    check = _CHECKS.get(given[0])
    if check is not None:
        check(errors, getattr(handler, given[0]), f"{path}.{given[0]}")


def _exec(errors: FieldErrors, action: ExecAction, path: str) -> None:
    if not action.command:
        errors.required(f"{path}.command")


def _http_get(errors: FieldErrors, action: HTTPGetAction, path: str) -> None:
    if not action.path:
        errors.required(f"{path}.path")
    _port(errors, action.port, f"{path}.port")
    errors.one_of(f"{path}.scheme", action.scheme, SCHEMES)
    for header in action.httpHeaders or ():
        errors.check(f"{path}.httpHeaders", header.name, syntax.header_name)


def _tcp_socket(errors: FieldErrors, action: TCPSocketAction, path: str) -> None:
    _port(errors, action.port, f"{path}.port")


def _grpc(errors: FieldErrors, action: GRPCAction, path: str) -> None:
    _port(errors, action.port, f"{path}.port")


def _port(errors: FieldErrors, port: int | str, path: str) -> None:
    if isinstance(port, str):
        errors.check(path, port, syntax.port_name)
    else:
        errors.within(path, port, 1, 65535)


_CHECKS: dict[str, Callable[..., None]] = {
    "exec": _exec,
    "httpGet": _http_get,
    "tcpSocket": _tcp_socket,
    "grpc": _grpc,
}
