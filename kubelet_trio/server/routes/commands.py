"""/run and /checkpoint: one operation on a container, answered when it is complete.

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
from kubelet_trio.server.errors import restful_error
from kubelet_trio.server.http.types import Request, Response, parse_decimal
from kubelet_trio.server.lookup import container_spec, require_pod, running_container
from kubelet_trio.server.view import KubeletApiView

_JSON = "application/json"
_RUN_LIMIT = 4 * 3600.0  # seconds: the WriteTimeout of the Go kubelet's server


async def answer_run(view: KubeletApiView, request: Request) -> Response:
    """Run `cmd`, split at spaces, and answer with its output. Raises `HttpError`."""
    pod = require_pod(view, request.params)
    name = request.params["container"]
    container = running_container(view, pod, name, request.params.get("uid", ""))
    if container is None:
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, f'container not found ("{name}")')
    text = next((value for key, value in request.arguments if key == "cmd"), "")
    command = text.split(" ")
    try:
        with trio.fail_after(_RUN_LIMIT):
            result = await view.runtime.exec_sync(container.id, command, 0)
    except RuntimeCallError as exc:
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, exc.go_text) from exc
    except trio.TooSlowError as exc:
        raise restful_error(
            HTTPStatus.INTERNAL_SERVER_ERROR, f"command '{text}' timed out"
        ) from exc
    if result.exit_code:
        stderr = result.stderr.decode("utf-8", "replace")
        message = f"command '{text}' exited with {result.exit_code}: {stderr}"
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
    return Response(body=result.stdout + result.stderr, content_type=_JSON)


async def answer_checkpoint(
    view: KubeletApiView,
    now: float,
    request: Request,
    offload: Offload = thread_offload.of(Purpose.LOGS),
) -> Response:
    """Checkpoint a container into an archive below the root directory. Raises `HttpError`."""
    pod = require_pod(view, request.params)
    name = request.params["container"]
    if container_spec(pod, name) is None:
        raise restful_error(HTTPStatus.NOT_FOUND, f"container {name} does not exist")
    timeout = _timeout(request)
    meta = metadata(pod)
    failed = f"checkpointing of {meta.namespace}/{meta.name}/{name} failed"
    container = running_container(view, pod, name)
    if container is None:
        message = f"{failed} (container {name} not found)"
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
    directory = Path(view.status().root_dir) / "checkpoints"
    at = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    archive = directory / f"checkpoint-{meta.name}_{meta.namespace}-{name}-{at}.tar"
    try:
        # 0700: a checkpoint holds the container's memory, with its secrets.
        await offload(directory.mkdir, 0o700, parents=True, exist_ok=True)
        await view.runtime.checkpoint_container(container.id, str(archive), timeout)
    except RuntimeCallError as exc:
        message = f"{failed} ({exc.go_text})"
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, message) from exc
    except OSError as exc:
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{failed} ({exc})") from exc
    return Response(body=msgspec.json.encode({"items": [str(archive)]}), content_type=_JSON)


def _timeout(request: Request) -> int:
    values = [value for key, value in request.arguments if key == "timeout"]
    if not values:
        return 0
    seconds = parse_decimal(values[-1])
    if seconds is None:
        raise restful_error(HTTPStatus.NOT_FOUND, "cannot parse value of timeout parameter")
    return seconds
