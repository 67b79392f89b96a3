"""`kubelet-trio fleet`: the nodes that it takes, and how it asks them."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest
import trio
from click.testing import CliRunner

from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.fleet import Fleet, FleetNode, parse_node, serve_fleet
from kubelet_trio.cli.main import cli
from kubelet_trio.server import Request, Response, open_tcp, open_unix, serve_http
from tests.server.routes.test_fleet_page import DATA


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("a=unix:/var/lib/kubelet", FleetNode("a", "/var/lib/kubelet/kubelet-trio.sock")),
        ("a=unix:/x/", FleetNode("a", "/x/kubelet-trio.sock")),
        ("a=unix:/x/y.sock", FleetNode("a", "/x/y.sock")),
        ("b=http://localhost:4194", FleetNode("b", host="localhost", port=4194)),
        ("b=http://127.0.0.1:1/ui/", FleetNode("b", host="127.0.0.1", port=1)),
        ("b=http://[::1]:1", FleetNode("b", host="[::1]", port=1)),
    ],
)
def test_nodes_are_read(text: str, node: FleetNode) -> None:
    assert parse_node(text) == node


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a",
            "a=",
            "=unix:/x",
            "a=unix:relative",
            "a=http://localhost",
            "a=ftp://localhost:1",
        ),
        *("a=http://evil.example:80", "a=https://localhost:1", "a=http://localhost:70000"),
        *("a=http://user@localhost:1", "a=http://localhost.evil:1"),
    ],
)
def test_what_is_no_node_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_node(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nonsense"], "expected NAME="), (["a=unix:/x", "a=unix:/y"], "'a' names two nodes")],
)
def test_bad_arguments_are_errors_of_usage(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["fleet", *arguments])
    assert result.exit_code == 2
    assert words in result.output


async def _page(request: Request) -> Response:
    assert request.path == "/ui/data"
    return Response(body=msgspec.json.encode(DATA), content_type="application/json")


async def test_all_nodes_are_asked_and_those_that_fail_say_why(tmp_path: Path) -> None:
    path = tmp_path / "kubelet-trio.sock"
    listeners = await open_tcp("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    nodes = [
        parse_node(f"tcp=http://127.0.0.1:{port}"),
        parse_node(f"unix=unix:{tmp_path}"),
        parse_node(f"gone=unix:{tmp_path / 'none'}"),
    ]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http, _page, listeners)
            nursery.start_soon(serve_http, _page, [open_unix(path)])
            tcp, unix, gone = await Fleet(nodes).told()
            nursery.cancel_scope.cancel()
    assert (tcp["name"], tcp["error"], tcp["link"]) == ("tcp", "", f"http://127.0.0.1:{port}/ui/")
    assert (unix["name"], unix["version"]) == ("unix", "1")
    assert gone["error"] == f"{tmp_path}/none/kubelet-trio.sock: No such file or directory"
    assert gone["pods"] == []


async def test_an_agent_without_a_page_is_told_of(tmp_path: Path) -> None:
    async def old(_: Request) -> Response:
        return Response(404, body=b"404 page not found")

    path = tmp_path / "kubelet-trio.sock"
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_http, old, [open_unix(path)])
            (told,) = await Fleet([parse_node(f"old=unix:{tmp_path}")]).told()
            nursery.cancel_scope.cancel()
    assert "HTTP 404: 404 page not found; is the agent too old?" in told["error"]


async def test_a_busy_port_is_an_error_with_its_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClientError, match=f"{port}: .* in use; choose another --port"):
            await serve_fleet([], port)
