"""/exec, /attach and /portForward: ask the runtime for a URL and proxy the client to it.

The process runtime has streams instead of URLs; the agent serves these itself (`protocols`).

Source: getExec, getAttach and getPortForward in pkg/kubelet/server/server.go,
GetExec, GetAttach and GetPortForward in kubelet_pods.go, and k8s.io/cri-streaming (options,
WriteError).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus

from kubelet_trio.cri import (
    CommandStreams,
    RuntimeCallError,
    RuntimeObjectNotFoundError,
    StreamOptions,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.model import (
    Meter,
    metadata,
    pod_uid,
)
from kubelet_trio.server.errors import HttpError, restful_error
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.types import Handler, Request, Response, parse_decimal
from kubelet_trio.server.lookup import (
    container_spec,
    is_uid_of,
    require_pod,
    running_container,
)
from kubelet_trio.server.streams.proxy import is_upgrade, is_websocket, proxy_upgrade
from kubelet_trio.server.view import KubeletApiView

Answer = Callable[[KubeletApiView, Request, float], Awaitable[Response]]
# Seconds that a URL of the runtime is valid: it keeps at most 1,000 of them (cri-streaming).
_RETRY_AFTER = (("Retry-After", "60"),)


def add_streams(router: Router, view: KubeletApiView, idle_timeout: float, meter: Meter) -> None:
    """Add the routes, with and without the pod's UID, for GET (WebSocket) and POST (SPDY)."""
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


def _handler(view: KubeletApiView, answer: Answer, idle_timeout: float) -> Handler:
    async def handle(request: Request) -> Response:
        return await answer(view, request, idle_timeout)

    return handle


def _counted(handler: Handler, subresource: str, meter: Meter) -> Handler:
    """Count the WebSocket clients whose protocols the agent translates or tunnels."""

    async def handle(request: Request) -> Response:
        response = await handler(request)
        if is_websocket(request):
            from kubelet_trio.server.streams import protocols  # loaded with the first such request

            is_forward = subresource == "portforward"
            if (protocols.is_tunnel if is_forward else protocols.is_translated)(request):
                meter.count("kubelet_websocket_streaming_requests_total", (subresource,))
        return response

    return handle


def _require_upgrade(request: Request) -> None:
    if not is_upgrade(request):
        raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "Upgrade request required")


def _proxied(
    request: Request,
    url: str,
    idle_timeout: float,
    options: StreamOptions | None = None,
    *,
    hangs_up: bool = False,
) -> Response:
    """Connect the client with the runtime's server; translate protocols that it does not support.

    `options` are the command's; None for a port-forward. Raises `HttpError`.
    """
    _require_upgrade(request)
    if is_websocket(request):
        from kubelet_trio.server.streams import protocols  # loaded with the first such request

        if options is not None and protocols.is_translated(request):
            translate = partial(protocols.translate_upgrade, hangs_up=hangs_up)
            return Response(upgrade=partial(translate, request, url, options, idle_timeout))
        if options is None and protocols.is_tunnel(request):
            return Response(upgrade=partial(protocols.tunnel_upgrade, request, url, idle_timeout))
    return Response(upgrade=partial(proxy_upgrade, request, url, idle_timeout=idle_timeout))


def stream_options(arguments: tuple[tuple[str, str], ...]) -> StreamOptions:
    """Read the query; the first value of each name counts. Raises `HttpError` 400."""
    query: dict[str, str] = {}
    for name, value in arguments:
        query.setdefault(name, value)
    tty = query.get("tty") == "1"
    options = StreamOptions(
        stdin=query.get("input") == "1",
        stdout=query.get("output") == "1",
        # A terminal has one output: runtimes refuse a TTY with stderr.
        stderr=query.get("error") == "1" and not tty,
        tty=tty,
    )
    if not (options.stdin or options.stdout or options.stderr):
        raise restful_error(
            HTTPStatus.BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr"
        )
    return options


