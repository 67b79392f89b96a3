"""The node page's routes: what it tells, what it withholds, and to which `Host`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubelet_trio.containers.logs.cri_log import format_line
from kubelet_trio.model import Event, pod_ref
from kubelet_trio.server import Handler, HttpError, Request, loopback_only, node_page_router
from kubelet_trio.server.routes.fleet_page import _FILES as FLEET_FILES
from kubelet_trio.server.routes.node_page import _DIRECTORY, _FILES, is_loopback_host
from tests.server.fake_view import FakeView, make_pod

SUMMARY = b'{"node":{"nodeName":"node1"},"pods":[]}'


def page_of(view: FakeView) -> Handler:
    async def summary() -> bytes:
        return SUMMARY

    async def history(uid: str) -> bytes:
        return msgspec.json.encode({"times": [], "asked": uid})

    return node_page_router(view, summary, history, lambda: 1_700_000_060.0, 2)


async def get(handler: Handler, path: str, **headers: str) -> tuple[str, bytes]:
    response = await handler(Request("GET", path, headers=headers))
    sent = dict(response.headers)
    assert sent["X-Content-Type-Options"] == "nosniff"
    assert sent["Content-Security-Policy"].startswith("default-src 'none';")
    return response.content_type, response.body


async def data_of(view: FakeView) -> Any:
    _, body = await get(page_of(view), "/ui/data")
    return msgspec.json.decode(body)


@pytest.mark.parametrize(
    ("path", "content_type", "holds"),
    [
        ("/ui/", "text/html; charset=utf-8", b'src="page.js"'),
        ("/ui/base.css", "text/css; charset=utf-8", b"prefers-color-scheme: dark"),
        ("/ui/page.js", "text/javascript; charset=utf-8", b"import"),
    ],
)
async def test_the_page_ships_with_the_package(path: str, content_type: str, holds: bytes) -> None:
    told, body = await get(page_of(FakeView()), path)
    assert told == content_type
    assert holds in body
    assert b"innerHTML" not in body


def test_every_file_of_the_page_is_served_and_none_is_long() -> None:
    there = {path.name for path in _DIRECTORY.iterdir()}
    assert there == _FILES | FLEET_FILES | {"page.html", "fleet.html"}
    for path in _DIRECTORY.iterdir():
        text = path.read_text()
        assert len(text.splitlines()) <= 500, path
        # Texts of the agent never become HTML, and nothing comes from elsewhere.
        assert "innerHTML" not in text
        assert "https:" not in text
        assert "http:" not in text.replace("http://www.w3.org/2000/svg", ""), path


async def test_the_bare_path_leads_to_the_page_relatively() -> None:
    response = await page_of(FakeView())(Request("GET", "/ui"))
    assert (response.status, dict(response.headers)["Location"]) == (302, "ui/")


@pytest.mark.parametrize(
    "path", ["/ui/other", "/ui/../page.js", "/ui/page.html", "/ui/data/x", "/pods", "/"]
)
async def test_there_is_nothing_else(path: str) -> None:
    with pytest.raises(HttpError) as told:
        await page_of(FakeView())(Request("GET", path))
    assert told.value.status == 404


async def test_nothing_can_be_changed() -> None:
    for method in ("POST", "PUT", "DELETE"):
        with pytest.raises(HttpError) as told:
            await page_of(FakeView())(Request(method, "/ui/data"))
        assert told.value.status == 405


async def test_pods_are_told_without_their_environment() -> None:
    view = FakeView(
        make_pod(
            spec={
                "containers": [
                    {"name": "web", "image": "nginx", "env": [{"name": "PASSWORD", "value": "S3S"}]}
                ]
            }
        )
    )
    data = await data_of(view)
    (pod,) = data["pods"]
    assert "S3S" not in str(data)
    assert (pod["namespace"], pod["name"], pod["phase"]) == ("default", "web-node1", "Running")
    assert pod["isReady"]
    assert pod["containers"] == [
        {
            "kind": "main",
            "name": "web",
            "image": "nginx",
            "isReady": True,
            "restarts": 0,
            "state": {"state": "running", "since": "2026-01-02T15:04:06Z"},
            "last": None,
        }
    ]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            {"terminated": {"exitCode": 3, "reason": "Error", "message": "<b>"}},
            {
                "state": "terminated",
                "since": None,
                "reason": "Error",
                "message": "<b>",
                "exitCode": 3,
            },
        ),
        (
            {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            {"state": "waiting", "reason": "CrashLoopBackOff", "message": "back-off"},
        ),
        (None, {"state": "waiting"}),
    ],
)
async def test_states_of_containers(state: Any, told: Any) -> None:
    status = {"name": "a", "image": "i", "imageID": "", "ready": False, "restartCount": 2}
    for kind, field in (
        ("init", "initContainerStatuses"),
        ("main", "containerStatuses"),
        ("ephemeral", "ephemeralContainerStatuses"),
    ):
        shown = make_pod(status={"phase": "Pending", field: [{**status, "state": state}]})
        (pod,) = (await data_of(FakeView(shown)))["pods"]
        (container,) = pod["containers"]
        assert (container["kind"], container["restarts"]) == (kind, 2)
        assert container["state"] == told


async def test_the_rest_of_the_node_is_told() -> None:
    view = FakeView()
    for number in range(300):
        ref = pod_ref("default", f"web{number}", "u1")
        view.events.fold(Event(ref, "Normal", "Started", "it runs", float(number)))
    data = await data_of(view)
    assert data["now"] == 1_700_000_060.0
    assert data["node"]["name"] == "node1"
    assert data["node"]["checks"] == {"syncloop": None, "runtime": "connection refused"}
    assert data["stats"] == msgspec.json.decode(SUMMARY)
    assert data["tree"]["children"][0]["last_error"] == "Boom"
    # The newest, newest first.
    assert len(data["events"]) == 200
    assert data["events"][0]["object"] == "Pod/default/web299"


@pytest.mark.parametrize(("query", "uid"), [((), ""), ((("pod", "u1"),), "u1")])
async def test_the_history_is_of_the_node_or_of_a_pod(query: Any, uid: str) -> None:
    response = await page_of(FakeView())(Request("GET", "/ui/history", query))
    assert msgspec.json.decode(response.body)["asked"] == uid
    assert response.content_type == "application/json"


async def test_a_log_is_sent_as_plain_text(tmp_path: Path) -> None:
    view = FakeView(make_pod())
    view.logs["c1"] = tmp_path / "0.log"
    view.logs["c1"].write_bytes(
        format_line("2026-01-02T15:04:05.000000000Z", "stdout", b"<script>")
    )
    request = Request("GET", "/ui/logs/default/web/web")
    response = await page_of(view)(request)
    assert response.content_type == "text/plain; charset=utf-8"
    assert dict(response.headers)["X-Content-Type-Options"] == "nosniff"
    pieces = []

    async def send(piece: bytes) -> None:
        pieces.append(piece)

    assert response.stream is not None
    await response.stream(send)
    assert b"".join(pieces) == b"<script>\n"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("LocalHost:8080", True),
        ("127.0.0.1:4194", True),
        ("[::1]", True),
        ("[::1]:4194", True),
        ("", False),
        (":80", False),
        ("evil.example", False),
        ("evil.example:4194", False),
        ("localhost.evil.example:4194", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:80:localhost", False),
        ("localhost:", False),
        ("localhost:8x", False),
        ("localhost:8080@evil.example", False),
        ("0.0.0.0:4194", False),
        ("::1", False),
        ("[::1", False),
    ],
)
async def test_only_loopback_names_are_served(host: str, allowed: bool) -> None:
    assert is_loopback_host(host) is allowed
    handler = loopback_only(page_of(FakeView()))
    if allowed:
        await get(handler, "/ui/data", host=host)
        return
    with pytest.raises(HttpError) as told:
        await handler(Request("GET", "/ui/data", headers={"host": host}))
    assert told.value.status == 403


async def test_no_host_at_all_is_refused() -> None:
    with pytest.raises(HttpError):
        await loopback_only(page_of(FakeView()))(Request("GET", "/ui/"))
