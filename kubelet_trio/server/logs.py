"""`/logs/{namespace}/{pod}/{container}`: one instance's log, whole or as it grows.

Query, by the names of core/v1 PodLogOptions: `follow`, `previous`, `timestamps`,
`tailLines`, `limitBytes`, `sinceSeconds`, `sinceTime` (RFC 3339). A follow ends when the
instance has ended and all it wrote has been sent, as `kubectl logs -f` does.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import LogOptions, follow_log, inotify_watch
from kubelet_trio.model import Offload, Purpose, metadata, pod_uid, thread_offload
from kubelet_trio.server.http import HttpError, Request, Response, Send
from kubelet_trio.server.lookup import LogUnavailableError, known_pod, log_container_id
from kubelet_trio.server.view import AgentView

_TRUE = ("1", "true")


async def answer_logs(
    view: AgentView, request: Request, offload: Offload = thread_offload.of(Purpose.LOGS)
) -> Response:
    """Answer with the log. Raises `HttpError`: 404 for the pod, 400 for what cannot be read."""
    query = request.query
    pod = known_pod(view, request.params["namespace"], request.params["pod"])
    return await log_response(
        view,
        pod,
        request.params["container"],
        log_options(query),
        previous=query.get("previous") in _TRUE,
        follow=query.get("follow") in _TRUE,
        offload=offload,
    )


async def log_response(
    view: AgentView,
    pod: Pod,
    container: str,
    options: LogOptions,
    *,
    previous: bool,
    follow: bool,
    offload: Offload = thread_offload.of(Purpose.LOGS),
) -> Response:
    """Answer with one instance's log. Raises `HttpError` 400 for what cannot be read."""
    try:
        instance = log_container_id(pod, container, previous=previous)
    except LogUnavailableError as exc:
        raise HttpError(400, str(exc)) from exc
    uid = pod_uid(pod)
    path = view.log_path(uid, instance)
    if path is None or not await offload(path.exists):
        raise HttpError(
            400, f'container "{container}" in pod "{metadata(pod).name}" has no log file'
        )

    def writes_to() -> Path | None:
        return path if follow and view.is_running(uid, instance) else None

    return Response(stream=lambda send: _send_log(path, options, writes_to, offload, send))


def log_options(query: Mapping[str, str]) -> LogOptions:
    """Read what is asked for. Raises `HttpError` 400 naming the argument."""
    since = None
    if "sinceSeconds" in query:
        since = time.time() - _number(query, "sinceSeconds")
    elif "sinceTime" in query:
        try:
            since = datetime.datetime.fromisoformat(query["sinceTime"]).timestamp()
        except ValueError as exc:
            raise HttpError(400, f"sinceTime: {exc}") from exc
    return LogOptions(
        tail=int(_number(query, "tailLines")) if "tailLines" in query else None,
        since=since,
        limit=int(_number(query, "limitBytes")) if "limitBytes" in query else None,
        timestamps=query.get("timestamps") in _TRUE,
    )


def _number(query: Mapping[str, str], name: str) -> float:
    try:
        value = float(query[name])
    except ValueError as exc:
        raise HttpError(400, f"{name}: not a number") from exc
    if not 0 <= value < 2**53:
        raise HttpError(400, f"{name}: must not be negative")
    return value


async def _send_log(
    path: Path,
    options: LogOptions,
    writes_to: Callable[[], Path | None],
    offload: Offload,
    send: Send,
) -> None:
    async with follow_log(
        path, options, writes_to, offload=offload, open_watch=inotify_watch
    ) as pieces:
        async for piece in pieces:
            await send(piece)
