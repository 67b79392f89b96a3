"""Logs of containers, complete or followed.

`/containerLogs/{namespace}/{pod}/{container}` of the kubelet API takes the query that the Go
kubelet takes, and refuses what it refuses. Source: getContainerLogs in
pkg/kubelet/server/server.go, ValidatePodLogOptions in pkg/apis/core/v1/validation, and
apimachinery's conversion of query parameters.

`/logs/{namespace}/{pod}/{container}` of the control socket and of the node page takes `follow`,
`previous`, `timestamps`, `tailLines`, `limitBytes`, `sinceSeconds` and `sinceTime` (RFC 3339).

A followed log ends when the container has ended and everything it wrote has been sent, as with
`kubectl logs -f`.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import LogOptions, follow_log, inotify_watch
from kubelet_trio.model import Offload, Purpose, metadata, pod_uid, thread_offload
from kubelet_trio.server.errors import HttpError, LogUnavailableError, restful_error
from kubelet_trio.server.http.types import Request, Response, Send, parse_decimal
from kubelet_trio.server.lookup import container_spec, known_pod, log_container_id, named_pod
from kubelet_trio.server.view import AgentView

_UNREADABLE = '{"message": "Unable to decode query."}'
_INVALID = '{"message": "Invalid request."}'
_FALSE = ("false", "0")
_TRUE = ("1", "true")
_ALL = "All"
_STREAMS = {
    _ALL: frozenset(("stdout", "stderr")),
    "Stdout": frozenset(("stdout",)),
    "Stderr": frozenset(("stderr",)),
}


@dataclass(frozen=True, slots=True)
class ContainerLogQuery:
    """A valid query for a container's log."""

    options: LogOptions
    follow: bool = False
    previous: bool = False


async def answer_container_logs(
    view: AgentView, now: float, request: Request, *, split_streams: bool = False
) -> Response:
    """Answer a request to the kubelet API with the log. Raises `HttpError`."""
    params = request.params
    query = read_query(request.arguments, now, split_streams=split_streams)
    pod = named_pod(view, params["namespace"], params["pod"])
    if pod is None:
        raise restful_error(HTTPStatus.NOT_FOUND, f'pod "{params["pod"]}" does not exist')
    name = params["container"]
    if container_spec(pod, name) is None:
        message = f'container "{name}" not found in pod "{params["pod"]}"'
        raise restful_error(HTTPStatus.NOT_FOUND, message)
    return await log_response(
        view, pod, name, query.options, previous=query.previous, follow=query.follow
    )


def read_query(
    arguments: tuple[tuple[str, str], ...], now: float, *, split_streams: bool = False
) -> ContainerLogQuery:
    """Read a query; the first value of each name counts. Raises `HttpError` 400 or 422.

    Args:
        arguments: the query's names and values, decoded.
        now: the time that `sinceSeconds` counts back from, in Unix seconds.
        split_streams: whether `stream` may name one of the two streams.
    """
    query: dict[str, str] = {}
    for name, value in arguments:
        query.setdefault(name, value)
    if tail := query.get("tail"):  # the deprecated name of `tailLines` (getContainerLogs)
        query["tailLines"] = tail
        if tail == "all":
            del query["tailLines"]
    tail_lines = _integer(query, "tailLines")
    limit = _integer(query, "limitBytes")
    seconds = _integer(query, "sinceSeconds")
    since = _time(query)
    if (
        (tail_lines is not None and tail_lines < 0)
        or (limit is not None and limit < 1)
        or (seconds is not None and seconds < 1)
        or (seconds is not None and since is not None)
    ):
        raise restful_error(HTTPStatus.UNPROCESSABLE_ENTITY, _INVALID)
    stream = query.get("stream") or _ALL
    if split_streams:
        # KEP-3288: `tailLines` counts lines of the file, which both streams share.
        if stream not in _STREAMS or (stream != _ALL and tail_lines is not None):
            raise restful_error(HTTPStatus.UNPROCESSABLE_ENTITY, _INVALID)
    elif stream != _ALL:
        raise restful_error(
            HTTPStatus.BAD_REQUEST,
            f'unable to return the given log stream: "{stream}". '
            "Please enable PodLogsQuerySplitStreams feature gate in kubelet",
        )
    options = LogOptions(
        tail=tail_lines,
        since=now - seconds if seconds is not None else since,
        limit=limit,
        timestamps=_boolean(query, "timestamps"),
        streams=_STREAMS.get(stream, _STREAMS[_ALL]),
    )
    return ContainerLogQuery(options, _boolean(query, "follow"), _boolean(query, "previous"))


def _boolean(query: Mapping[str, str], name: str) -> bool:
    """Read a boolean as apimachinery does: any value but "false" and "0" is true."""
    return name in query and query[name].lower() not in _FALSE


def _integer(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    number = parse_decimal(text)
    if number is None:
        raise restful_error(HTTPStatus.BAD_REQUEST, _UNREADABLE)
    return number


def _time(query: Mapping[str, str]) -> float | None:
    text = query.get("sinceTime")
    if not text:
        return None
    try:
        since = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise restful_error(HTTPStatus.BAD_REQUEST, _UNREADABLE) from None
    if since.tzinfo is None:
        raise restful_error(HTTPStatus.BAD_REQUEST, _UNREADABLE)
    return since.timestamp()


async def answer_logs(
    view: AgentView, request: Request, offload: Offload = thread_offload.of(Purpose.LOGS)
) -> Response:
    """Answer a request to the control socket or the node page with the log.

    Raises `HttpError`: 404 for an unknown pod, 400 for a bad query or a log that cannot be read.
    """
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
    """Answer with the log of one instance of a container. Raises `HttpError` 400."""
    try:
        instance = log_container_id(pod, container, previous=previous)
    except LogUnavailableError as exc:
        raise restful_error(HTTPStatus.BAD_REQUEST, str(exc)) from exc
    uid = pod_uid(pod)
    path = view.log_path(uid, instance)
    if path is None or not await offload(path.exists):
        message = f'container "{container}" in pod "{metadata(pod).name}" has no log file'
        raise restful_error(HTTPStatus.BAD_REQUEST, message)

    # As ReadLogs in k8s.io/cri-client/pkg/logs: a container that writes adds nothing to its last
    # lines while they are read.
    if not follow:
        options = replace(options, most=options.tail)

    # `follow_log` asks after each end of file: None ends the log.
    def writes_to() -> Path | None:
        return path if follow and view.is_running(uid, instance) else None

    return Response(stream=lambda send: _send_log(path, options, writes_to, offload, send))


def log_options(query: Mapping[str, str]) -> LogOptions:
    """Read the query of the control socket. Raises `HttpError` 400 naming the argument."""
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
