"""The environment variables that a pod gets for the cluster's services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import ContainerConfigError, service_variables
from kubelet_trio.model import is_static, pod_key, spec

if TYPE_CHECKING:
    from kubelet_trio.objects import ClusterServices

_FIRST_LIST = 5.0  # seconds that a container's start waits for the first list of services


class ClusterServiceVariables:
    """Makes the variables from the services of an API server."""

    def __init__(self, services: ClusterServices) -> None:
        self._services = services

    async def variables(self, pod: Pod) -> Mapping[str, str]:
        """Return a pod's variables.

        Raises `ContainerConfigError` if the services are not listed in time.
        """
        # A static pod does not wait, as in makeEnvironmentVariables of pkg/kubelet.
        is_known = is_static(pod) or await self._services.wait_known(_FIRST_LIST)
        if not is_known:
            raise ContainerConfigError(
                "services have not yet been read at least once, cannot construct envvars"
            )
        links = spec(pod).enableServiceLinks is not False
        return service_variables(self._services.facts, pod_key(pod).namespace, links=links)
