"""What pods ask for of extended resources: their limits, which equal their requests."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import ContainerKind, parse_quantity, pod_containers, to_units

_NATIVE = "kubernetes.io/"
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LONGEST_DOMAIN = 253
_QUOTA = "requests."  # of quotas: DefaultResourceRequestsPrefix


def is_extended_name(resource: str) -> bool:
    """Whether a plugin may have this resource: a qualified name outside of kubernetes.io.

    Source: IsExtendedResourceName of pkg/apis/core/v1/helper.
    """
    domain, slash, name = resource.partition("/")
    if not slash or _NATIVE in resource or resource.startswith(_QUOTA):
        return False
    # Also with the prefix of a quota the name must be a qualified one.
    longest = _LONGEST_DOMAIN - len(_QUOTA)
    return (
        len(domain) <= longest
        and _DOMAIN.fullmatch(domain) is not None
        and _NAME.fullmatch(name) is not None
    )


def container_limits(container: Container) -> dict[str, int]:
    """Return a container's limits of resources with a domain, in whole units, sorted by name."""
    limits = container.resources.limits if container.resources is not None else None
    found = {n: to_units(parse_quantity(v)) for n, v in (limits or {}).items() if "/" in n}
    return dict(sorted(found.items()))


def pod_limits(pod: Pod) -> Mapping[str, int]:
    """Return a pod's limits of such resources: the most that it needs at one time.

    Source: PodLimits of k8s.io/component-helpers/resource, without overhead.
    """
    together: dict[str, int] = {}  # of main containers and sidecars
    sidecars: dict[str, int] = {}  # of those started so far
    starting: dict[str, int] = {}  # the most while init containers run
    for container in pod_containers(pod):
        limits = container_limits(container.spec)
        is_init = container.kind is ContainerKind.INIT
        for name, count in limits.items():
            if not is_init or container.is_sidecar:
                together[name] = together.get(name, 0) + count
            if is_init and container.is_sidecar:
                sidecars[name] = sidecars.get(name, 0) + count
        if is_init:
            own = {} if container.is_sidecar else limits
            for name in {*sidecars, *limits}:
                now = sidecars.get(name, 0) + own.get(name, 0)
                starting[name] = max(starting.get(name, 0), now)
    names = sorted({*together, *starting})
    return {name: max(together.get(name, 0), starting.get(name, 0)) for name in names}
