"""Errors of calls as grpc-go prints them: tools and people search logs for these texts."""

from __future__ import annotations

import pytest

from kubelet_trio.grpc import CODE_NAMES, GRPCError, Status, go_text


@pytest.mark.parametrize(
    ("status", "message", "text"),
    [
        (Status.UNAVAILABLE, "no", "rpc error: code = Unavailable desc = no"),
        (Status.CANCELLED, None, "rpc error: code = Canceled desc = "),
        (Status.OK, "", "rpc error: code = OK desc = "),
        (Status.DEADLINE_EXCEEDED, "x", "rpc error: code = DeadlineExceeded desc = x"),
        (Status.UNKNOWN, "y" * 5000, "rpc error: code = Unknown desc = " + "y" * 1024),
    ],
)
def test_an_error_reads_as_in_go(status: Status, message: str | None, text: str) -> None:
    assert go_text(GRPCError(status, message)) == text


def test_every_status_has_a_name() -> None:
    assert CODE_NAMES.keys() == set(Status)
