"""One recorded agent, replayed: a new agent is told the same, and its decisions are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import trio

from kubelet_trio.agent import Agent, AgentSettings, Seams, make_agent
from kubelet_trio.pods import load_records
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_body
from kubelet_trio.replay.asked import Asks
from kubelet_trio.replay.blocking import ReplayOffload
from kubelet_trio.replay.claims import ReplayClaims
from kubelet_trio.replay.decisions import Decisions
from kubelet_trio.replay.devices import ReplayPlugins, allocated
from kubelet_trio.replay.evictions import ReplayEvictions
from kubelet_trio.replay.grants import Grants
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.judge import Judge
from kubelet_trio.replay.logind import ReplayLogind
from kubelet_trio.replay.managers import ReplayManagers
from kubelet_trio.replay.matching import Owners
from kubelet_trio.replay.mounts import ReplayMounter, may_wait
from kubelet_trio.replay.observed import Observed, observe, surprises
from kubelet_trio.replay.places import Places, log_place, touch_log
from kubelet_trio.replay.recorded import Life
from kubelet_trio.replay.requests import ReplayRequests
from kubelet_trio.replay.runtime import ReplayRuntime
from kubelet_trio.replay.script import ReplayScript
from kubelet_trio.replay.seams import (
    MemoryCgroups,
    ReplayClock,
    ReplayExitWaiter,
    ample_space,
)
from kubelet_trio.replay.settings import agent_settings
from kubelet_trio.replay.wanted import Wanted

_RECORD = "kubelet-trio.json"  # as `pods.records` names it
_INPUTS = (Kind.WANTED, Kind.SOURCES, Kind.OBJECT, Kind.CLOCK)


class ReplayedLife:
    """An agent on a recorded life. `run` it once; `notes` say what it could not know."""

    def __init__(
        self,
        life: Life,
        top: Path,
        clock: ReplayClock,
        cgroups: MemoryCgroups,
        journal: Journal,
        tolerance: float,
    ) -> None:
        """Read what the agent will find.

        Args:
            life: the recorded one.
            top: the replay's directory, with what earlier lives have left.
            clock: wall time.
            cgroups: of the node, as earlier lives have left them.
            journal: gets the decisions.
            tolerance: seconds by which a decision may come earlier or later.

        Raises `RecordingError`.
        """
        self._life = life
        self._clock = clock
        self._cgroups = cgroups
        self._journal = journal
        self._tolerance = tolerance
        self._asks = Asks(life, journal, tolerance)
        self._plugins = ReplayPlugins(life, self._asks, journal)
        self._claims = ReplayClaims(life, self._asks, journal)
        self._owners = Owners(life, _grants(life, self._asks))
        journal.names.update(self._owners.names())
        self._observed = observe(life)
        self._runtime = ReplayRuntime(life, self._observed, self._owners, journal, tolerance)
        self._told = agent_settings(life.facts, top)
        self._managers = ReplayManagers(life, journal)
        self._settings = self._managers.settings(self._told)
        self._decisions = Decisions(life, journal, tolerance)
        self._evictions = ReplayEvictions(life, self._decisions, tolerance)
        self._logind = ReplayLogind(life)
        self._requests = ReplayRequests(life, journal)
        self._places = Places(top)
        self._wanted = Wanted(_source_names(life), self._places)
        self._offload = ReplayOffload(threads=may_wait(life.volume_calls))
        try:
            _write_records(life, self._settings, self._places)
            _place_files(self._observed, self._settings)
        except (OSError, ValueError) as exc:
            raise RecordingError(f"START: what the agent finds cannot be made: {exc}") from exc
        for entry in life.snapshot:
            self._take_input(entry, is_news=False)

    @property
    def notes(self) -> Sequence[str]:
        parts = (self._evictions, self._logind, self._managers)
        told = (part.notes(self._told) for part in parts)
        return (*self._places.notes, *chain.from_iterable(told))

    async def run(self) -> None:
        """Run the agent until cancelled, or until it diverges."""
        records = load_records(self._settings.node.root_dir / "pods")
        managers = self._managers.load(self._settings)
        claims = self._claims.load(self._settings.node.root_dir)
        agent = make_agent(self._settings, self._seams(), records, managers=managers, claims=claims)
        judge = Judge(
            agent, self._life, self._runtime, self._decisions, self._journal, self._tolerance
        )
        self._journal.note("", "agent", "an agent starts")
        self._wanted.deliver()
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(self._offload.hold_clock)
                await nursery.start(agent.run)
                nursery.start_soon(self._tell)
                nursery.start_soon(self._relist, agent)
                nursery.start_soon(self._ask_status, agent)
                nursery.start_soon(self._evictions.cue, agent)
                nursery.start_soon(judge.watch)
                nursery.start_soon(judge.watch_pressure)
                nursery.start_soon(self._managers.tell)
                nursery.start_soon(self._requests.make, agent)
                nursery.start_soon(self._plugins.run, agent)
                nursery.start_soon(self._claims.run)
                nursery.start_soon(self._asks.check)
                nursery.start_soon(judge.watch_shutdown)
                nursery.start_soon(judge.check)
                await self._journal.diverged.wait()
            finally:
                self._journal.close()
                self._runtime.close()
                self._offload.close()
                nursery.cancel_scope.cancel()

    def _seams(self) -> Seams:
        cgroups, now = self._cgroups, trio.lowlevel.current_clock().current_time
        return Seams(
            runtime=self._runtime,
            mounter=ReplayMounter(self._life.volume_calls, now, self._offload.wait),
            cgroups=lambda _driver: cgroups,
            cgroup_tree=lambda _driver: cgroups,
            sources=self._wanted.sources,
            exit_waiter=ReplayExitWaiter(self._runtime),
            clock=self._clock,
            offload=self._offload,
            disk_space=ample_space,
            eviction=self._evictions.inputs(),
            logind=self._logind,
            script=ReplayScript(self._life),
            device_plugins=self._plugins.open,
            claims=self._claims,
        )

    async def _tell(self) -> None:
        """Pass on each input at its time."""
        inputs = [entry for entry in self._life.news if entry.kind in _INPUTS]
        for index, entry in enumerate(inputs):
            await trio.sleep_until(entry.at)
            self._take_input(entry, is_news=True)
            following = inputs[index + 1 : index + 2]
            if not following or following[0].at > entry.at:
                self._wanted.deliver()

    def _take_input(self, entry: Entry, *, is_news: bool) -> None:
        try:
            self._take(entry, is_news=is_news)
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as exc:
            raise RecordingError(f"{entry.kind.name} {entry.key}: {exc}") from exc

    def _take(self, entry: Entry, *, is_news: bool) -> None:
        if entry.kind is Kind.WANTED:
            uid = entry.key.rpartition("/")[2]
            if entry.body:
                meta = read_body(entry.body).get("metadata") or {}
                self._journal.names[uid] = f"{meta.get('namespace')}/{meta.get('name')}"
            text = self._wanted.wanted(entry)
            if is_news:
                self._journal.note(uid, "wanted", text)
        elif entry.kind is Kind.SOURCES:
            self._wanted.settled(entry)
        elif entry.kind is Kind.OBJECT:
            self._wanted.known(entry)
        elif entry.kind is Kind.CLOCK:
            self._clock.set(entry.at, float(read_body(entry.body)["wall"]))

    async def _relist(self, agent: Agent) -> None:
        """Let the agent list when the recorded one has found a change in a list."""
        for at in sorted(set(surprises(self._life, self._observed))):
            await trio.sleep_until(at)
            agent.parts.runtime.pleg.relist_soon()

    async def _ask_status(self, agent: Agent) -> None:
        """Let the agent find the runtime away, back or changed when the recorded one did.

        Every pod is planned anew then, and its waits after failures end.
        """
        for reading in self._life.readings.get(("status", ""), ()):
            await trio.sleep_until(reading.at)
            agent.parts.runtime.health.ask_soon()


def _grants(life: Life, asks: Asks) -> Grants | None:
    """Return what plugins have given; None: an older agent did not tell, or other pods are left
    out."""
    if "device_plugins" not in life.facts or life.facts.get("only"):
        return None
    return Grants(allocated(life, asks))


def _source_names(life: Life) -> list[str]:
    entries = (*life.snapshot, *life.news)
    return sorted({e.key.rpartition("/")[0] for e in entries if e.kind is Kind.WANTED})


def _write_records(life: Life, settings: AgentSettings, places: Places) -> None:
    """Put the recorded records of pods where an agent finds them. Blocks."""
    pods_dir = settings.node.root_dir / "pods"
    recorded = {Path(entry.key).name for entry in life.snapshot if entry.kind is Kind.RECORD}
    # Of an earlier replayed agent: the recorded one has removed it before it ended.
    for left in pods_dir.glob(f"*/{_RECORD}") if life.facts.get("is_complete") else ():
        if left.parent.name not in recorded:
            left.unlink()
    for entry in life.snapshot:
        if entry.kind is Kind.RECORD:
            directory = pods_dir / entry.key  # a UID: see `checks`
            directory.mkdir(parents=True, exist_ok=True)
            content = places.record(read_body(entry.body))
            (directory / _RECORD).write_bytes(msgspec.json.encode(content))


def _place_files(observed: Observed, settings: AgentSettings) -> None:
    """Let statuses name files of the replay alone, and make the logs that there were. Blocks."""
    for history in observed.containers.values():
        was_there = history.first == -math.inf
        for reading in history.statuses.readings:
            status = (reading.ok or {}).get("status") or {}
            # Files of termination messages, which the recorded node had.
            status.pop("mounts", None)
            log = log_place(settings.node.pod_logs_dir, status.get("log_path") or "")
            status["log_path"] = str(log or "")
            if log is not None and was_there:
                touch_log(log)
                was_there = False
