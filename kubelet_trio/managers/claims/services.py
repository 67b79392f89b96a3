"""The gRPC services that a DRA plugin may announce when it registers. Pure.

Source: validateSupportedServices and pickHealthService in pkg/kubelet/cm/dra/plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"
SERVICES = (V1, V1BETA1)  # the newest first
HEALTH_V1, HEALTH_V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"
HEALTH_SERVICES = (HEALTH_V1, HEALTH_V1ALPHA1)
_MOST_LISTED, _MOST_SHOWN = 10, 200  # services, and characters of one, in an error


def chosen_service(announced: Sequence[str]) -> str:
    """Return which of the plugin's services to call. Raises ValueError in upstream's words."""
    if not announced:
        raise ValueError("empty list of supported gRPC services (aka supported versions)")
    for service in SERVICES:
        if service in announced:
            return service
    raise ValueError(
        f"none of services supported by the plugin ({_quoted(announced[:_MOST_LISTED])}) "
        f"are supported by the kubelet ({_quoted(SERVICES)})"
    )


def chosen_health(announced: Sequence[str]) -> str:
    """Return which health service to ask; `HEALTH_V1ALPHA1` if the plugin announces none.

    Kubelets up to 1.36 ask every plugin for it, so there may be plugins that do not announce it.
    """
    return next((name for name in HEALTH_SERVICES if name in announced), HEALTH_V1ALPHA1)


def _quoted(services: Iterable[str]) -> str:
    """Return a list as Go's %q prints it."""
    return "[" + " ".join(f'"{service[:_MOST_SHOWN]}"' for service in services) + "]"
