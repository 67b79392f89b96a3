"""The node page's actions on real containers: the same as with the embedded runtime."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, container_status, eventually, pod
from tests.harness.ports import free_port
from tests.harness.websocket import ChannelSocket

V5 = "v5.channel.k8s.io"


@dataclass(frozen=True, slots=True)
class Owner:
    """A page that is signed in."""

    agent: Agent
    port: int
    cookie: str
    key: str

    def headers(self) -> dict[str, str]:
        return {"Origin": f"http://127.0.0.1:{self.port}", "Cookie": self.cookie}

    def terminal(self, *command: str) -> ChannelSocket:
        query = "&".join(f"command={word}" for word in command)
        return ChannelSocket(
            self.port,
            f"/ui/exec/default/web-node/main?{query}",
            None,
            protocol=f"{V5}, key.kubelet-trio.{self.key}",
            headers=self.headers(),
        )

    def ask(self, path: str) -> Any:
        headers = {**self.headers(), "X-Kubelet-Trio-Key": self.key}
        return post(self.port, path, headers)[0]


def post(port: int, path: str, headers: dict[str, str], body: str = "") -> tuple[Any, str]:
    """Return the JSON of an answer, and its cookie."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", f"/ui/{path}", body, headers)
        answer = connection.getresponse()
        told = answer.read()
    assert answer.status == 200, told
    return json.loads(told), answer.headers.get("Set-Cookie", "").partition(";")[0]


@pytest.fixture(scope="module")
def make_owner(make_agent: MakeAgent) -> Callable[[], Owner]:
    """Return what signs in, by what `kubelet-trio ui` prints."""
    port = free_port()
    agent = make_agent(arguments=("--ui-port", str(port), "--ui-actions"))
    agent.start()
    agent.put(pod("web"))
    agent.wait_ready("web")

    def make() -> Owner:
        url, _, token = agent.cli("ui", "--no-open").strip().rpartition("/")
        assert url == f"http://127.0.0.1:{port}/ui/#/login"
        headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
        told, cookie = post(port, "login", headers, json.dumps({"token": token}))
        return Owner(agent, port, cookie, told["key"])

    return make


@pytest.fixture(scope="module")
def owner(make_owner: Callable[[], Owner]) -> Owner:
    return make_owner()


def test_a_terminal_has_a_kind_a_size_and_an_exit_code(owner: Owner) -> None:
    with owner.terminal("sh") as terminal:
        terminal.send(4, b'{"Width":101,"Height":33}')
        terminal.send(0, b"echo $TERM-$((6*7)); stty size\n")
        terminal.receive_until(1, b"xterm-42\r\n")

        def has_size() -> bool:
            # Not in the echo of what is typed.
            terminal.send(0, b"stty size; echo $((6*7))-asked\n")
            return b"33 101" in terminal.receive_until(1, b"42-asked\r\n")

        # The runtime may set it after the first command.
        eventually(has_size)
        terminal.send(0, b"exit 3\n")
        outcome = json.loads(terminal.receive_all()[3])
    assert outcome["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


def test_what_cannot_run_says_so(owner: Owner) -> None:
    with owner.terminal("no-such-program") as terminal:
        assert b"no-such-program" in terminal.receive_all()[3]


@pytest.mark.parametrize("running", ["", "sleep 100000\n"], ids=["idle", "busy"])
def test_closing_a_terminal_ends_its_shell(owner: Owner, running: str) -> None:
    mark = uuid.uuid4().hex
    with owner.terminal("sh", "-s", mark) as terminal:
        terminal.send(0, b"echo up-$((6*7))\n")
        terminal.receive_until(1, b"up-42\r\n")
        terminal.send(0, running.encode())
        eventually(lambda: _runs(mark))
    eventually(lambda: not _runs(mark))


def test_signing_out_ends_its_shell(make_owner: Callable[[], Owner]) -> None:
    owner, mark = make_owner(), uuid.uuid4().hex
    with owner.terminal("sh", "-s", mark) as terminal:
        terminal.send(0, b"echo up-$((6*7)); sleep 100000\n")
        terminal.receive_until(1, b"up-42\r\n")
        owner.ask("logout")
        eventually(lambda: not _runs(mark))


def test_a_restart_is_done(owner: Owner) -> None:
    before = container_status(owner.agent.pods()["web"], "main")["restartCount"]
    assert owner.ask("restart/default/web-node") == {"containers": ["main"]}
    owner.agent.wait("web", lambda p: container_status(p, "main")["restartCount"] == before + 1)


def _runs(mark: str) -> bool:
    """Whether a shell has this mark as an argument."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                return True
    return False
