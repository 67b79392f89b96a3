"""Questions to plugins and drivers: noted when they are asked, and when they are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kubelet_trio.managers import NOBODY, Asker, current_asker
from kubelet_trio.recorder.bodies import Failure
from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.recorder import Recorder

T = TypeVar("T")

_CANCELLED = Failure("Cancelled", "the caller was cancelled")


@dataclass(frozen=True, slots=True)
class Ask:
    """The content of an ASKED: the question if `request` is there, else the answer.

    `answer` makes what is told of a success; it is called in a thread. `asker` is for whom it is
    asked.
    """

    number: int
    request: Mapping[str, Any] | None = None
    answer: Callable[[], Any] = lambda: None
    failure: Failure | None = None
    asker: Asker = NOBODY

    def fields(self) -> dict[str, Any]:
        """Return the body of the entry."""
        if self.request is not None:
            told = {"pod": self.asker.uid, "container": self.asker.container}
            who = {name: each for name, each in told.items() if each}
            return {"call": self.number, "request": self.request, **who}
        if self.failure is not None:
            return {"call": self.number, **self.failure.fields()}
        return {"call": self.number, "ok": self.answer()}


class AskNotes:
    """Notes questions; `numbers` are those of an agent."""

    def __init__(self, recorder: Recorder, numbers: Iterator[int]) -> None:
        self._note = recorder.note
        self._numbers = numbers

    async def noted(
        self,
        key: str,
        request: Mapping[str, Any],
        call: Awaitable[T],
        errors: tuple[type[Exception], ...],
        tell: Callable[[T], Any] = lambda _found: None,
    ) -> T:
        """Ask, and return the answer.

        Args:
            key: the method, a slash, and who is asked.
            request: what is asked.
            call: the call.
            errors: what it raises.
            tell: returns what is told of the answer; called in a thread.
        """
        number = next(self._numbers)
        self._note(Kind.ASKED, key, Ask(number, request, asker=current_asker()))
        ended = Ask(number, failure=_CANCELLED)
        try:
            found = await call
            ended = Ask(number, answer=lambda: tell(found))
        except errors as exc:
            ended = Ask(number, failure=Failure.of(exc))
            raise
        finally:
            self._note(Kind.ASKED, key, ended)
        return found
