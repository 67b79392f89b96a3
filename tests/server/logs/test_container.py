"""Logs of containers over HTTP, while the container writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.containers import LogOptions
from kubelet_trio.containers.logs.cri_log import format_line
from kubelet_trio.model import inline_offload
from kubelet_trio.server.logs.container import log_response
from tests.server.fake_view import FakeView, make_pod

P = ParamSpec("P")
T = TypeVar("T")


@pytest.mark.parametrize(("tail", "expected"), [(0, b""), (1, b"2\n"), (2, b"1\n2\n")])
async def test_a_container_that_writes_adds_nothing_to_its_last_lines(
    tmp_path: Path, autojump_clock: MockClock, tail: int, expected: bytes
) -> None:
    pod, path, answered = make_pod(), tmp_path / "0.log", list[bytes]()
    view = FakeView(pod)
    view.logs["c1"] = path

    def write(text: str) -> None:
        with path.open("ab") as file:
            file.write(format_line("2026-01-02T15:04:05Z", "stdout", text.encode()))

    async def busy(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        result = await inline_offload(fn, *args, **kwargs)
        if fn.__name__ != "exists":
            write("later")  # between any two reads
        return result

    async def send(data: bytes) -> None:
        answered.append(data)

    for number in range(3):
        write(str(number))
    response = await log_response(
        view, pod, "web", LogOptions(tail=tail), previous=False, follow=False, offload=busy
    )
    assert response.stream is not None
    with trio.fail_after(60):
        await response.stream(send)
    assert b"".join(answered) == expected