def forwarded_ports(request: Request) -> tuple[int, ...]:
    """Return the ports that a WebSocket client names. Raises `HttpError` 400.

    SPDY clients name a port with each stream.
    """
    if request.headers.get("upgrade", "").lower() != "websocket":
        return ()
    protocols = request.headers.get("sec-websocket-protocol", "")
    if "portforward.k8s.io" in protocols:
        return ()  # SPDY in a tunnel
    values = [value for name, value in request.arguments if name == "port"]
    if not values:
        raise restful_error(HTTPStatus.BAD_REQUEST, 'query parameter "port" is required')
    ports = []
    for value in values:
        if not value:
            raise restful_error(HTTPStatus.BAD_REQUEST, 'query parameter "port" cannot be empty')
        for text in value.split(","):
            is_number = text.isascii() and text.isdigit()  # without a sign, as Go's ParseUint
            number = parse_decimal(text) if is_number else None
            if number is None or number >= 65536:
                problem = "value out of range" if is_number else "invalid syntax"
                told = f'unable to parse "{value}" as a port: strconv.ParseUint: parsing "{text}": '
                raise restful_error(HTTPStatus.BAD_REQUEST, told + problem)
            if number == 0:
                raise restful_error(HTTPStatus.BAD_REQUEST, f'port "{value}" must be > 0')
            ports.append(number)
    return tuple(ports)


async def answer_exec(
    view: KubeletApiView, request: Request, idle_timeout: float, *, hangs_up: bool = False
) -> Response:
    """Run a command and answer with its streams. Raises `HttpError`.

    `hangs_up`: ask the command to end when its client leaves, also where the runtime does not.
    """
    options = stream_options(request.arguments)
    pod = require_pod(view, request.params)
    name = request.params["container"]
    container = running_container(view, pod, name, request.params.get("uid", ""))
    if container is None:
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, f'container not found ("{name}")')
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
    return _proxied(request, url, idle_timeout, options, hangs_up=hangs_up)


async def answer_attach(view: KubeletApiView, request: Request, idle_timeout: float) -> Response:
    """Answer with a container's own streams. Raises `HttpError`."""
    asked = stream_options(request.arguments)
    pod = require_pod(view, request.params)
    name = request.params["container"]
    container = running_container(view, pod, name, request.params.get("uid", ""))
    if container is None:
        full_name = f"{metadata(pod).name}_{metadata(pod).namespace}"
        message = f"container {name} not found in pod {full_name}"
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
    spec = container_spec(pod, name)
    # The container has a terminal or not since its creation, whatever the client asks for.
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


async def answer_port_forward(
    view: KubeletApiView, request: Request, idle_timeout: float
) -> Response:
    """Answer with connections into a pod. Raises `HttpError`."""
    ports = forwarded_ports(request)
    pod = require_pod(view, request.params)
    uid = request.params.get("uid", "")
    if uid and not is_uid_of(pod, uid):
        raise restful_error(HTTPStatus.NOT_FOUND, "pod not found")
    sandboxes = view.observed(pod_uid(pod)).sandboxes
    # A pod may have old sandboxes as well; only the ready one has a network.
    sandbox = next((sandbox for sandbox in sandboxes if sandbox.ready), None)
    if sandbox is None:
        full_name = f"{metadata(pod).name}_{metadata(pod).namespace}"
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, f'pod not found ("{full_name}")')
    if (local := view.runtime.local_streams) is not None:
        _require_upgrade(request)
        from kubelet_trio.server.streams.protocols import local_forward  # loaded on demand

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
    from kubelet_trio.server.streams.protocols import local_command  # loaded on demand

    return local_command(request, opening, options, idle_timeout, is_attach=is_attach)


@contextmanager
def runtime_refusals() -> Iterator[None]:
    """Translate the runtime's errors into answers, as cri-streaming's WriteError."""
    try:
        yield
    except UnsupportedCallError as exc:
        message = f"{exc.call} is not supported by this container runtime: {exc.message}"
        raise restful_error(HTTPStatus.NOT_IMPLEMENTED, message) from exc
    except RuntimeObjectNotFoundError as exc:
        raise restful_error(HTTPStatus.NOT_FOUND, exc.go_text) from exc
    except RuntimeCallError as exc:
        if exc.code == "ResourceExhausted":
            raise restful_error(HTTPStatus.TOO_MANY_REQUESTS, exc.go_text, _RETRY_AFTER) from exc
        raise restful_error(HTTPStatus.INTERNAL_SERVER_ERROR, exc.go_text) from exc
