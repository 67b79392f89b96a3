"""The flight recorder of an agent: what it taps, and what it says about its agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from lightkube.models.core_v1 import Node, Pod

from kubelet_trio import __version__
from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.model import PodUid, Purpose
from kubelet_trio.objects import ObjectStore
from kubelet_trio.pods import PodRecord, encode_pod_record, read_pod_records
from kubelet_trio.recorder import (
    Kind,
    RecordedEvictions,
    RecordedExits,
    RecordedInputs,
    RecordedMounter,
    RecordedObjects,
    RecordedRuntime,
    Recorder,
    Recording,
    VolumeNotes,
)
from kubelet_trio.status import OnChange

if TYPE_CHECKING:
    from kubelet_trio.managers import (
        Claim,
        ClaimDrivers,
        ClaimKey,
        ClaimSource,
        DevicePluginCalls,
        LoadedManagers,
        OpenDevicePlugin,
        SliceReader,
    )
    from kubelet_trio.recorder import DriverNotes
    from kubelet_trio.shutdown import Logind

CLAIMS = "dra_manager_state"  # the checkpoint of resource claims
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Of other parts than decisions, or not values.
_NOT_TOLD = ("gates", "notes", "own_node", "sockets")


@dataclass(frozen=True, slots=True)
class Taps:
    """The recorder of an agent, and the taps that feed it."""

    recorder: Recorder
    inputs: RecordedInputs  # what the sources want, and what is decided
    volumes: VolumeNotes
    evictions: RecordedEvictions
    managers: LoadedManagers | None = None  # with the states that they begin with
    claims: Mapping[ClaimKey, Claim] = field(default_factory=dict)  # of an earlier agent
    # Of checkpoints that are put before the agent runs, and there is a time to note.
    early: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  # of plugins and questions

    def begin(self) -> None:
        """Take notes from threads from now on, and note the machine. Called once by the agent."""
        self.recorder.begin()
        if self.managers is not None:
            self.recorder.note(Kind.MACHINE, "", self.managers.machine)
            for provider, state in self.managers.providers.values():
                self.checkpoint(provider.file, partial(provider.encode, state))
            if (devices := self.managers.devices) is not None:
                self.checkpoint(devices.file, devices.encode)
        if self.claims:
            from kubelet_trio.managers import encode_claims

            self.checkpoint(CLAIMS, partial(encode_claims, self.claims))
        for file, encode in self.early.items():
            self.checkpoint(file, encode)
        self.early.clear()

    def checkpoint(self, file: str, encode: Callable[[], bytes]) -> None:
        """Note a checkpoint of the managers; `encode` is called in a thread."""
        if self.recorder.has_begun:
            self.recorder.note(Kind.CHECKPOINT, file, encode)
        else:
            self.early[file] = encode

    def request(self, what: str, uid: PodUid, told: Mapping[str, Any]) -> None:
        """Note what a user has asked for: `restart`, `debug`, `grace`, or `remove` for all pods."""
        self.recorder.note(Kind.REQUEST, f"{what}/{uid}", told)

    def mark(self, what: str) -> None:
        """Note that nothing else came until now: `saved`, or `stopped`."""
        self.recorder.note(Kind.MARK, "", {"what": what})

    def logind(self, logind: Logind) -> Logind:
        """Return a client of logind with a tap."""
        from kubelet_trio.recorder import RecordedLogind  # here: for a few nodes

        return RecordedLogind(logind, self.recorder)

    def device_plugins(self, open_plugin: OpenDevicePlugin) -> OpenDevicePlugin:
        """Return what opens device plugins, and notes what they offer and answer."""

        def opened(resource: str, socket: str) -> AbstractAsyncContextManager[DevicePluginCalls]:
            from kubelet_trio.recorder import recorded_plugin  # with the first plugin

            return recorded_plugin(open_plugin, resource, socket, self.recorder, self.numbers)

        return opened

    def claim_seams(
        self, source: ClaimSource, drivers: ClaimDrivers
    ) -> tuple[ClaimSource, ClaimDrivers]:
        """Return the source of claims and their drivers with taps."""
        from kubelet_trio.recorder import AskNotes, RecordedClaims, RecordedDrivers

        asks = AskNotes(self.recorder, self.numbers)
        return RecordedClaims(source, asks), RecordedDrivers(drivers, asks)

    def drivers(self) -> DriverNotes:
        """Return what notes the drivers of claims."""
        from kubelet_trio.recorder import DriverNotes

        return DriverNotes(self.recorder)

    def slices(self, slices: SliceReader) -> SliceReader:
        """Return a reader of slices with a tap."""
        from kubelet_trio.recorder import RecordedSlices

        return RecordedSlices(slices, self.recorder)

    def objects(self, store: ObjectStore) -> ObjectStore:
        """Return a store of objects with a tap."""
        return RecordedObjects(store, self.recorder)

    def on_change(self, on_change: OnChange) -> OnChange:
        """Return `on_change` of the status store, which notes the statuses as well."""

        def changed(pods: Mapping[PodUid, Pod | None], finished: Set[PodUid]) -> None:
            self.inputs.statuses(pods)
            on_change(pods, finished)

        return changed

    def known_node(self, known_node: Callable[[], Node | None]) -> Callable[[], Node | None]:
        """Return `known_node`, which notes the node's object when it is asked for."""

        def node() -> Node | None:
            found = known_node()
            self.inputs.node(found)
            return found

        return node


