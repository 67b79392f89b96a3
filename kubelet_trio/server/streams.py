"""/exec, /attach and /portForward: what is asked for goes to the runtime as a URL, and through.

A runtime of this process has streams and no URLs: those are served here (`local_streams`).

Source: getExec, getAttach and getPortForward in pkg/kubelet/server/server.go,
GetExec and its siblings in kubelet_pods.go, and k8s.io/cri-streaming (options, WriteError).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus

from lightkube.models.core_v1 import Pod

from kubelet_trio.cri import (
    CommandStreams,
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    StreamOptions,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.model import (
    ContainerRecord,
    ContainerState,
    Meter,
    is_static,
    metadata,
    pod_uid,
)
from kubelet_trio.server.http import Handler, HttpError, Request, Response
from kubelet_trio.server.lookup import container_spec, named_pod
from kubelet_trio.server.numbers import parse_decimal
from kubelet_trio.server.proxy import is_upgrade, is_websocket, proxy_upgrade
from kubelet_trio.server.router import Router
from kubelet_trio.server.view import NodeView

Answer = Callable[[NodeView, Request, float], Awaitable[Response]]
_RETRY_AFTER = (("Retry-After", "60"),)  # seconds that a URL lives, as upstream says


def add_streams(router: Router, view: NodeView, idle_timeout: float, meter: Meter) -> None:
    """Add the three, in both forms of their path, for GET (WebSocket) and POST (SPDY)."""
    for name, answer in (("exec", answer_exec), ("attach", answer_attach)):
        for path in ("{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"):
            _add(
                router,
                f"/{name}/{path}",
                _counted(_handler(view, answer, idle_timeout), name, meter),
            )
    forward = _counted(_handler(view, answer_port_forward, idle_timeout), "portforward", meter)
    for path in ("{namespace}/{pod}", "{namespace}/{pod}/{uid}"):
        _add(router, f"/portForward/{path}", forward)


def _add(router: Router, pattern: str, handler: Handler) -> None:
    for method in ("GET", "POST"):
        router.add(method, pattern, handler)


def _handler(view: NodeView, answer: Answer, idle_timeout: float) -> Handler:
    async def handle(request: Request) -> Response:
        return await answer(view, request, idle_timeout)

    return handle


def _counted(handler: Handler, subresource: str, meter: Meter) -> Handler:
    """Count the WebSocket clients of the protocols that API servers hand through."""

    async def handle(request: Request) -> Response:
        response = await handler(request)
        if is_websocket(request):
            from kubelet_trio.server import translated  # as below

            is_tunnelled = subresource == "portforward"
            if (translated.is_tunnel if is_tunnelled else translated.is_translated)(request):
                meter.count("kubelet_websocket_streaming_requests_total", (subresource,))
        return response

    return handle


def _require_upgrade(request: Request) -> None:
    if not is_upgrade(request):
        raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "Upgrade request required")


def _proxied(
    request: Request, url: str, idle_timeout: float, options: StreamOptions | None = None
) -> Response:
    """Hand the client to the runtime; in between where it speaks what the runtime does not.

    `options` are those of a command.
    """
    _require_upgrade(request)
    if is_websocket(request):
        from kubelet_trio.server import translated  # its protocols are loaded with the first

        if options is not None and translated.is_translated(request):
            translate = translated.translate_upgrade
            return Response(upgrade=partial(translate, request, url, options, idle_timeout))
        if options is None and translated.is_tunnel(request):
            return Response(upgrade=partial(translated.tunnel_upgrade, request, url, idle_timeout))
    return Response(upgrade=partial(proxy_upgrade, request, url, idle_timeout=idle_timeout))


def stream_options(arguments: tuple[tuple[str, str], ...]) -> StreamOptions:
    """Read the query; the first of several values counts. Raises `HttpError` 400."""
    query: dict[str, str] = {}
    for name, value in arguments:
        query.setdefault(name, value)
    tty = query.get("tty") == "1"
    options = StreamOptions(
        stdin=query.get("input") == "1",
        stdout=query.get("output") == "1",
        stderr=query.get("error") == "1" and not tty,  # a terminal has one output
        tty=tty,
    )
    if not (options.stdin or options.stdout or options.stderr):
        raise _error(HTTPStatus.BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr")
    return options


def forwarded_ports(request: Request) -> tuple[int, ...]:
    """Return the ports that a WebSocket client names; SPDY names them later.

    Raises `HttpError` 400.
    """
    if request.headers.get("upgrade", "").lower() != "websocket":
        return ()
    protocols = request.headers.get("sec-websocket-protocol", "")
    if "portforward.k8s.io" in protocols:
        return ()  # SPDY in a tunnel
    values = [value for name, value in request.arguments if name == "port"]
    if not values:
        raise _error(HTTPStatus.BAD_REQUEST, 'query parameter "port" is required')
    ports = []
    for value in values:
        if not value:
            raise _error(HTTPStatus.BAD_REQUEST, 'query parameter "port" cannot be empty')
        for text in value.split(","):
            number = parse_decimal(text)
            if number is None or not 0 <= number < 65536:
                raise _error(HTTPStatus.BAD_REQUEST, f'unable to parse "{value}" as a port')
            if number == 0:
                raise _error(HTTPStatus.BAD_REQUEST, f'port "{value}" must be > 0')
            ports.append(number)
    return tuple(ports)


async def answer_exec(view: NodeView, request: Request, idle_timeout: float) -> Response:
    """Answer with the streams of a command. Raises `HttpError`."""
    options = stream_options(request.arguments)
    pod = require_pod(view, request.params)
    name = request.params["container"]
    container = running_container(view, pod, name, request.params.get("uid", ""))
    if container is None:
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, f'container not found ("{name}")')
    command = [value for name, value in request.arguments if name == "command"]
    if (local := view.runtime.local_streams) is not None:
        _require_upgrade(request)
        opening = partial(
            local.open_exec, container.id, command, tty=options.tty, stdin=options.stdin
        )
        return _command(request, opening, options, idle_timeout, is_attach=False)
    asked = v1.ExecRequest(
        container_id=container.id,
        cmd=command,
        tty=options.tty,
        stdin=options.stdin,
        stdout=options.stdout,
        stderr=options.stderr,
    )
    with runtime_refusals():
        url = await view.runtime.exec_url(asked)
    return _proxied(request, url, idle_timeout, options)


async def answer_attach(view: NodeView, request: Request, idle_timeout: float) -> Response:
    """Answer with a container's own streams. Raises `HttpError`."""
    asked = stream_options(request.arguments)
    pod = require_pod(view, request.params)
    name = request.params["container"]
    container = running_container(view, pod, name, request.params.get("uid", ""))
    if container is None:
        full_name = f"{metadata(pod).name}_{metadata(pod).namespace}"
        message = f"container {name} not found in pod {full_name}"
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
    spec = container_spec(pod, name)
    # Whether there is a terminal was settled when the container was made.
    tty = bool(spec.tty) if spec is not None else asked.tty
    options = replace(asked, tty=tty, stderr=asked.stderr and not tty)
    if (local := view.runtime.local_streams) is not None:
        _require_upgrade(request)
        opening = partial(local.open_attach, container.id)
        return _command(request, opening, options, idle_timeout, is_attach=True)
    attach = v1.AttachRequest(
        container_id=container.id,
        stdin=options.stdin,
        tty=options.tty,
        stdout=options.stdout,
        stderr=options.stderr,
    )
    with runtime_refusals():
        url = await view.runtime.attach_url(attach)
    return _proxied(request, url, idle_timeout, options)


