"""The page's actions: who is refused, and what the owner can do. Over the wire, byte for byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.abc import HalfCloseableStream
from trio.testing import MockClock, memory_stream_pair

from kubelet_trio.model import PodUid
from kubelet_trio.server import (
    Handler,
    PageSessions,
    loopback_only,
    node_page_router,
    page_actions_router,
    serve_connection,
)
from kubelet_trio.server.access.page_sessions import IDLE_SECONDS, LOGIN_SECONDS
from tests.server.node_view import FakeKubeletApiView
from tests.server.streams.test_local import TTY, Command, Local, Node, Socket, by_channel
from tests.server.streams.test_routes import read_head

HOST = "127.0.0.1:4194"
RESTART = "/ui/restart/default/web-node1?container=web"
EXEC = "/ui/exec/default/web-node1/web?command=sh&command=-c&command=a+b"
V5 = "v5.channel.k8s.io"


class Page:
    """The port of the page, with a fake node behind it."""

    def __init__(self, *, has_actions: bool = True) -> None:
        self.view = FakeKubeletApiView()
        self.local = Local()
        self.view.fake_runtime.local_streams = self.local
        self.sessions = PageSessions()
        self.restarted: list[tuple[str, str]] = []
        self.refusal = ""
        actions = page_actions_router(self.view, self._restart, self.sessions)
        self.handler: Handler = loopback_only(
            node_page_router(
                self.view,
                _summary,
                _history,
                lambda: 0.0,
                1,
                actions=actions if has_actions else None,
            )
        )

    def _restart(self, uid: PodUid, container: str) -> Sequence[str]:
        if self.refusal:
            raise ValueError(self.refusal)
        self.restarted.append((uid, container))
        return [container or "web"]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[HalfCloseableStream]:
        client, server = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            self.local.nursery = nursery
            nursery.start_soon(serve_connection, server, self.handler)
            yield client
            nursery.cancel_scope.cancel()

    async def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> Answer:
        async with self.connected() as client:
            named = {"Host": HOST, "Connection": "close", **headers}
            if body:
                named["Content-Length"] = str(len(body))
            lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
            await client.send_all(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
            head, rest = await read_head(client)
            if b" 101 " not in head.partition(b"\r\n")[0]:
                while piece := await client.receive_some():
                    rest += bytes(piece)
            return Answer(head.decode(), rest)

    async def log_in(self, token: str | None = None, **headers: str) -> Answer:
        body = json.dumps({"token": self.sessions.new_login() if token is None else token})
        own = {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
        return await self.ask("POST", "/ui/login", own | headers, body.encode())

    async def owner(self) -> dict[str, str]:
        """Return the headers of a page that is signed in."""
        answer = await self.log_in()
        return {
            "Origin": f"http://{HOST}",
            "Cookie": answer.cookie.partition(";")[0],
            "X-Kubelet-Trio-Key": answer.json["key"],
        }


class Answer:
    def __init__(self, head: str, body: bytes) -> None:
        first, *lines = head.split("\r\n")
        self.status = int(first.split()[1])
        self.headers = [(name, value) for name, _, value in (x.partition(": ") for x in lines)]
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        (found,) = (value for name, value in self.headers if name.lower() == "set-cookie")
        return found


async def _summary() -> bytes:
    return b"{}"


async def _history(_: str) -> bytes:
    return b"{}"


def as_websocket(headers: dict[str, str], *protocols: str) -> dict[str, str]:
    """Return the headers of a WebSocket; the key is a subprotocol there."""
    key = headers.get("X-Kubelet-Trio-Key")
    offered = [*(protocols or (V5,)), *([f"key.kubelet-trio.{key}"] if key is not None else [])]
    return {
        **{name: value for name, value in headers.items() if name != "X-Kubelet-Trio-Key"},
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": ", ".join(offered),
    }


async def test_a_login_becomes_a_session_with_a_guarded_cookie(autojump_clock: MockClock) -> None:
    page = Page()
    answer = await page.log_in()
    assert answer.status == 200
    value, *attributes = answer.cookie.split("; ")
    assert value.startswith("kubelet-trio-4194=")
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/ui", "Max-Age=28800"}
    assert len(value.partition("=")[2]) >= 43  # 256 bits
    assert answer.json["key"] not in answer.cookie
    assert dict(answer.headers)["Cache-Control"] == "no-store"
    assert dict(answer.headers)["X-Frame-Options"] == "DENY"
    told = await page.ask("GET", "/ui/session", await page.owner())
    assert told.json["session"]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:4195", "kubelet-trio-4195"),  # as ssh forwards it
        ("localhost", "kubelet-trio-80"),
        ("[::1]", "kubelet-trio-80"),
        ("[::1]:4194", "kubelet-trio-4194"),
    ],
)
async def test_the_cookie_is_named_after_the_port_that_the_browser_sees(
    autojump_clock: MockClock, host: str, name: str
) -> None:
    answer = await Page().log_in(Host=host, Origin=f"http://{host}")
    assert answer.cookie.startswith(f"{name}=")


# Change of the headers of a page that is signed in -> status. None removes a header.
REFUSALS: dict[str, tuple[dict[str, str | None], int]] = {
    "no cookie": ({"Cookie": None}, 403),
    "another cookie": ({"Cookie": "kubelet-trio-4194=x"}, 403),
    "the cookie under another port": ({"Cookie": "kubelet-trio-1=x"}, 403),
    "no key": ({"X-Kubelet-Trio-Key": None}, 403),
    "an empty key": ({"X-Kubelet-Trio-Key": ""}, 403),
    "another key": ({"X-Kubelet-Trio-Key": "x" * 43}, 403),
    "no origin": ({"Origin": None}, 403),
    "no origin that is told": ({"Origin": "null"}, 403),
    "another site": ({"Origin": "https://evil.example"}, 403),
    "another port": ({"Origin": "http://127.0.0.1:9999"}, 403),
    "another name": ({"Origin": "http://localhost:4194"}, 403),
    "another scheme": ({"Origin": f"https://{HOST}"}, 403),
    "an origin that begins alike": ({"Origin": f"http://{HOST}.evil.example"}, 403),
    "a name that resolves here": (
        {"Host": "evil.example:4194", "Origin": "http://evil.example:4194"},
        403,
    ),
}


@pytest.mark.parametrize("change", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("what", ["restart", "logout", "exec"])
async def test_who_may_not_act(
    autojump_clock: MockClock, what: str, change: tuple[dict[str, str | None], int]
) -> None:
    page = Page()
    changed, status = change
    owner = await page.owner()
    headers = {n: v for n, v in {**owner, **changed}.items() if v is not None}
    if what == "exec":
        answer = await page.ask("GET", EXEC, as_websocket(headers))
    else:
        path = RESTART if what == "restart" else "/ui/logout"
        answer = await page.ask("POST", path, headers)
    assert answer.status == status
    assert page.restarted == []
    assert page.local.opened == []
    # The session itself is not harmed.
    assert (await page.ask("POST", RESTART, owner)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:4194"},
        {"Origin": "null"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
async def test_no_other_page_signs_in(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    page = Page()
    token = page.sessions.new_login()
    assert (await page.log_in(token, **headers)).status in (403, 415)
    assert (await page.log_in(token)).status == 200  # it was not used up


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"token":1}', b'{"token":null}', b'"x"'])
async def test_what_is_no_login_is_refused(autojump_clock: MockClock, body: bytes) -> None:
    own = {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
    answer = await Page().ask("POST", "/ui/login", own, body)
    assert answer.status == 403
    assert b"kubelet-trio ui" in answer.body


async def test_a_login_that_is_old_or_used_is_refused(autojump_clock: MockClock) -> None:
    page = Page()
    token = page.sessions.new_login()
    assert (await page.log_in(token)).status == 200
    assert (await page.log_in(token)).status == 403
    token = page.sessions.new_login()
    await trio.sleep(LOGIN_SECONDS)
    assert (await page.log_in(token)).status == 403


async def test_guesses_get_429_and_write_few_lines(autojump_clock: MockClock) -> None:
    page = Page()
    with capture_logs() as logs:
        statuses = [(await page.log_in("guess")).status for _ in range(20)]
    assert statuses == [403] * 10 + [429] * 10
    assert [line["event"] for line in logs if line["log_level"] != "debug"] == [
        "ui.login_refused"
    ] * 10
    assert (await page.log_in()).status == 200


async def test_a_session_that_is_idle_or_signed_out_acts_no_more(autojump_clock: MockClock) -> None:
    page = Page()
    idle = await page.owner()
    await trio.sleep(IDLE_SECONDS)
    assert (await page.ask("POST", RESTART, idle)).status == 403
    out = await page.owner()
    answer = await page.ask("POST", "/ui/logout", out)
    assert "Max-Age=0" in answer.cookie
    assert (await page.ask("POST", RESTART, out)).status == 403
    assert (await page.ask("GET", "/ui/session", out)).json == {"session": ""}
    assert page.restarted == []


async def test_another_agent_knows_none_of_the_sessions(autojump_clock: MockClock) -> None:
    owner = await Page().owner()
    assert (await Page().ask("POST", RESTART, owner)).status == 403


async def test_actions_are_off_unless_asked_for(autojump_clock: MockClock) -> None:
    page = Page(has_actions=False)
    own = {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
    assert (await page.ask("POST", "/ui/login", own, b'{"token":"x"}')).status == 405
    assert (await page.ask("POST", RESTART, own)).status == 404
    assert (await page.ask("GET", EXEC, as_websocket(own))).status == 404
    assert (await page.ask("GET", "/ui/data", {})).json["actions"] is False
    assert (await Page().ask("GET", "/ui/data", {})).json["actions"] is True


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", [RESTART, "/ui/login", "/ui/logout"])
async def test_no_link_acts(autojump_clock: MockClock, method: str, path: str) -> None:
    page = Page()
    answer = await page.ask(method, path, await page.owner())
    assert answer.status in (404, 405)
    assert page.restarted == []


async def test_a_restart_is_done_and_audited(autojump_clock: MockClock) -> None:
    page = Page()
    owner = await page.owner()
    with capture_logs() as logs:
        answer = await page.ask("POST", RESTART, owner)
        page.refusal = "the container is starting already"
        refused = await page.ask("POST", RESTART, owner)
    assert answer.json == {"containers": ["web"]}
    assert page.restarted == [("u1", "web")]
    assert (refused.status, refused.body) == (409, b"the container is starting already\n")
    name = (await page.ask("GET", "/ui/session", owner)).json["session"]
    first, second = [each for each in logs if each["event"] == "ui.restart"]
    assert (first["session"], first["pod"], first["containerName"]) == (
        name,
        "default/web-node1",
        "web",
    )
    assert second["refused"] == "the container is starting already"
    assert owner["X-Kubelet-Trio-Key"] not in str(logs)


async def test_too_many_actions_are_429(autojump_clock: MockClock) -> None:
    page = Page()
    owner = await page.owner()
    statuses = [(await page.ask("POST", RESTART, owner)).status for _ in range(31)]
    assert statuses == [200] * 30 + [429]


@asynccontextmanager
async def terminal(page: Page, headers: dict[str, str], path: str = EXEC) -> AsyncIterator[Socket]:
    async with page.connected() as client:
        named = {"Host": HOST, **as_websocket(headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        await client.send_all(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        head, rest = await read_head(client)
        assert b" 101 " in head, (head, rest)
        assert f"Sec-WebSocket-Protocol: {V5}".encode() in head
        yield Socket(client, rest)


async def test_a_terminal_is_opened_and_audited(autojump_clock: MockClock) -> None:
    page = Page()
    owner = await page.owner()
    with capture_logs() as logs:
        async with terminal(page, owner) as socket:
            assert await socket.receive() == b"\x01"
            await socket.send(b'\x04{"Width":80,"Height":24}')
            assert await socket.receive() == b"\x0124x80;"
            await socket.send(b"\x00fail")
            assert await socket.receive() == b"\x01fail"
            await socket.send(b"\xff\x00")
            told = by_channel(await socket.receive_all())
    assert json.loads(told[3])["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert page.local.opened == [("c1", ("sh", "-c", "a b"), True, True)]
    line = next(line for line in logs if line["event"] == "ui.exec")
    assert (line["pod"], line["containerName"]) == ("default/web-node1", "web")
    assert line["command"] == "sh -c 'a b'"
    assert owner["X-Kubelet-Trio-Key"] not in str(logs)


async def test_a_terminal_ends_when_its_owner_signs_out(autojump_clock: MockClock) -> None:
    page = Page()
    owner = await page.owner()
    async with terminal(page, owner) as socket:
        assert await socket.receive() == b"\x01"
        await page.ask("POST", "/ui/logout", owner)
        await page.local.left.wait()


class Heard(Command):
    """Keeps what was typed, and goes on until its client leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.typed = b""
        self.began = trio.Event()

    async def send_stdin(self, content: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.typed += content
        self.began.set()


@pytest.mark.parametrize("leaves", ["closes", "signs out"])
async def test_a_runtime_that_lets_commands_run_on_is_asked_to_end_them(leaves: str) -> None:
    page, behind, heard = Page(), Node(), Heard()
    page.view.fake_runtime.local_streams = None
    behind.local.make = lambda: heard
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    page.view.fake_runtime.stream_url = f"http://127.0.0.1:{port}{TTY}"
    async with trio.open_nursery() as nursery:
        serve = lambda stream: serve_connection(stream, behind._router)  # noqa: E731
        await nursery.start(trio.serve_listeners, serve, listeners)
        owner = await page.owner()
        with trio.fail_after(60):
            async with terminal(page, owner) as socket:
                await socket.send(b"\x00top")
                await heard.began.wait()
                if leaves == "closes":
                    await socket.close()
                else:
                    await page.ask("POST", "/ui/logout", owner)
                await behind.local.left.wait()
        nursery.cancel_scope.cancel()
    # Ctrl-C for what runs, Ctrl-D for its shell.
    assert heard.typed == b"top\x03\x03\x04\x04"


async def test_a_terminal_that_is_closed_or_idle_ends_its_command(
    autojump_clock: MockClock,
) -> None:
    page = Page()
    owner = await page.owner()
    async with terminal(page, owner) as socket:
        assert await socket.receive() == b"\x01"
        await socket.close()
        await page.local.left.wait()
    page.local.left = trio.Event()
    async with terminal(page, owner) as socket:
        began = trio.current_time()
        assert await socket.receive() == b"\x01"
        await page.local.left.wait()
        # The deadline moves once a second, not with each byte.
        assert IDLE_SECONDS <= trio.current_time() - began <= IDLE_SECONDS + 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/ui/exec/default/web-node1/other?command=sh", 'container not found ("other")'),
        ("/ui/exec/default/gone/web?command=sh", "pod does not exist"),
    ],
)
async def test_what_cannot_run_is_told_in_the_websocket(
    autojump_clock: MockClock, path: str, told: str
) -> None:
    page = Page()
    async with terminal(page, await page.owner(), path) as socket:
        outcome = by_channel(await socket.receive_all())[3]
    assert told in json.loads(outcome)["message"]