def make_taps(
    settings: AgentSettings,
    seams: Seams,
    records: Mapping[PodUid, PodRecord],
    managers: LoadedManagers | None = None,
    claims: Mapping[ClaimKey, Claim] | None = None,
) -> Taps:
    """Return the recorder of an agent, not running yet, and its taps."""
    node = settings.node
    facts = {
        "device_plugins": managers is not None and managers.devices is not None,
        "claims": "local" if seams.cluster is None else "api",
        "claims_left": bool(claims),
    }
    recording = Recording(
        limit=settings.recorder_size,
        start=partial(_start, settings, facts),
        records=tuple((uid, encode_pod_record(record)) for uid, record in records.items()),
        read_records=partial(read_pod_records, node.root_dir / "pods"),
    )
    threads = seams.offload_for(Purpose.RECORDER)
    recorder = Recorder(node.root_dir, recording, seams.clock, threads)
    inputs, volumes = RecordedInputs(recorder), VolumeNotes(recorder)
    evictions = RecordedEvictions(recorder)
    return Taps(recorder, inputs, volumes, evictions, managers, claims or {})


def recorded_seams(seams: Seams, taps: Taps) -> Seams:
    """Return the seams with a tap at each."""
    recorder, waiter = taps.recorder, seams.exit_waiter
    runtime = RecordedRuntime(seams.runtime, recorder)
    return replace(
        seams,
        runtime=runtime,
        mounter=RecordedMounter(seams.mounter, taps.volumes),
        exit_waiter=RecordedExits(waiter, recorder, runtime.pids) if waiter is not None else None,
    )


def _start(settings: AgentSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's fields of START. Blocks."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    return {
        "version": __version__,
        "node": settings.node.node_name,
        "instance": settings.instance,
        "boot_id": boot_id,
        "settings": told_settings(settings),
        **facts,
    }


def told_settings(settings: AgentSettings) -> dict[str, Any]:
    """Return the settings that decisions depend on, by the names of their fields, as JSON.

    One that JSON cannot hold is left out.
    """
    told = replace(settings, admission=replace(settings.admission, checks=()))
    found = {}
    for each in fields(told):
        if each.name not in _NOT_TOLD:
            with suppress(NotImplementedError):
                found[each.name] = msgspec.to_builtins(getattr(told, each.name), enc_hook=_encode)
    return found


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float):  # a duration
        return float(value)
    raise NotImplementedError(f"a setting of {type(value).__name__}")
