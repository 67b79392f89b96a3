"""Queries of the node's logs: what is asked, what journalctl is told, and what comes of it."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.model import inline_offload
from kubelet_trio.server import ApiOptions, HttpError, Request, Response
from kubelet_trio.server.logs import node_query
from kubelet_trio.server.logs.node_query import (
    NodeLogQuery,
    check_log_query,
    journal_arguments,
    log_query_response,
    read_log_query,
)
from kubelet_trio.server.logs.system import send_system_log
from tests.server.node_view import FakeKubeletApiView
from tests.server.routes.test_kubelet import Api

Arguments = tuple[tuple[str, str], ...]
ALWAYS = ["--utc", "--no-pager", "--output=short-precise"]


def checked(arguments: Arguments) -> NodeLogQuery | None:
    query = read_log_query(arguments)
    if query is not None:
        check_log_query(query)
    return query


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((("query", "kubelet"),), ["--unit=kubelet"]),
        ((("query", "a@b-c_D"), ("query", "x")), ["--unit=a@b-c_D", "--unit=x"]),
        ((("query", "k"), ("boot", "-1")), ["--unit=k", "--boot=-1"]),
        ((("query", "k"), ("boot", "0")), ["--unit=k", "--boot=0"]),
        ((("query", "k"), ("tailLines", "7")), ["--pager-end", "--lines=7", "--unit=k"]),
        (
            (("query", "k"), ("pattern", "a --b; $(c)")),
            ["--unit=k", "--grep=a --b; $(c)", "--case-sensitive=false"],
        ),
        (
            (
                ("query", "k"),
                ("sinceTime", "2026-01-02T15:04:05+01:00"),
                ("untilTime", "2026-01-02T15:04:05Z"),
            ),
            ["--since=2026-01-02 14:04:05 UTC", "--until=2026-01-02 15:04:05 UTC", "--unit=k"],
        ),
    ],
)
def test_what_journalctl_is_told(arguments: Arguments, told: list[str]) -> None:
    query = checked(arguments)
    assert query is not None
    assert journal_arguments(query, query.services) == ALWAYS + told


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ((("query", ""),), 400, "query cannot be empty"),
        ((("query", "  "),), 400, 'query: Invalid value: []string{"  "}: query cannot be empty'),
        ((("query", "k"), ("sinceTime", "now")), 400, "sinceTime: Invalid value"),
        ((("query", "k"), ("untilTime", "2026-01-02T15:04:05")), 400, "invalid time format"),
        ((("query", "k"), ("boot", "x"), ("tailLines", "y")), 400, "[tailLines: Invalid value"),
        ((("tailLines", "5"),), 406, "query: Required value: cannot be empty with options"),
        ((("query", "a b"),), 406, "input contains unsupported characters"),
        ((("query", "--flush"), ("query", "a;b")), 406, "unsupported characters"),
        ((("query", "k" * 257),), 406, "length must be less than 100"),
        ((("query", "k"),) * 5, 406, "query: Too many: 5: must have at most 4 items"),
        ((("query", "/a"), ("query", "k")), 406, "cannot specify a file and service"),
        ((("query", "/a"), ("query", "/b")), 406, "cannot specify more than one file"),
        ((("query", "/a"), ("boot", "0")), 406, "cannot specify file with options"),
        ((("query", "k"), ("boot", "1")), 406, "boot: Invalid value: 1: must be less than 1"),
        ((("query", "k"), ("tailLines", "-1")), 406, "must be between 0 and 100000, inclusive"),
        ((("query", "k"), ("tailLines", "100001")), 406, "must be between 0 and 100000"),
        ((("query", "k"), ("pattern", "(")), 406, "pattern: Invalid value"),
        ((("query", "k"), ("pattern", "a\0b")), 406, "must not contain NUL"),
        (
            (
                ("query", "k"),
                ("sinceTime", "2026-01-02T15:04:05Z"),
                ("untilTime", "2026-01-01T15:04:05Z"),
            ),
            406,
            "must be after `sinceTime`",
        ),
    ],
)
def test_what_is_refused(arguments: Arguments, status: int, told: str) -> None:
    with pytest.raises(HttpError) as caught:
        checked(arguments)
    assert caught.value.status == status
    assert told in str(caught.value)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["query", "sinceTime", "untilTime", "tailLines", "boot", "pattern"]),
            st.text(max_size=12),
        ),
        max_size=5,
    )
)
def test_every_argument_is_one_of_ours(arguments: list[tuple[str, str]]) -> None:
    query = None
    with suppress(HttpError):
        query = checked(tuple(arguments))
    if query is None:
        return
    ours = ("utc", "no-pager", "output=", "since=", "until=", "pager-end", "lines=", "unit=")
    for argument in journal_arguments(query, query.services):
        assert argument.startswith(tuple(f"--{n}" for n in (*ours, "grep=", "case-s", "boot=")))
        assert "\0" not in argument


def test_nothing_asked_is_no_query() -> None:
    assert read_log_query(()) is None
    assert read_log_query((("other", "x"),)) is None


def journal(base: Path, script: str) -> str:
    """Return a program that stands for journalctl and knows the unit `known`."""
    program = base / "journal"
    units = 'if [ "$1" = --field ]; then echo known.service; exit; fi'
    program.write_text(f"#!/bin/sh\n{units}\n{script}\n")
    program.chmod(0o755)
    return str(program)


async def sent(response: Response) -> bytes:
    told = bytearray()

    async def send(data: bytes) -> None:
        told.extend(data)

    assert response.stream is not None
    await response.stream(send)
    return bytes(told)


def ask(base: Path, services: Sequence[str], program: str, **more: object) -> Response:
    logs = base / "log"
    logs.mkdir(exist_ok=True)
    query = NodeLogQuery(tuple(services), **more)  # type: ignore[arg-type]
    send_file = partial(send_system_log, [logs], inline_offload)
    return log_query_response(query, Request("GET", "/logs/"), send_file, program)


async def test_the_journal_tells_of_the_services_that_it_knows(tmp_path: Path) -> None:
    program = journal(tmp_path, 'echo "$@"; echo trouble >&2; exit 1')
    told = await sent(ask(tmp_path, ["known"], program, tail=3))
    assert told.decode() == (
        "--utc --no-pager --output=short-precise --pager-end --lines=3 --unit=known\ntrouble\n"
    )


@pytest.mark.parametrize("name", ["web", "web.log", "web/web.log"])
async def test_others_are_looked_for_in_files(tmp_path: Path, name: str) -> None:
    program = journal(tmp_path, "echo never")
    response = ask(tmp_path, ["web", "none"], program)
    file = tmp_path / "log" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("from a file\n")
    assert await sent(response) == b"from a file\n\nlog not found for none\n"


async def test_files_know_no_options(tmp_path: Path) -> None:
    told = await sent(ask(tmp_path, ["web", "app"], journal(tmp_path, "true"), boot=0))
    assert told.decode() == (
        "\noptions present and query resolved to log files for [web app]\n"
        "try without specifying options\n"
    )


async def test_without_a_journal_there_are_files_only(tmp_path: Path) -> None:
    told = await sent(ask(tmp_path, ["known"], str(tmp_path / "none")))
    assert told == b"\nlog not found for known\n"


async def test_a_journal_that_nobody_reads_is_ended(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"echo $$ >{told}.new; mv {told}.new {told}; exec sleep 1000"
    response = ask(tmp_path, ["known"], journal(tmp_path, script))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sent, response)
        with trio.fail_after(60):
            while not told.exists():  # noqa: ASYNC110  # another process writes it
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert not Path(f"/proc/{int(told.read_text())}").exists()


async def test_a_query_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_query, "LIMIT", 0.05)
    with trio.fail_after(60):
        await sent(ask(tmp_path, ["known"], journal(tmp_path, "exec sleep 1000")))


async def test_an_answer_is_packed_for_who_asks_for_it(tmp_path: Path) -> None:
    query = NodeLogQuery(("known",))
    request = Request("GET", "/logs/", headers={"accept-encoding": "gzip"})
    send_file = partial(send_system_log, [tmp_path], inline_offload)
    program = journal(tmp_path, "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done")
    response = log_query_response(query, request, send_file, program)
    assert ("Content-Encoding", "gzip") in response.headers
    lines = gzip.decompress(await sent(response)).decode().splitlines()
    assert lines == [f"line {i}" for i in range(500)]


async def test_queries_are_answered_where_they_are_switched_on(tmp_path: Path) -> None:
    (tmp_path / "web.log").write_text("line\n")
    api = Api(FakeKubeletApiView(root_dir=tmp_path), ApiOptions(enable_system_log_query=True))
    for file in ("/web.log", "\\web.log"):
        assert await api.ask("/logs/", arguments=(("query", file),)) == (200, b"line\n")
    assert await api.ask("/logs/web.log") == (200, b"line\n")
    assert (await api.ask("/logs/", arguments=(("query", "/../x"),)))[0] == 400
    status, told = await api.ask("/logs/web.log", arguments=(("query", "web"),))
    assert (status, told) == (406, b"path not allowed in query mode\n")
    # Switched off a query is none, as upstream.
    plain = Api(FakeKubeletApiView(root_dir=tmp_path))
    assert await plain.ask("/logs/web.log", arguments=(("query", "x"),)) == (200, b"line\n")
