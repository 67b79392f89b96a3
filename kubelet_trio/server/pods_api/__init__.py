"""The Pods API of the gate PodsAPI (KEP-4188): lists, gets and watches the pods of this node.

The service, with gRPC and its messages, is loaded with the first client's connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand

if TYPE_CHECKING:
    from kubelet_trio.server.pods_api.service import pods_api_server
    from kubelet_trio.server.pods_api.watches import PodWatches

_DEFERRED = {"PodWatches": "watches", "pods_api_server": "service"}

__all__ = ["PodWatches", "pods_api_server"]

__getattr__ = names_on_demand(__name__, _DEFERRED)
