"""What the recorded agent asked plugins and drivers, and what they answered.

A question is matched with the next recorded one of its kind, as calls of the runtime are: the
answer takes as long, and is the same, or the same error. One that was not asked then, or is not
asked now, or is about other devices or for another container, is a divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from kubelet_trio.managers import NOBODY, Asker, current_asker
from kubelet_trio.recorder import Entry, Kind, read_body
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.matching import RETRY_SPREAD
from kubelet_trio.replay.recorded import Life

_CANCELLED = "Cancelled"
_CLAIM = "ResourceClaim/"
# What device plugins are asked; drivers are asked for pods.
_OF_CONTAINERS = ("Allocate/", "GetPreferredAllocation/", "PreStartContainer/")
_RETRIED_WITHIN = 17.0  # s after a failure


class AskFailedError(Exception):
    """The recorded answer was an error."""


@dataclass(slots=True, eq=False)
class _Question:
    key: str
    began: float
    request: Mapping[str, Any]
    asker: Asker = NOBODY  # as recorded: older agents did not tell
    ended: float = math.inf
    ok: Any = None
    error: str = ""
    text: str = ""
    is_asked: bool = False

    @property
    def words(self) -> str:
        return question_words(self.key, self.request, self.asker.container)

    def is_for(self, asker: Asker) -> bool:
        """Whether it may have been asked for the same."""
        # A claim that pods share is prepared for the first of them, and undone for the last.
        is_told = NOBODY not in (self.asker, asker) and self.key.startswith(_OF_CONTAINERS)
        return self.asker == asker or not is_told


class Asks:
    """The questions of one recorded life, whose entries have passed `checks`."""

    def __init__(self, life: Life, journal: Journal, tolerance: float) -> None:
        self._life = life
        self._journal = journal
        self._tolerance = tolerance
        # Of chosen pods: what the others ask for is not known.
        self._is_compared = not life.facts.get("only")
        # Claims that the node allocates itself are decisions, and asked for by whoever waits.
        self._decided = () if life.facts.get("claims") == "api" else (_CLAIM,)
        self._questions: dict[str, list[_Question]] = {}
        for question in _read(life):
            self._questions.setdefault(question.key, []).append(question)
        self._failures = sorted(q.ended for q in self._all() if q.error and q.ended < math.inf)

    def _all(self) -> Iterator[_Question]:
        for questions in self._questions.values():
            yield from questions

    def answers(self, method: str) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield a method's questions, and what was answered."""
        for question in self._all():
            if question.key.startswith(f"{method}/") and not question.error:
                yield question.request, question.ok

    async def ask(self, key: str, request: Mapping[str, Any]) -> Any:
        """Return the recorded answer, when it came. Raises `AskFailedError`."""
        now, asker = trio.current_time(), current_asker()
        words = question_words(key, request, asker.container)
        self._journal.note(asker.uid, "call", words)
        question = self._take(key, request, asker, now)
        if question is None:
            await self._refuse(now, asker, words)
        assert question is not None
        self._compare(question, now, asker, request)
        is_near = -self._tolerance <= question.began - now <= self._allowed(question)
        await trio.sleep_until(question.ended if is_near else now + question.ended - question.began)
        if question.error:
            self._journal.note(asker.uid, "answer", f"failed: {question.text}")
            raise AskFailedError(question.text)
        return question.ok

    def _take(
        self, key: str, request: Mapping[str, Any], asker: Asker, now: float
    ) -> _Question | None:
        """Return the next question of a key: one of now about the same, of now, or the same.

        One for the same container goes before others.
        """
        left = [q for q in self._questions.get(key, ()) if not q.is_asked]
        near = [q for q in left if abs(q.began - now) <= self._tolerance]
        found = near or [q for q in left if q.request == request]
        found.sort(key=lambda q: (q.request != request, not q.is_for(asker)))
        question = next(iter(found), None)
        if question is not None:
            question.is_asked = True
        return question

    async def _refuse(self, now: float, asker: Asker, words: str) -> None:
        """Diverge by a question that was not recorded, and hang."""
        if self._is_compared and now <= self._life.end - self._tolerance:
            # Unless it is given up soon: the recorded agent may have learned in time why.
            await trio.sleep(self._tolerance)
            self._journal.diverge(now, asker.uid, "nothing of the kind", words)
        await trio.sleep_forever()

    def _compare(
        self, question: _Question, now: float, asker: Asker, request: Mapping[str, Any]
    ) -> None:
        recorded, apart = question.asker, question.began - now
        # Who asked is not known of older recordings.
        words = question_words(
            question.key, question.request, (recorded.container or asker.container)
        )
        ours = question_words(question.key, request, asker.container)
        uid = recorded.uid or asker.uid
        if not question.is_for(asker):
            then, theirs = self._journal.name(recorded.uid), self._journal.name(asker.uid)
            words, ours = f"{words}, for {then}", f"{ours}, for {theirs}"
        if words != ours:
            self._journal.diverge(question.began, uid, words, ours)
        elif apart > self._allowed(question):
            self._journal.diverge(now, uid, f"{words} {apart:.1f} s later", ours)

    def _allowed(self, question: _Question) -> float:
        """Return by how many seconds a question may come earlier: retries have no jitter here."""
        began = question.began
        others = (q for q in self._questions[question.key] if q is not question)
        earlier = (q.began for q in others if q.request == question.request)
        times = (*self._failures, *earlier)
        is_retry = any(began - _RETRIED_WITHIN <= at <= began for at in times)
        return self._tolerance + (RETRY_SPREAD if is_retry else 0.0)

    def decide(
        self, key: str, words: str, found: object | None, tell: Callable[[Any], str]
    ) -> None:
        """Compare what is decided now with what was; None: it has failed."""
        now, uid = trio.current_time(), current_asker().uid
        self._journal.note(uid, "call", words)
        recorded = [q for q in self._questions.get(key, ()) if q.ended < math.inf]
        if not self._is_compared:
            return
        if found is None:
            near = [q for q in recorded if abs(q.ended - now) <= self._tolerance]
            if near and not any(q.error for q in near):
                self._journal.diverge(near[0].ended, uid, tell(near[0].ok), words)
            return
        # Who waits tries again without a jitter here: the recorded one may have been later.
        until = now + self._tolerance + RETRY_SPREAD
        given = [q for q in recorded if not q.error and now - self._tolerance <= q.ended <= until]
        if given and words not in [tell(q.ok) for q in given]:
            self._journal.diverge(given[0].ended, uid, tell(given[0].ok), words)

    async def check(self) -> None:
        """Find the questions that are not asked any more, each when it must have been asked."""
        compared = (q for q in self._all() if not q.key.startswith(self._decided))
        for question in sorted(compared, key=lambda q: q.began):
            await trio.sleep_until(question.began + self._tolerance + 0.001)
            if not question.is_asked and self._is_compared:
                missed = f"nothing within {self._tolerance:.1f} s"
                uid = question.asker.uid
                self._journal.diverge(question.began, uid, question.words, missed)


def question_words(key: str, request: Mapping[str, Any], container: str = "") -> str:
    """Return a question as a report says it: `Allocate example.com/gpu for container web: a, b`."""
    method, _, name = key.partition("/")
    told = ", ".join(_flat(request))
    who = f" for container {container}" if container else ""
    return f"{method} {name}{who}: {told}" if told else f"{method} {name}{who}"


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _flat(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield str(value)


def _read(life: Life) -> Iterator[_Question]:
    found: dict[int, _Question] = {}
    for entry in (*life.snapshot, *life.news):
        if entry.kind is Kind.ASKED:
            _take_entry(found, entry)
    yield from found.values()


def _take_entry(found: dict[int, _Question], entry: Entry) -> None:
    body = read_body(entry.body)
    number = int(body["call"])
    if body.get("request") is not None:
        asker = Asker(body.get("pod", ""), body.get("container", ""))
        found[number] = _Question(entry.key, entry.at, body["request"], asker)
    elif (question := found.get(number)) is not None and body.get("error") != _CANCELLED:
        question.ended, question.ok = entry.at, body.get("ok")
        question.error, question.text = body.get("error", ""), body.get("text", "")
