"""Both sides of ours, over memory: the four shapes and what may end a call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.grpc import RawMessage as Raw
from kubelet_trio.grpc._status import StreamTerminatedError
from tests.grpc.echo import Echo, echo_wire


async def test_one_request_one_reply() -> None:
    async with echo_wire() as (echo, _, _):
        assert await echo.unary(Raw(b"a")) == b"re:a"
        assert await echo.unary(Raw(b"")) == b"re:"


async def test_one_request_many_replies() -> None:
    async with echo_wire() as (echo, _, _):
        assert await echo.count(Raw(b"3")) == [b"3", b"2", b"1"]
        assert await echo.count(Raw(b"0")) == []


async def test_many_requests_one_reply() -> None:
    async def messages() -> AsyncIterator[Raw]:
        yield Raw(b"a")
        await trio.lowlevel.checkpoint()
        yield Raw(b"b")

    async with echo_wire() as (echo, _, _):
        assert await echo.join([Raw(b"a"), Raw(b"b")]) == b"a,b"
        assert await echo.join(messages()) == b"a,b"
        assert await echo.join([]) == b""


async def test_many_requests_many_replies() -> None:
    async with echo_wire() as (echo, _, _):
        assert await echo.double([Raw(b"a"), Raw(b"b")]) == [b"aa", b"bb"]


async def test_a_stream_is_a_conversation_with_metadata_both_ways() -> None:
    service = Echo()
    async with echo_wire(service) as (echo, _, _):
        metadata: dict[str, str | bytes] = {"x-say": "hi", "x-raw-bin": b"\x01"}
        async with echo.double.open(metadata=metadata) as call:
            assert await call.recv_initial_metadata() == (("x-first", "1"), ("x-bin", b"\xff\x00"))
            for word in (b"a", b"b"):
                await call.send_message(Raw(word))
                assert await call.recv_message() == word * 2
            await call.end()
            assert await call.recv_message() is None
            assert call.trailing_metadata == (("x-last", "2"),)
            assert await call.recv_trailing_metadata() == (("x-last", "2"),)
    assert service.metadata == metadata


async def test_an_error_carries_status_message_and_details() -> None:
    async with echo_wire() as (echo, _, _):
        with pytest.raises(GRPCError) as caught:
            await echo.unary(Raw(b"fail"))
    assert caught.value.status is Status.FAILED_PRECONDITION
    assert caught.value.message == "naïve: 100%\n"
    assert caught.value.details == b"\x00details"


async def test_a_bug_in_a_handler_fails_its_call_only() -> None:
    async with echo_wire() as (echo, _, _):
        with structlog.testing.capture_logs() as logs, pytest.raises(GRPCError) as caught:
            await echo.unary(Raw(b"bug"))
        assert caught.value.status is Status.UNKNOWN
        assert [entry["event"] for entry in logs] == ["grpc.handler_failed"]
        assert await echo.unary(Raw(b"a")) == b"re:a"


async def test_an_unknown_method_is_unimplemented() -> None:
    async with echo_wire() as (echo, _, _):
        with pytest.raises(GRPCError) as caught:
            await echo.missing(Raw(b"a"))
    assert caught.value.status is Status.UNIMPLEMENTED


async def test_the_deadline_ends_the_call_on_both_sides(autojump_clock: MockClock) -> None:
    service = Echo()
    async with echo_wire(service) as (echo, _, _):
        start = trio.current_time()
        with pytest.raises(GRPCError) as caught:
            await echo.unary(Raw(b"hang"), timeout=7)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert trio.current_time() - start == pytest.approx(7)
        await wait_all_tasks_blocked()
        assert service.active == 0
        assert await echo.unary(Raw(b"a")) == b"re:a"


async def test_a_server_keeps_the_deadline_by_itself(autojump_clock: MockClock) -> None:
    service = Echo()
    async with echo_wire(service) as (_, _, channel):
        stream = await channel.open_stream("/test.Echo/join", 3, ())
        await wait_all_tasks_blocked()
        assert service.active == 1
        await trio.sleep(3.1)
        assert service.active == 0
        assert (b"grpc-status", b"4") in await stream.wait_headers()
        stream.close(8)


async def test_cancelling_a_call_cancels_its_handler(autojump_clock: MockClock) -> None:
    service = Echo()
    async with echo_wire(service) as (echo, _, _):
        with trio.move_on_after(1) as scope:
            await echo.unary(Raw(b"hang"))
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert (service.active, service.cancelled) == (0, 1)


async def test_leaving_a_stream_early_cancels_its_handler() -> None:
    service = Echo()
    async with echo_wire(service) as (echo, _, _):
        async with echo.count.open() as call:
            await call.send_message(Raw(b"-1"), end=True)
            assert await call.recv_message() == b"-1"
        await wait_all_tasks_blocked()
        assert service.active == 0


async def test_cancel_from_within_ends_the_call() -> None:
    service = Echo()
    async with echo_wire(service) as (echo, _, _):
        async with echo.double.open() as call:
            await call.recv_initial_metadata()
            call.cancel()
            with pytest.raises(GRPCError) as caught:
                await call.recv_message()
            assert caught.value.status is Status.CANCELLED
        await wait_all_tasks_blocked()
        assert service.active == 0


async def test_an_early_answer_counts_and_ends_the_sending() -> None:
    async with echo_wire() as (echo, _, _):
        assert await echo.early([Raw(b"%d" % n) for n in range(2000)]) == b"0"
        async with echo.early.open() as call:
            await call.send_message(Raw(b"x"))
            assert await call.recv_message() == b"x"
            with pytest.raises(StreamTerminatedError):
                await call.send_message(Raw(b"y"))


async def test_a_message_of_another_type_is_a_programming_error() -> None:
    async with echo_wire() as (echo, _, _):
        with pytest.raises(TypeError):
            await echo.unary(b"not a Raw")  # type: ignore[arg-type]


async def test_an_error_of_the_sender_reaches_the_caller_as_it_is() -> None:
    async def broken() -> AsyncIterator[Raw]:
        yield Raw(b"a")
        raise LookupError("nothing more")

    async with echo_wire() as (echo, _, _):
        with pytest.raises(LookupError, match="nothing more"):
            await echo.double(broken())
        assert await echo.unary(Raw(b"a")) == b"re:a"
