"""Run lifecycle hooks: postStart and preStop, by exec, httpGet or sleep.

Source: pkg/kubelet/lifecycle/handlers.go. An HTTP hook succeeds with any response, whatever its
status. A command is used as it is written: unlike a probe's, it is not expanded.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Container, HTTPGetAction, LifecycleHandler, Pod

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.handlers import HandlerError, http_get, http_request, quoted
from kubelet_trio.model import ContainerId, get_logger, pod_key, pod_object_ref, pod_uid
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.errors import HookError

log = get_logger()

# Limits a hook's output in the log, in the pod's status and in its record.
_MOST_PRINTED = 10 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook of one container instance."""

    pod: Pod
    container: Container  # its name and ports
    container_id: ContainerId
    handler: LifecycleHandler
    pod_ip: str = ""


async def run_hook(services: PodServices, hook: Hook) -> None:
    """Run a hook to its end, however long that takes. Raises `HookError`."""
    handler = hook.handler
    if handler.exec is not None:
        await _run_exec(services, hook, list(handler.exec.command or ()))
    elif handler.httpGet is not None and services.script is not None:
        lifecycle = hook.container.lifecycle
        is_pre_stop = lifecycle is not None and lifecycle.preStop == handler
        await services.script.http_hook(hook.container_id, is_pre_stop=is_pre_stop)
    elif handler.httpGet is not None:
        await _run_http(services, hook, handler.httpGet)
    elif handler.sleep is not None:
        # As runSleepHandler: a sleep that the grace period or the agent cancels is counted.
        ended = False
        try:
            await trio.sleep(handler.sleep.seconds)
            ended = True
        finally:
            if not ended:
                services.meter.count("kubelet_sleep_action_terminated_early_total")
    else:
        raise HookError("Cannot run handler: invalid handler")


async def _run_exec(services: PodServices, hook: Hook, command: list[str]) -> None:
    printed = b""
    try:
        # 0: CRI's "run forever". The grace period bounds a preStop hook, nothing a postStart hook.
        done = await services.runtime.exec_sync(hook.container_id, command, 0)
    except RuntimeCallError as exc:
        why = exc.go_text
    else:
        if done.exit_code == 0:
            return
        printed = done.stdout[:_MOST_PRINTED] + done.stderr[:_MOST_PRINTED]
        error = done.stderr[:_MOST_PRINTED].decode("utf-8", "replace")
        why = f"command '{' '.join(command)}' exited with {done.exit_code}: {error}"
    what = f"Exec lifecycle hook ([{' '.join(command)}])"
    message = quoted(printed[:_MOST_PRINTED].decode("utf-8", "replace"))
    raise HookError(_cut(f"{what} {_container(hook)} failed - error: {why}, message: {message}"))


async def _run_http(services: PodServices, hook: Hook, action: HTTPGetAction) -> None:
    try:
        if not (action.host or hook.pod_ip):
            raise HandlerError("failed to find networking container")
        request = http_request(action, hook.container, hook.pod_ip, "lifecycle")
        try:
            await http_get(request)
        except HandlerError as exc:
            if not exc.is_plain_http:
                raise
            # The scheme is HTTPS and the server speaks HTTP: once more, without Authorization.
            await http_get(request.plain())
            services.meter.count("kubelet_lifecycle_handler_http_fallbacks_total")
            services.events.emit(
                pod_object_ref(hook.pod),
                "Warning",
                "LifecycleHTTPFallback",
                f"request to HTTPS lifecycle hook {request.address} got HTTP response, "
                "retry with HTTP succeeded",
            )
    except HandlerError as exc:
        what = f"HTTP lifecycle hook ({action.path})"
        raise HookError(_cut(f"{what} {_container(hook)} failed - error: {exc}")) from exc


def _cut(text: str) -> str:
    return text.encode("utf-8", "backslashreplace")[:_MOST_PRINTED].decode("utf-8", "ignore")


def _container(hook: Hook) -> str:
    key = pod_key(hook.pod)
    pod = f"{key.name}_{key.namespace}({pod_uid(hook.pod)})"
    return f'for Container "{hook.container.name}" in Pod "{pod}"'
