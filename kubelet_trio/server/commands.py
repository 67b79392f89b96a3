"""/run and /checkpoint: done to a container at once, with an answer when it is done.

Source: getRun and checkpoint in pkg/kubelet/server/server.go, RunInContainer in
kuberuntime_container.go, CheckpointContainer in pkg/kubelet/kubelet.go.
"""

from __future__ import annotations

import datetime
from http import HTTPStatus
from pathlib import Path

import msgspec
import trio

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import Offload, Purpose, metadata, thread_offload
from kubelet_trio.server.http import HttpError, Request, Response
from kubelet_trio.server.lookup import container_spec
from kubelet_trio.server.numbers import parse_decimal
from kubelet_trio.server.streams import require_pod, running_container
from kubelet_trio.server.view import NodeView

_JSON = "application/json"
_RUN_LIMIT = 4 * 3600.0  # seconds, as long as the Go kubelet writes an answer


async def answer_run(view: NodeView, request: Request) -> Response:
    """Run `cmd`, split at its spaces, and answer with what it wrote. Raises `HttpError`."""
    pod = require_pod(view, request.params)
    name = request.params["container"]
    container = running_container(view, pod, name, request.params.get("uid", ""))
    if container is None:
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, f'container not found ("{name}")')
    given = next((value for key, value in request.arguments if key == "cmd"), "")
    command = given.split(" ")
    try:
        with trio.fail_after(_RUN_LIMIT):
            result = await view.runtime.exec_sync(container.id, command, 0)
    except RuntimeCallError as exc:
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, exc.go_text) from exc
    except trio.TooSlowError as exc:
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"command '{given}' timed out") from exc
    if result.exit_code:
        told = result.stderr.decode("utf-8", "replace")
        message = f"command '{given}' exited with {result.exit_code}: {told}"
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
    return Response(body=result.stdout + result.stderr, content_type=_JSON)


async def answer_checkpoint(
    view: NodeView, now: float, request: Request, offload: Offload = thread_offload.of(Purpose.LOGS)
) -> Response:
    """Have a container's state archived below the root directory. Raises `HttpError`."""
    pod = require_pod(view, request.params)
    name = request.params["container"]
    if container_spec(pod, name) is None:
        raise _error(HTTPStatus.NOT_FOUND, f"container {name} does not exist")
    timeout = _timeout(request)
    meta = metadata(pod)
    failed = f"checkpointing of {meta.namespace}/{meta.name}/{name} failed"
    container = running_container(view, pod, name)
    if container is None:
        message = f"{failed} (container {name} not found)"
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
    directory = Path(view.status().root_dir) / "checkpoints"
    at = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    archive = directory / f"checkpoint-{meta.name}_{meta.namespace}-{name}-{at}.tar"
    try:
        await offload(directory.mkdir, 0o700, parents=True, exist_ok=True)
        await view.runtime.checkpoint_container(container.id, str(archive), timeout)
    except RuntimeCallError as exc:
        message = f"{failed} ({exc.go_text})"
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, message) from exc
    except OSError as exc:
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{failed} ({exc})") from exc
    return Response(body=msgspec.json.encode({"items": [str(archive)]}), content_type=_JSON)


def _timeout(request: Request) -> int:
    values = [value for key, value in request.arguments if key == "timeout"]
    if not values:
        return 0
    seconds = parse_decimal(values[-1])
    if seconds is None:
        raise _error(HTTPStatus.NOT_FOUND, "cannot parse value of timeout parameter")
    return seconds


def _error(status: int, message: str) -> HttpError:
    return HttpError(status, message, end="")
