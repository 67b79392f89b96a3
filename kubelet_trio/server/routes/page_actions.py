"""What the owner of the agent may do on the node page: restart containers, and run commands.

    POST /ui/login                    a one-time login becomes a session: a cookie, and a key
    GET  /ui/session                  whether the cookie and the key are those of a session
    POST /ui/logout                   ends the session and its terminals
    POST /ui/restart/{namespace}/{pod}[?container=]         as on the control socket
    GET  /ui/exec/{namespace}/{pod}/{container}?command=    a terminal: WebSocket, v5.channel.k8s.io

With `--ui-actions`, on the port of `--ui-port` alone. Everything but `session` must come from the
page itself, by its `Origin`: `http://` and the `Host`, which must be a loopback name. It then needs
the cookie and the key (see `access.page_sessions`): in the header `X-Kubelet-Trio-Key`, or for a
WebSocket as a subprotocol, since browsers let scripts set no other header of it. So neither a page
of another origin, nor a form, nor a link can act.

Each action writes one line to the log, with the name of the session.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec
import trio

from kubelet_trio.model import JSON_ERRORS, get_logger
from kubelet_trio.server.access.page_sessions import (
    IDLE_SECONDS,
    LIFETIME_SECONDS,
    PageSessions,
    Session,
    SessionRefusedError,
)
from kubelet_trio.server.errors import HttpError
from kubelet_trio.server.http.router import Router
from kubelet_trio.server.http.types import Headers, Request, Response, Upgrade
from kubelet_trio.server.routes.control import Restart, answer_restart
from kubelet_trio.server.routes.node_page import PAGE_HEADERS, is_loopback_host, page_answer
from kubelet_trio.server.view import KubeletApiView

log = get_logger()

KEY_HEADER = "x-kubelet-trio-key"
KEY_PROTOCOL = "key.kubelet-trio."  # and the key: a subprotocol of a WebSocket
_CHANNELS = "v5.channel.k8s.io"
_MOST_COOKIES = 8  # of the session's name; other servers of this host may have set some
_MOST_SHOWN = 200  # characters of a command in the log
_SIGN_IN = "sign in first: run `kubelet-trio ui` where the agent runs, and open what it prints"


def page_actions_router(view: KubeletApiView, restart: Restart, sessions: PageSessions) -> Router:
    """Return the routes of the actions, which check who asks."""
    actions = _Actions(view, restart, sessions)
    router = Router()
    router.add("POST", "/ui/login", actions.log_in)
    router.add("GET", "/ui/session", actions.tell)
    router.add("POST", "/ui/logout", actions.log_out)
    router.add("POST", "/ui/restart/{namespace}/{pod}", actions.restart)
    router.add("GET", "/ui/exec/{namespace}/{pod}/{container}", actions.execute)
    return router


class _Actions:
    def __init__(self, view: KubeletApiView, restart: Restart, sessions: PageSessions) -> None:
        self._view = view
        self._restart = restart
        self._sessions = sessions

    async def log_in(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        _require_own_page(request)
        # Forms cannot send JSON: a second reason that no other page gets this far.
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a login is application/json")
        try:
            login = self._sessions.log_in(_token(request.body))
        except SessionRefusedError as exc:
            if not exc.is_rate:
                log.warning("ui.login_refused", reason=str(exc))
            raise _refused(exc) from exc
        log.info("ui.login", session=login.session.name)
        return _json(
            {"session": login.session.name, "key": login.key},
            (("Set-Cookie", _set_cookie(request, login.cookie, LIFETIME_SECONDS)),),
        )

    async def tell(self, request: Request) -> Response:
        """Answer whether someone is signed in. That is no use of the session: it goes on to age."""
        await trio.lowlevel.checkpoint()
        session = self._sessions.find(_cookies(request), request.headers.get(KEY_HEADER, ""))
        return _json({"session": session.name if session is not None else ""})

    async def log_out(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        session = self._admit(request, request.headers.get(KEY_HEADER, ""))
        self._sessions.end(session)
        log.info("ui.logout", session=session.name)
        return _json({}, (("Set-Cookie", _set_cookie(request, "", 0)),))

    async def restart(self, request: Request) -> Response:
        session = self._admit(request, request.headers.get(KEY_HEADER, ""))
        what = {
            "pod": f"{request.params['namespace']}/{request.params['pod']}",
            "containerName": request.query.get("container", ""),
        }
        try:
            answer = await answer_restart(self._view, self._restart, request)
        except HttpError as exc:
            log.info("ui.restart", session=session.name, **what, refused=str(exc))
            raise
        log.info("ui.restart", session=session.name, **what)
        return replace(answer, headers=PAGE_HEADERS)

    async def execute(self, request: Request) -> Response:
        """Run a command on a terminal. Refusals after the checks are told in the WebSocket."""
        from kubelet_trio.server.streams.protocols import refused_command  # loaded on demand
        from kubelet_trio.server.streams.routes import answer_exec  # likewise

        offered = _offered(request)
        keys = [name.removeprefix(KEY_PROTOCOL) for name in offered if _is_key(name)]
        session = self._admit(request, keys[0] if len(keys) == 1 else "")
        asked = _terminal_request(request, offered)
        log.info(
            "ui.exec",
            session=session.name,
            pod=f"{asked.params['namespace']}/{asked.params['pod']}",
            containerName=asked.params["container"],
            command=shlex.join(v for n, v in asked.arguments if n == "command")[:_MOST_SHOWN],
        )
        try:
            answer = await answer_exec(self._view, asked, IDLE_SECONDS, hangs_up=True)
        except HttpError as exc:
            return refused_command(asked, str(exc))

        async def serve(connection: Upgrade) -> None:
            assert answer.upgrade is not None
            try:
                with self._sessions.terminal(session):
                    await answer.upgrade(connection)
            except (HttpError, SessionRefusedError) as exc:  # before the client was answered
                refusal = refused_command(asked, str(exc))
                assert refusal.upgrade is not None
                await refusal.upgrade(connection)

        return Response(upgrade=serve)

    def _admit(self, request: Request, key: str) -> Session:
        """Return the session that a request of the page itself has. Raises `HttpError`."""
        _require_own_page(request)
        session = self._sessions.find(_cookies(request), key)
        try:
            if session is None:
                self._sessions.note_failure()
                log.warning("ui.refused", path=request.path[:_MOST_SHOWN])
                raise HttpError(HTTPStatus.FORBIDDEN, _SIGN_IN)
            self._sessions.act(session)
        except SessionRefusedError as exc:
            raise _refused(exc) from exc
        return session


def _require_own_page(request: Request) -> None:
    """Raise `HttpError` 403 unless the page itself asks, under a loopback name."""
    host = request.headers.get("host", "").lower()
    origin = request.headers.get("origin", "").lower()
    if not is_loopback_host(host) or origin != f"http://{host}":
        raise HttpError(HTTPStatus.FORBIDDEN, "actions are for the page itself: the Origin differs")


def _refused(error: SessionRefusedError) -> HttpError:
    status = HTTPStatus.TOO_MANY_REQUESTS if error.is_rate else HTTPStatus.FORBIDDEN
    return HttpError(status, str(error))


def _token(body: bytes) -> str:
    """Return the token of a login's JSON; "" if it has none."""
    try:
        told = msgspec.json.decode(body)
    except JSON_ERRORS:
        return ""
    token = told.get("token") if isinstance(told, dict) else None
    return token if isinstance(token, str) else ""


