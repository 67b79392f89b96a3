"""What the kubelet API is told of its routes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """What the configuration says of the routes, under its names."""

    enable_debugging_handlers: bool = True
    enable_profiling_handler: bool = True
    enable_debug_flags_handler: bool = True
    enable_system_log_handler: bool = True
    enable_system_log_query: bool = False
    split_log_streams: bool = False  # the gate PodLogsQuerySplitStreams
    streaming_idle_timeout: float = 4 * 3600.0
