"""Which calls a segment repeats."""

from __future__ import annotations

from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.unseen import UnseenCalls


def keys(calls: UnseenCalls) -> list[tuple[str, str]]:
    return [(kind.name, key) for kind, key, _ in calls.entries()]


def test_a_creation_is_repeated_until_what_it_made_is_read() -> None:
    calls = UnseenCalls()
    calls.begin("1", "create_container", {"pod_sandbox_id": "s"}, b"{}")
    assert keys(calls) == [("CALL", "create_container")]
    calls.end("1", "c", b'{"ok":"c"}')
    calls.see("s")  # not what the call made
    assert list(calls.entries()) == [
        (Kind.CALL, "create_container", b"{}"),
        (Kind.ANSWER, "1", b'{"ok":"c"}'),
    ]
    calls.begin("2", "start_container", {"container_id": "c"}, b"{}")
    calls.see("c")  # while the start has no answer, a reading does not show what it does
    assert keys(calls) == [("CALL", "start_container")]
    calls.end("2", None, b'{"ok":null}')
    assert keys(calls) == [("CALL", "start_container"), ("ANSWER", "2")]
    calls.see("c")
    assert keys(calls) == []


def test_calls_without_an_effect_are_over_with_their_answer() -> None:
    calls = UnseenCalls()
    calls.begin("1", "run_pod_sandbox", {}, b"{}")
    calls.begin("2", "pull_image", {"image": "i"}, b"{}")
    assert keys(calls) == [("CALL", "run_pod_sandbox"), ("CALL", "pull_image")]
    calls.end("1", None, b'{"error":"Internal"}')
    calls.end("2", "sha256:1", b'{"ok":"sha256:1"}')
    calls.end("3", None, b"{}")  # of a call before this recorder
    assert keys(calls) == []
