"""Notes what a replayed agent decides, and compares it with what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent
from kubelet_trio.model import PodUid, metadata
from kubelet_trio.pods import PodWhy
from kubelet_trio.recorder import Entry, Kind, read_body
from kubelet_trio.replay import compare
from kubelet_trio.replay.decisions import Check, Decisions
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.matching import tolerance_of
from kubelet_trio.replay.recorded import Life
from kubelet_trio.replay.runtime import ReplayRuntime

_LATER = 1.0  # s
_COMPARED = (Kind.PLAN, Kind.STATUS)


class Judge:
    """Watches one replayed agent. `watch` and `check` run until cancelled."""

    def __init__(
        self,
        agent: Agent,
        life: Life,
        runtime: ReplayRuntime,
        decisions: Decisions,
        journal: Journal,
        tolerance: float,
    ) -> None:
        self._agent = agent
        self._life = life
        self._runtime = runtime
        self._decisions = decisions
        self._journal = journal
        self._tolerance = tolerance
        self._pressure = ""
        self._is_shutting_down = False
        self._why: dict[str, tuple[str, ...]] = {}
        self._shown: dict[str, tuple[str, ...]] = {}
        journal.why = self.reasons

    async def watch(self) -> None:
        """Note statuses, and the reasons that hold pods up, whenever a status changes."""
        async with trio.open_nursery() as looks:
            async for pods in self._agent.pods.eventual_values():
                changed = [uid for uid, pod in pods.items() if self._note_status(uid, pod)]
                for uid in changed:
                    self._note_why(uid)
                if changed:
                    looks.start_soon(self._look_again, changed)

    async def watch_pressure(self) -> None:
        """Note the node's shortages."""
        async for pressure in self._agent.pressure.eventual_values():
            words = compare.pressure_words(pressure)
            if words != self._pressure:
                self._journal.note("", "node", words or "no pressure any more")
            self._pressure = words

    async def watch_shutdown(self) -> None:
        """Note announced shutdowns of the node, and those that are called off."""
        async for starts in self._agent.parts.setup.links.is_shutting_down.eventual_values():
            if starts or self._is_shutting_down:
                text = "the node shuts down" if starts else "its shutdown is called off"
                self._journal.note("", "node", text)
            self._is_shutting_down = starts

    async def _look_again(self, uids: Sequence[PodUid]) -> None:
        """Note what holds pods up once their steps have begun, or failed."""
        await trio.sleep(_LATER)
        for uid in uids:
            self._note_why(uid)

    def _note_status(self, uid: PodUid, pod: Pod) -> bool:
        """Note a pod's status; return whether it differs from the last one."""
        meta = metadata(pod)
        self._journal.names.setdefault(uid, f"{meta.namespace}/{meta.name}")
        words = self._status(uid)
        if self._shown.get(uid) == words:
            return False
        self._shown[uid] = words
        self._journal.note(uid, "status", compare.joined(words))
        return True

    def _status(self, uid: PodUid) -> tuple[str, ...]:
        pod = self._agent.pods.value.get(uid)
        return self._words(compare.plain_status(pod.status if pod is not None else None))

    def _words(self, status: Mapping[str, Any] | None) -> tuple[str, ...]:
        words = compare.status_words(status)
        # Of chosen pods: devices are not replayed.
        is_partial = self._life.facts.get("only")
        return words if is_partial else (*words, *compare.health_words(status))

    def _note_why(self, uid: PodUid) -> None:
        found = tuple(self.reasons(uid))
        if self._why.get(uid, ()) != found:
            self._why[uid] = found
            for line in found:
                self._journal.note(uid, "why", line)

    def reasons(self, uid: str) -> Sequence[str]:
        """Return the reasons that hold a pod up now, a line each."""
        why = self._agent.why(PodUid(uid))
        return tuple(_reason_lines(why)) if why is not None else ()

    async def check(self) -> None:
        """Compare what was recorded, each at the time at which it must have been decided."""
        for each in sorted(self._checks(), key=lambda check: check.at):
            await trio.sleep_until(each.at)
            each.compare()

    def _checks(self) -> Iterator[Check]:
        yield from self._decisions.checks()
        for call in self._life.calls:
            if self._runtime.must_be_made(call):
                due = call.began + tolerance_of(call.method, self._tolerance) + 0.001
                yield Check(due, partial(self._runtime.check_missed, call))
        for entry in _settled(self._life, 2 * self._tolerance):
            compared = self._compare_status if entry.kind is Kind.STATUS else self._compare_plan
            yield Check(entry.at + self._tolerance, partial(compared, entry))

    def _compare_status(self, entry: Entry) -> None:
        recorded = self._words(read_body(entry.body) if entry.body else None)
        now = self._status(PodUid(entry.key))
        if recorded != now:
            then, ours = compare.joined(recorded), compare.joined(now)
            self._journal.diverge(entry.at, entry.key, f"status {then}", f"status {ours}")

    def _compare_plan(self, entry: Entry) -> None:
        worker = self._agent.parts.workers.get(PodUid(entry.key))
        plan = worker.parts().facts().plan if worker is not None else None
        if plan is None or not entry.body:  # it is ending: statuses and calls tell
            return
        recorded = compare.recorded_plan(read_body(entry.body)["plan"])
        if recorded["start"] or recorded["stop"] or recorded["sandbox"]:
            return  # steps are calls, and those that are held back show in the status
        found = compare.plan_difference(recorded, compare.current_plan(plan), self._tolerance)
        if found is not None:
            self._journal.diverge(entry.at, entry.key, *found)


def _settled(life: Life, lasts: float) -> Iterator[Entry]:
    """Yield the plans and statuses that held for so long, or until the end."""
    last: dict[tuple[Kind, str], Entry] = {}
    for entry in life.news:
        if entry.kind in _COMPARED:
            before = last.get((entry.kind, entry.key))
            if before is not None and entry.at - before.at >= lasts:
                yield before
            last[entry.kind, entry.key] = entry
    yield from (entry for entry in last.values() if life.end - entry.at >= lasts)


def _reason_lines(why: PodWhy) -> Iterator[str]:
    for reason in why.reasons:
        who = f"{reason.container}: " if reason.container else ""
        until = f", until {compare.clock_words(reason.until)}" if reason.until is not None else ""
        yield f"{who}{reason.text}{until}"
