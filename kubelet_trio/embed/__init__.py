"""The library: a kubelet inside another trio program. Start with `open_kubelet`."""

from typing import TYPE_CHECKING, Any, get_type_hints

from kubelet_trio.cri import (
    ExecResult,
    Runtime,
    RuntimeCallError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
)
from kubelet_trio.embed.config import KubeletConfig
from kubelet_trio.embed.errors import (
    CommandFailedError,
    ContainerUnavailableError,
    KubeletClosedError,
    KubeletError,
    KubeletFailedError,
    PodEndedError,
    PodExistsError,
    PodNotFoundError,
    PodNotReadyError,
    PodResizeError,
)
from kubelet_trio.embed.intake import PodLike
from kubelet_trio.embed.kubelet import Kubelet, open_kubelet
from kubelet_trio.embed.logs import LogLines
from kubelet_trio.embed.resize import ResourcesLike
from kubelet_trio.embed.running import RunningPod
from kubelet_trio.embed.streams import EventStream, PodChange, PodWatch
from kubelet_trio.embed.world import World, node_paths
from kubelet_trio.managers import ManagerSettings, TopologyOptions
from kubelet_trio.sources import FieldError, ManifestError

if TYPE_CHECKING:
    from kubelet_trio.pods import PodWhy

__all__ = [
    "CommandFailedError",
    "ContainerUnavailableError",
    "EventStream",
    "ExecResult",
    "FieldError",
    "Kubelet",
    "KubeletClosedError",
    "KubeletConfig",
    "KubeletError",
    "KubeletFailedError",
    "LogLines",
    "ManagerSettings",
    "ManifestError",
    "PodChange",
    "PodEndedError",
    "PodExistsError",
    "PodLike",
    "PodNotFoundError",
    "PodNotReadyError",
    "PodResizeError",
    "PodWatch",
    "PodWhy",
    "ResourcesLike",
    "RunningPod",
    "Runtime",
    "RuntimeCallError",
    "RuntimeTimeoutError",
    "RuntimeUnavailableError",
    "TopologyOptions",
    "World",
    "node_paths",
    "open_kubelet",
]

# What a program sees of them, in a repr or a traceback, is where it imports them from. (The errors
# say so themselves.)
_SHOWN: tuple[Any, ...] = (
    EventStream,
    ExecResult,
    Kubelet,
    KubeletConfig,
    LogLines,
    ManagerSettings,
    PodChange,
    PodWatch,
    RunningPod,
    Runtime,
    TopologyOptions,
    open_kubelet,
)
# A replay reads recorded settings by the annotations, whose names the other module lacks.
for _settings in (ManagerSettings, TopologyOptions):
    _settings.__annotations__ = get_type_hints(_settings)
# A replay reads recorded settings by the annotations, whose names the other module lacks.
for _settings in (ManagerSettings, TopologyOptions):
    _settings.__annotations__ = get_type_hints(_settings)
for _public in _SHOWN:
    _public.__module__ = "kubelet_trio"


def __getattr__(name: str) -> Any:
    if name != "PodWhy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kubelet_trio.pods import PodWhy  # loaded when somebody asks

    PodWhy.__module__ = "kubelet_trio"
    return PodWhy
