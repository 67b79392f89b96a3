"""What `kubelet-trio ui` says of the page, and how it signs in."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.ui import page_url, redirect, show

PORTS = [{"name": "ui", "address": "127.0.0.1:10280", "problem": ""}]


class Agent(AgentClient):
    """An agent that knows its status, and a login or what it says instead."""

    def __init__(self, login: str | ClientError, ports: list[dict[str, str]] = PORTS) -> None:
        super().__init__()
        self.login = login
        self.ports = ports
        self.asked: list[str] = []

    def get(self, *segments: str, **query: str) -> Any:
        assert segments == ("status",)
        return {"ports": self.ports}

    def post(self, *segments: str, **query: str) -> Any:
        self.asked += segments
        if isinstance(self.login, ClientError):
            raise self.login
        return {"token": self.login}


def test_the_pages_address_is_its_url() -> None:
    ports = [{"name": "healthz", "address": "127.0.0.1:10248"}, *PORTS]
    assert page_url({"ports": ports}) == "http://127.0.0.1:10280/ui/"


def test_a_page_that_is_off_names_the_flag() -> None:
    with pytest.raises(ClientError, match="--ui-port"):
        page_url({"ports": []})


def test_a_page_whose_port_is_busy_names_the_problem() -> None:
    problem = "--ui-port 127.0.0.1:80: Address already in use"
    with pytest.raises(ClientError, match="Address already in use"):
        page_url({"ports": [{"name": "ui", "address": "127.0.0.1:80", "problem": problem}]})


def test_where_the_page_has_actions_the_address_signs_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(Agent("a-token"), {}, opens=False)
    told = capsys.readouterr()
    # In the fragment: it is in no request, and so in no log.
    assert told.out == "http://127.0.0.1:10280/ui/#/login/a-token\n"
    assert "once" in told.err


@pytest.mark.parametrize("login", ["", ClientError("404 page not found")])
def test_where_it_has_none_the_address_is_all(
    capsys: pytest.CaptureFixture[str], login: str | ClientError
) -> None:
    show(Agent(login), {}, opens=False)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("http://127.0.0.1:10280/ui/\n", "")


def test_other_trouble_is_told() -> None:
    with pytest.raises(ClientError, match="ended the connection"):
        show(Agent(ClientError("the agent ended the connection")), {}, opens=False)


def test_no_login_is_made_for_a_page_that_is_not_served() -> None:
    agent = Agent("a-token", [])
    with pytest.raises(ClientError):
        show(agent, {}, opens=False)
    assert agent.asked == []


def test_the_browser_gets_a_file_that_only_its_user_reads(tmp_path: Path) -> None:
    """Every user of the machine can read the browser's command line."""
    url = "http://127.0.0.1:10280/ui/#/login/a-token"
    trap = tmp_path / "trap"
    (tmp_path / "kubelet-trio-ui.html").symlink_to(trap)
    umask = os.umask(0)
    try:
        place = redirect(url, {"XDG_RUNTIME_DIR": str(tmp_path)})
    finally:
        os.umask(umask)
    assert "a-token" not in place
    path = Path(place.removeprefix("file://"))
    assert f"url={url}" in path.read_text()
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert not trap.exists()
    assert redirect(url, {"XDG_RUNTIME_DIR": str(tmp_path)}) == place  # again


def test_without_a_directory_of_its_own_nothing_is_opened() -> None:
    assert redirect("http://127.0.0.1:1/ui/#/login/a", {}) == ""
    with pytest.raises(ClientError, match="cannot be written"):
        redirect("http://127.0.0.1:1/ui/#/login/a", {"XDG_RUNTIME_DIR": "/nowhere"})