def _cookie_name(request: Request) -> str:
    """Return the name of the session's cookie: with the port that the browser sees.

    Cookies do not tell ports apart, and `ssh -L` shows the pages of several nodes on one host.
    """
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"kubelet-trio-{port if port.isdecimal() else 80}"


def _cookies(request: Request) -> Iterator[str]:
    """Yield the values of the session's cookie; there may be several, of other servers too."""
    name, left = _cookie_name(request), _MOST_COOKIES
    for header, content in request.raw_headers:
        if header.lower() != "cookie":
            continue
        for part in content.split(";"):
            found, _, value = part.strip().partition("=")
            if found == name and left:
                left -= 1
                yield value


def _set_cookie(request: Request, value: str, seconds: float) -> str:
    return (
        f"{_cookie_name(request)}={value}; Max-Age={seconds:.0f}; Path=/ui; HttpOnly; "
        "SameSite=Strict"
    )


def _offered(request: Request) -> list[str]:
    return [n.strip() for n in request.headers.get("sec-websocket-protocol", "").split(",")]


def _is_key(name: str) -> bool:
    return name.startswith(KEY_PROTOCOL)


def _terminal_request(request: Request, offered: list[str]) -> Request:
    """Return the request for a terminal, without the secrets. Raises `HttpError` 400."""
    command = tuple((name, value) for name, value in request.arguments if name == "command")
    headers = request.headers
    if headers.get("upgrade", "").lower() != "websocket" or _CHANNELS not in offered:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"a terminal is a WebSocket with {_CHANNELS}")
    if not command or not command[0][1]:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the query has no command")
    kept = ("connection", "upgrade", "sec-websocket-key", "sec-websocket-version")
    clean = {name: headers[name] for name in kept if name in headers}
    clean["sec-websocket-protocol"] = _CHANNELS
    return Request(
        method="GET",
        path=request.path,
        arguments=(*command, ("input", "1"), ("output", "1"), ("tty", "1")),
        headers=clean,
        raw_headers=tuple(clean.items()),
        params=request.params,
        peer=request.peer,
    )


def _json(thing: Any, headers: Headers = ()) -> Response:
    answer = page_answer(msgspec.json.encode(thing))
    return replace(answer, headers=(*answer.headers, *headers))
