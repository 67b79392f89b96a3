"""A runtime whose calls are counted and timed, under the Go kubelet's names for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import trio

from kubelet_trio.cri._errors import RuntimeCallError
from kubelet_trio.cri._runtime import Runtime
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.model import CALLS, Meter

# Not shown, but taken off the time that a pod needs to start.
PULL_SECONDS = "pull_seconds"

# Our methods, and `operation_type` in kubelet_runtime_operations_*.
_OPERATIONS = {
    "version": "version",
    "status": "status",
    "handlers": "status",
    "cgroup_driver": "runtime_config",
    "run_pod_sandbox": "run_podsandbox",
    "stop_pod_sandbox": "stop_podsandbox",
    "remove_pod_sandbox": "remove_podsandbox",
    "pod_sandbox_status": "podsandbox_status",
    "list_pod_sandboxes": "list_podsandbox",
    "create_container": "create_container",
    "start_container": "start_container",
    "stop_container": "stop_container",
    "remove_container": "remove_container",
    "container_status": "container_status",
    "list_containers": "list_containers",
    "exec_sync": "exec_sync",
    "reopen_container_log": "reopen_container_log",
    "image_status": "get_image",
    "pull_image": "pull_image",
    "list_images": "list_images",
    "remove_image": "remove_image",
    "image_fs_info": "image_fs_info",
    "list_container_stats": "list_container_stats",
}


class _Metered:
    """Passes everything on; calls in the table are measured on the way."""

    def __init__(self, runtime: Runtime, meter: Meter) -> None:
        self._runtime = runtime
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._runtime, name)
        operation = _OPERATIONS.get(name)
        if operation is None:
            return target
        call = self._measured(target, (operation,))
        if name == "pull_image":
            call = self._by_pod(call)
        if name == "run_pod_sandbox":
            call = self._by_handler(call)
        setattr(self, name, call)  # found at once from now on
        return call

    def _measured(
        self, target: Callable[..., Awaitable[Any]], labels: tuple[str]
    ) -> Callable[..., Awaitable[Any]]:
        meter = self._meter

        async def call(*args: Any, **kwargs: Any) -> Any:
            began = trio.current_time()
            meter.count("kubelet_runtime_operations_total", labels)
            try:
                return await target(*args, **kwargs)
            except RuntimeCallError:
                meter.count("kubelet_runtime_operations_errors_total", labels)
                raise
            finally:
                meter.observe(
                    "kubelet_runtime_operations_duration_seconds",
                    trio.current_time() - began,
                    labels,
                    CALLS,
                )

        return call

    def _by_handler(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Tell of starts of pods by their runtime class, and of those in a user namespace."""
        meter = self._meter

        async def run(config: v1.PodSandboxConfig, runtime_handler: str = "") -> Any:
            began, labels = trio.current_time(), (runtime_handler,)
            own_users = _has_own_users(config)
            if own_users:
                meter.count("kubelet_started_user_namespaced_pods_total")
            try:
                return await call(config, runtime_handler)
            except RuntimeCallError:
                meter.count("kubelet_run_podsandbox_errors_total", labels)
                if own_users:
                    meter.count("kubelet_started_user_namespaced_pods_errors_total")
                raise
            finally:
                took = trio.current_time() - began
                meter.observe("kubelet_run_podsandbox_duration_seconds", took, labels)

        return run

    def _by_pod(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Add up the time that pulls take of each pod's start."""

        async def pull(
            image: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox: v1.PodSandboxConfig
        ) -> Any:
            began = trio.current_time()
            try:
                return await call(image, auth, sandbox)
            finally:
                uid = sandbox.metadata.uid if sandbox.metadata else ""
                self._meter.count(PULL_SECONDS, (uid,), trio.current_time() - began)

        return pull


def _has_own_users(config: v1.PodSandboxConfig) -> bool:
    security = config.linux.security_context if config.linux is not None else None
    options = security.namespace_options if security is not None else None
    users = options.userns_options if options is not None else None
    return users is not None and users.mode == v1.NamespaceMode.POD


def metered(runtime: Runtime, meter: Meter) -> Runtime:
    """Return the same runtime, each call of which `meter` is told."""
    return cast("Runtime", _Metered(runtime, meter))