async def answer_port_forward(view: NodeView, request: Request, idle_timeout: float) -> Response:
    """Answer with connections into a pod. Raises `HttpError`."""
    ports = forwarded_ports(request)
    pod = require_pod(view, request.params)
    uid = request.params.get("uid", "")
    if uid and not _is_uid_of(pod, uid):
        raise _error(HTTPStatus.NOT_FOUND, "pod not found")
    sandboxes = view.observed(pod_uid(pod)).sandboxes
    sandbox = next((sandbox for sandbox in sandboxes if sandbox.ready), None)
    if sandbox is None:
        full_name = f"{metadata(pod).name}_{metadata(pod).namespace}"
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, f'pod not found ("{full_name}")')
    if (local := view.runtime.local_streams) is not None:
        _require_upgrade(request)
        from kubelet_trio.server.local_streams import local_forward  # as below

        return local_forward(request, local, sandbox.id, ports, idle_timeout)
    with runtime_refusals():
        url = await view.runtime.port_forward_url(sandbox.id, ports)
    return _proxied(request, url, idle_timeout)


def _command(
    request: Request,
    opening: Callable[[], AbstractAsyncContextManager[CommandStreams]],
    options: StreamOptions,
    idle_timeout: float,
    *,
    is_attach: bool,
) -> Response:
    from kubelet_trio.server.local_streams import local_command  # loaded when somebody asks

    return local_command(request, opening, options, idle_timeout, is_attach=is_attach)


def require_pod(view: NodeView, params: Mapping[str, str]) -> Pod:
    """Return the pod that a path names. Raises `HttpError` 404."""
    pod = named_pod(view, params["namespace"], params["pod"])
    if pod is None:
        raise _error(HTTPStatus.NOT_FOUND, "pod does not exist")
    return pod


def running_container(view: NodeView, pod: Pod, name: str, uid: str = "") -> ContainerRecord | None:
    """Return the instance of a container that runs; None also for a pod of another UID."""
    if uid and not _is_uid_of(pod, uid):
        return None
    return next(
        (
            container
            for container in view.observed(pod_uid(pod)).of(name)
            if container.state is ContainerState.RUNNING
        ),
        None,
    )


@contextmanager
def runtime_refusals() -> Iterator[None]:
    """Turn what the runtime says into an answer, as cri-streaming's WriteError."""
    try:
        yield
    except UnsupportedCallError as exc:
        message = f"{exc.call} is not supported by this container runtime: {exc.message}"
        raise _error(HTTPStatus.NOT_IMPLEMENTED, message) from exc
    except RuntimeObjectNotFoundError as exc:
        raise _error(HTTPStatus.NOT_FOUND, exc.go_text) from exc
    except RuntimeCallError as exc:
        if exc.code == "ResourceExhausted":
            raise HttpError(
                HTTPStatus.TOO_MANY_REQUESTS, exc.go_text, _RETRY_AFTER, end=""
            ) from exc
        raise _error(HTTPStatus.INTERNAL_SERVER_ERROR, exc.go_text) from exc


def _is_uid_of(pod: Pod, uid: str) -> bool:
    """Whether a client may mean this pod; it knows a static one by its mirror's UID."""
    return uid == pod_uid(pod) or is_static(pod)


def _error(status: int, message: str) -> HttpError:
    return HttpError(status, message, end="")
