"""The control socket: a real unix socket, lists, watches, logs, and one agent a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from kubelet_trio.containers.logs.cri_log import format_line
from kubelet_trio.model import Event, pod_ref
from kubelet_trio.server import (
    SOCKET_NAME,
    SocketInUseError,
    control_router,
    open_unix,
    root_lock,
    serve_http,
)
from tests.server.fake_view import FakeView, make_pod


@asynccontextmanager
async def control(view: FakeView, path: Path) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, control_router(view), [open_unix(path / SOCKET_NAME)])
        yield
        nursery.cancel_scope.cancel()


async def ask(path: Path, target: str) -> tuple[int, bytes]:
    """Return the status and body of one answer; HTTP/1.0 has no chunks to undo."""
    async with await trio.open_unix_socket(path / SOCKET_NAME) as stream:
        await stream.send_all(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        answer = b"".join([bytes(piece) async for piece in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def get(path: Path, target: str) -> Any:
    status, body = await ask(path, target)
    assert status == 200, body
    return msgspec.json.decode(body)


@asynccontextmanager
async def watching(path: Path, target: str) -> AsyncIterator[AsyncIterator[Any]]:
    async def lines(stream: trio.SocketStream) -> AsyncGenerator[Any, None]:
        rest = b""
        async for piece in stream:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if line.startswith(b"{"):
                    yield msgspec.json.decode(line)

    async with await trio.open_unix_socket(path / SOCKET_NAME) as stream:
        await stream.send_all(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        async with aclosing(lines(stream)) as changes:
            yield changes


async def test_the_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    async with control(FakeView(), tmp_path):
        mode = (tmp_path / SOCKET_NAME).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_a_socket_that_a_dead_agent_left_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        async with control(FakeView(), tmp_path):
            assert (await get(tmp_path, "/version"))["kubernetes"] == "v1.36.2"


async def test_a_socket_works_below_a_path_that_is_too_long_for_one(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    listener = open_unix(deep / SOCKET_NAME)
    assert (deep / SOCKET_NAME).is_socket()
    await listener.aclose()


def test_a_second_agent_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "kubelet-trio.lock"
    with root_lock(lock):
        with pytest.raises(SocketInUseError, match=rf"another kubelet-trio \(pid {os.getpid()}\)"):
            with root_lock(lock):
                pass
    with root_lock(lock):  # and the lock of one that is gone holds nobody up
        pass


async def test_pods_are_listed_and_found_with_or_without_the_node(tmp_path: Path) -> None:
    view = FakeView(make_pod(), make_pod("dns", uid="u2", namespace="kube-system"))
    async with control(view, tmp_path):
        pods = await get(tmp_path, "/pods")
        assert pods["kind"] == "PodList"
        assert [p["metadata"]["uid"] for p in pods["items"]] == ["u1", "u2"]
        assert len((await get(tmp_path, "/pods?namespace=kube-system"))["items"]) == 1
        for name in ("web-node1", "web"):
            pod = await get(tmp_path, f"/pods/default/{name}")
            assert pod["metadata"]["uid"] == "u1"
            assert pod["status"]["startTime"] == "2026-01-02T15:04:05Z"
        assert await ask(tmp_path, "/pods/default/none") == (404, b'pods "none" not found\n')


async def test_of_two_pods_of_one_name_the_one_that_stays_is_meant(tmp_path: Path) -> None:
    leaving = make_pod(
        uid="old",
        metadata={
            "name": "web-node1",
            "namespace": "default",
            "uid": "old",
            "deletionTimestamp": "2026-01-02T15:04:05Z",
        },
    )
    async with control(FakeView(leaving, make_pod(uid="new")), tmp_path):
        assert (await get(tmp_path, "/pods/default/web"))["metadata"]["uid"] == "new"


async def test_a_watch_tells_what_is_there_and_then_every_change(tmp_path: Path) -> None:
    view = FakeView(make_pod())
    async with control(view, tmp_path), watching(tmp_path, "/pods?watch=1") as changes:
        with trio.fail_after(5):
            assert (await anext(changes))["type"] == "ADDED"
            assert (await anext(changes))["type"] == "BOOKMARK"
            view.put(make_pod("b", uid="u2"))
            added = await anext(changes)
            assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "b")
            view.put(make_pod("b", uid="u2", status={"phase": "Failed"}))
            assert (await anext(changes))["object"]["status"]["phase"] == "Failed"
            view.drop("u1")
            gone = await anext(changes)
            assert (gone["type"], gone["object"]["metadata"]["uid"]) == ("DELETED", "u1")


async def test_a_watch_of_one_namespace_is_quiet_about_the_others(tmp_path: Path) -> None:
    view = FakeView(make_pod())
    async with control(view, tmp_path):
        async with watching(tmp_path, "/pods?watch=1&namespace=other") as changes:
            with trio.fail_after(5):
                assert (await anext(changes))["type"] == "BOOKMARK"
                view.put(make_pod("c", uid="u3"), make_pod("d", uid="u4", namespace="other"))
                assert (await anext(changes))["object"]["metadata"]["name"] == "d"


async def test_events_are_listed_chosen_and_watched(tmp_path: Path) -> None:
    view = FakeView()
    web = pod_ref("default", "web-node1", "u1")
    view.events.fold(Event(web, "Normal", "Pulled", "Image is there", 1.0))
    view.events.fold(Event(pod_ref("default", "b", "u2"), "Normal", "Pulled", "m", 2.0))
    async with control(view, tmp_path):
        assert (await get(tmp_path, "/events"))["kind"] == "EventList"
        [event] = (await get(tmp_path, "/events?name=web-node1&kind=Pod"))["items"]
        assert event["reason"] == "Pulled"
        async with watching(tmp_path, "/events?watch=1&name=web-node1") as changes:
            with trio.fail_after(5):
                assert (await anext(changes))["type"] == "ADDED"
                assert (await anext(changes))["type"] == "BOOKMARK"
                view.events.fold(Event(web, "Normal", "Pulled", "Image is there", 9.0))
                again = await anext(changes)
                assert (again["type"], again["object"]["count"]) == ("MODIFIED", 2)


async def test_tree_and_status_are_told(tmp_path: Path) -> None:
    async with control(FakeView(), tmp_path):
        tree = await get(tmp_path, "/tree")
        assert tree["children"][0]["state"] == "running"
        _, text = await ask(tmp_path, "/tree?format=text")
        assert "└── health" in text.decode()
        status = await get(tmp_path, "/status")
        assert status["checks"] == {"syncloop": None, "runtime": "connection refused"}
        assert status["sources"][0]["problems"][0]["where"] == "web.yaml"
        assert (await ask(tmp_path, "/nope"))[0] == 404


def log_line(number: int, text: str) -> bytes:
    return format_line(f"2026-01-02T15:04:{number:02d}.000000000Z", "stdout", text.encode())


@pytest.fixture
def logging_view(tmp_path: Path) -> FakeView:
    view = FakeView(make_pod())
    view.logs["c1"] = tmp_path / "logs" / "0.log"
    view.logs["c1"].parent.mkdir()
    view.logs["c1"].write_bytes(b"".join(log_line(n, f"line {n}") for n in range(5)))
    return view


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "".join(f"line {n}\n" for n in range(5))),
        ("?tailLines=2", "line 3\nline 4\n"),
        ("?tailLines=0", ""),
        ("?limitBytes=8", "line 0\nl"),
        ("?sinceTime=2026-01-02T15:04:03Z", "line 3\nline 4\n"),
        ("?sinceSeconds=1", ""),
        ("?tailLines=1&timestamps=1", "2026-01-02T15:04:04.000000000Z line 4\n"),
    ],
)
async def test_a_log_is_read_as_asked(
    tmp_path: Path, logging_view: FakeView, query: str, expected: str
) -> None:
    async with control(logging_view, tmp_path):
        assert await ask(tmp_path, f"/logs/default/web/web{query}") == (200, expected.encode())


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/logs/default/none/web", 404, 'pods "none" not found'),
        ("/logs/default/web/x", 400, 'container "x" in pod "web-node1" is not available'),
        (
            "/logs/default/web/web?previous=1",
            400,
            'previous terminated container "web" in pod "web-node1" not found',
        ),
        ("/logs/default/web/web?tailLines=x", 400, "tailLines: not a number"),
        ("/logs/default/web/web?tailLines=-1", 400, "tailLines: must not be negative"),
        ("/logs/default/web/web?sinceTime=now", 400, "sinceTime: "),
    ],
)
async def test_a_log_that_cannot_be_read_says_why(
    tmp_path: Path, logging_view: FakeView, target: str, status: int, message: str
) -> None:
    async with control(logging_view, tmp_path):
        answered, body = await ask(tmp_path, target)
    assert (answered, message in body.decode()) == (status, True)


async def test_a_log_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    async with control(FakeView(make_pod()), tmp_path):
        assert (await ask(tmp_path, "/logs/default/web/web"))[0] == 400


async def test_a_followed_log_grows_until_its_container_ends(
    tmp_path: Path, logging_view: FakeView
) -> None:
    logging_view.running.add("c1")
    async with control(logging_view, tmp_path):
        async with await trio.open_unix_socket(tmp_path / SOCKET_NAME) as stream:
            with trio.fail_after(10):
                await stream.send_all(b"GET /logs/default/web/web?follow=1 HTTP/1.0\r\n\r\n")
                read = b""
                while b"line 4" not in read:
                    read += await stream.receive_some()
                with logging_view.logs["c1"].open("ab") as log:
                    log.write(log_line(5, "line 5"))
                while b"line 5" not in read:
                    read += await stream.receive_some()
                logging_view.running.clear()
                with logging_view.logs["c1"].open("ab") as log:
                    log.write(log_line(6, "the last"))
                read += b"".join([bytes(piece) async for piece in stream])
    assert read.endswith(b"line 5\nthe last\n")