async def test_one_terminal_too_many_is_told(autojump_clock: MockClock) -> None:
    page = Page()
    owner = await page.owner()
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(_keep_open, page, owner)
        await trio.testing.wait_all_tasks_blocked()
        async with terminal(page, owner) as socket:
            outcome = by_channel(await socket.receive_all())[3]
        nursery.cancel_scope.cancel()
    assert "8 terminals" in json.loads(outcome)["message"]


async def _keep_open(page: Page, owner: dict[str, str]) -> None:
    async with terminal(page, owner):
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("path", "protocols"),
    [
        (EXEC, ("v4.channel.k8s.io",)),  # would go to the runtime with the secrets
        ("/ui/exec/default/web-node1/web", (V5,)),
        ("/ui/exec/default/web-node1/web?command=", (V5,)),
    ],
)
async def test_what_is_no_terminal_is_refused(
    autojump_clock: MockClock, path: str, protocols: tuple[str, ...]
) -> None:
    page = Page()
    answer = await page.ask("GET", path, as_websocket(await page.owner(), *protocols))
    assert answer.status == 400
    assert page.local.opened == []


async def test_spdy_is_no_terminal(autojump_clock: MockClock) -> None:
    page = Page()
    owner = await page.owner()
    headers = {**as_websocket(owner), "Upgrade": "SPDY/3.1"}
    assert (await page.ask("GET", EXEC, headers)).status == 400
