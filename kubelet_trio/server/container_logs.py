"""`/containerLogs/{namespace}/{pod}/{container}`: core/v1 PodLogOptions as a query.

Reading it is a decision of its own: what the Go kubelet takes, refuses and answers.

Source: getContainerLogs in pkg/kubelet/server/server.go, ValidatePodLogOptions in
pkg/apis/core/v1/validation, and apimachinery's conversion of query parameters.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from kubelet_trio.containers import LogOptions
from kubelet_trio.server.http import HttpError, Request, Response
from kubelet_trio.server.logs import log_response
from kubelet_trio.server.lookup import container_spec, named_pod
from kubelet_trio.server.numbers import parse_decimal
from kubelet_trio.server.view import AgentView

_UNREADABLE = '{"message": "Unable to decode query."}'
_INVALID = '{"message": "Invalid request."}'
_FALSE = ("false", "0")
_ALL = "All"
_STREAMS = {
    _ALL: frozenset(("stdout", "stderr")),
    "Stdout": frozenset(("stdout",)),
    "Stderr": frozenset(("stderr",)),
}


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What was asked for, checked."""

    options: LogOptions
    follow: bool = False
    previous: bool = False


async def answer_container_logs(
    view: AgentView, now: float, request: Request, *, split_streams: bool = False
) -> Response:
    """Answer with the log. Raises `HttpError`."""
    params = request.params
    query = read_query(request.arguments, now, split_streams=split_streams)
    pod = named_pod(view, params["namespace"], params["pod"])
    if pod is None:
        raise _error(HTTPStatus.NOT_FOUND, f'pod "{params["pod"]}" does not exist')
    name = params["container"]
    if container_spec(pod, name) is None:
        message = f'container "{name}" not found in pod "{params["pod"]}"'
        raise _error(HTTPStatus.NOT_FOUND, message)
    return await log_response(
        view, pod, name, query.options, previous=query.previous, follow=query.follow
    )


def read_query(
    arguments: tuple[tuple[str, str], ...], now: float, *, split_streams: bool = False
) -> LogQuery:
    """Read a query; the first of several values counts. Raises `HttpError` 400 or 422.

    Args:
        arguments: the query's names and values, decoded.
        now: what `sinceSeconds` counts back from, in Unix seconds.
        split_streams: whether one of the streams may be asked for.
    """
    query: dict[str, str] = {}
    for name, value in arguments:
        query.setdefault(name, value)
    if tail := query.get("tail"):  # what it was called once
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
        raise _error(HTTPStatus.UNPROCESSABLE_ENTITY, _INVALID)
    stream = query.get("stream") or _ALL
    if split_streams:
        # Which lines are one stream's last is not known from the file's end.
        if stream not in _STREAMS or (stream != _ALL and tail_lines is not None):
            raise _error(HTTPStatus.UNPROCESSABLE_ENTITY, _INVALID)
    elif stream != _ALL:
        raise _error(
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
    return LogQuery(options, _boolean(query, "follow"), _boolean(query, "previous"))


def _boolean(query: Mapping[str, str], name: str) -> bool:
    """Read as apimachinery does: whatever is there and not false is true."""
    return name in query and query[name].lower() not in _FALSE


def _integer(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    number = parse_decimal(text)
    if number is None:
        raise _error(HTTPStatus.BAD_REQUEST, _UNREADABLE)
    return number


def _time(query: Mapping[str, str]) -> float | None:
    text = query.get("sinceTime")
    if not text:
        return None
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise _error(HTTPStatus.BAD_REQUEST, _UNREADABLE) from None
    if time.tzinfo is None:
        raise _error(HTTPStatus.BAD_REQUEST, _UNREADABLE)
    return time.timestamp()


def _error(status: int, message: str) -> HttpError:
    return HttpError(status, message, end="")
