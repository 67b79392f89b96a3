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
    calls.end("1", "c", b'{"ok":"c"}', failed=False)
    calls.see("s")  # not what the call made
    assert list(calls.entries()) == [
        (Kind.CALL, "create_container", b"{}"),
        (Kind.ANSWER, "1", b'{"ok":"c"}'),
    ]
    calls.begin("2", "start_container", {"container_id": "c"}, b"{}")
    calls.see("c")  # while the start has no answer, a reading does not show what it does
    assert keys(calls) == [("CALL", "start_container")]
    calls.end("2", None, b'{"ok":null}', failed=False)
    assert keys(calls) == [("CALL", "start_container"), ("ANSWER", "2")]
    calls.see("c")
    assert keys(calls) == []


def test_calls_without_an_effect_are_over_with_their_answer() -> None:
    calls = UnseenCalls()
    calls.begin("1", "run_pod_sandbox", {}, b"{}")
    calls.begin("2", "pull_image", {"image": "i"}, b"{}")
    assert keys(calls) == [("CALL", "run_pod_sandbox"), ("CALL", "pull_image")]
    calls.end("1", object(), b'{"error":"Internal"}', failed=True)
    calls.end("2", "sha256:1", b'{"ok":"sha256:1"}', failed=False)
    calls.end("3", None, b"{}", failed=False)  # of a call before this recorder
    assert keys(calls) == []


def make(calls: UnseenCalls, number: str, container: str) -> None:
    calls.begin(number, "create_container", {"pod_sandbox_id": "s"}, b"{}")
    calls.end(number, container, b"{}", failed=False)


def test_what_was_removed_before_a_reading_is_over() -> None:
    """A list tells only of the end of what it had."""
    calls = UnseenCalls()
    make(calls, "1", "a")
    make(calls, "2", "b")
    calls.begin("3", "remove_container", {"container_id": "a"}, b"{}")
    calls.end("3", object(), b"{}", failed=True)
    assert len(keys(calls)) == 4
    calls.begin("4", "remove_container", {"container_id": "a"}, b"{}")
    assert keys(calls)[-1] == ("CALL", "remove_container")
    calls.end("4", None, b"{}", failed=False)
    assert keys(calls) == [("CALL", "create_container"), ("ANSWER", "2")]
    calls.begin("5", "remove_pod_sandbox", {"pod_sandbox_id": "s"}, b"{}")
    calls.end("5", None, b"{}", failed=False)
    assert keys(calls) == []


def test_they_are_bounded() -> None:
    calls = UnseenCalls()
    for number in range(1500):
        make(calls, str(number), f"c{number}")
    assert len(keys(calls)) == 2000
    assert keys(calls)[1] == ("ANSWER", "500")
