"""The calls whose effect no reading has shown yet: a segment that begins then repeats them.

An agent that is replayed from such a segment finds the sandbox or container as it was before the
call, and decides on the call again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kubelet_trio.recorder.format import Kind

_MAKERS = frozenset({"create_container", "run_pod_sandbox"})
_REMOVERS = frozenset({"remove_container", "remove_pod_sandbox"})
# What each is about: a sandbox or container whose later readings show what it did.
_SUBJECT = {
    "start_container": "container_id",
    "stop_container": "container_id",
    "remove_container": "container_id",
    "stop_pod_sandbox": "pod_sandbox_id",
    "remove_pod_sandbox": "pod_sandbox_id",
}
_MOST = 1000  # calls; the oldest are forgotten, should a runtime never show what they did


@dataclass(slots=True)
class _Call:
    method: str
    body: bytes
    subject: str | None  # an ID; None: of what is being made
    sandbox: str | None  # in which a container is made
    answer: bytes | None = None


class UnseenCalls:
    """The calls that are to be repeated, by their number."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    def begin(self, number: str, method: str, request: dict[str, object], body: bytes) -> None:
        """Keep a call that has begun; `body` is that of its entry."""
        subject = request.get(_SUBJECT.get(method, ""))
        sandbox = request.get("pod_sandbox_id") if method == "create_container" else None
        self._calls[number] = _Call(method, body, _id(subject), _id(sandbox))
        if len(self._calls) > _MOST:
            del self._calls[next(iter(self._calls))]

    def end(self, number: str, made: object, body: bytes, *, failed: bool) -> None:
        """Take the answer to a call: `made` is what it returned."""
        call = self._calls.get(number)
        if call is None:
            return
        if call.method in _MAKERS and not failed:
            call.subject = _id(made)
        call.answer = body
        if call.method in _REMOVERS and call.subject is not None and not failed:
            self._remove(call.subject)
        if call.subject is None or call.method in _REMOVERS:
            self._calls.pop(number, None)

    def see(self, object_id: str) -> None:
        """Forget the answered calls about a sandbox or container that has been read since."""
        for number, call in list(self._calls.items()):
            if call.answer is not None and call.subject == object_id:
                del self._calls[number]

    def _remove(self, object_id: str) -> None:
        """Forget the calls about what is gone, and about containers that went with a sandbox."""
        inside = {c.subject for c in self._calls.values() if c.sandbox == object_id}
        for subject in (object_id, *inside):
            if subject is not None:
                self.see(subject)

    def entries(self) -> Iterator[tuple[Kind, str, bytes]]:
        """Yield kinds, keys and bodies of the calls and of their answers, oldest first."""
        for number, call in self._calls.items():
            yield Kind.CALL, call.method, call.body
            if call.answer is not None:
                yield Kind.ANSWER, number, call.answer


def _id(value: object) -> str | None:
    return value if isinstance(value, str) else None
