"""The managers of a replay: on the recorded machine, from its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import msgspec
import trio

from kubelet_trio.agent import AgentSettings
from kubelet_trio.managers import (
    LoadedManagers,
    Machine,
    ManagerSettings,
    ManagerStateError,
    load_managers,
)
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_body
from kubelet_trio.replay.devices import device_checkpoint
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.plugin_checks import CLAIMS_FILE, DEVICES_FILE, LOCAL_FILE
from kubelet_trio.replay.recorded import Life

NONE = "none"  # topologyManagerPolicy
_NO_MACHINE = "the machine is not in the recording: managers of CPUs and memory are not replayed"
_PARTIAL = "other pods are left out: managers of CPUs, memory and devices are not replayed"
_DEVICES = "recorded devices of plugins are not replayed"


class ReplayManagers:
    """The managers of one recorded life."""

    def __init__(self, life: Life, journal: Journal) -> None:
        """Read what they have found. Raises `RecordingError`: an entry has another form."""
        self._journal = journal
        self._machine: Machine | None = None
        self._is_partial = bool(life.facts.get("only"))
        self._has_plugins = bool(life.facts.get("device_plugins"))
        self._has_offers = False  # of device plugins
        self._checkpoints: dict[str, bytes] = {}
        self._devices: list[float] = []  # when a plugin's devices were given away, or registered
        for entry in (*life.snapshot, *life.news):
            if entry.kind is Kind.PLUGIN and entry.key.startswith("device/"):
                self._has_offers = True
            if self._is_partial:
                continue  # what the others hold is not known
            if entry.kind is Kind.MACHINE:
                self._machine = self._machine or _machine(entry)
            elif entry.kind is Kind.CHECKPOINT:
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        # A file right below the root directory, whatever a recording says.
        name = PurePosixPath(entry.key).name
        if name in (CLAIMS_FILE, LOCAL_FILE):
            return  # see `claims`
        if name == entry.key:
            self._checkpoints.setdefault(name, entry.body)
        elif entry.key == DEVICES_FILE and self._has_plugins:
            self._checkpoints.setdefault(DEVICES_FILE, device_checkpoint(entry.body))
        elif _has_devices(entry):
            self._devices.append(entry.at)

    def settings(self, told: AgentSettings) -> AgentSettings:
        """Return the agent's settings: without managers if the machine is not known."""
        return told if self._machine is not None else replace(told, managers=ManagerSettings())

    def load(self, settings: AgentSettings) -> LoadedManagers | None:
        """Return the managers; None if the node needs none. Blocks.

        Raises `RecordingError`: the recorded state is none for these managers.
        """
        machine, root_dir = self._machine, settings.node.root_dir
        if machine is None:
            return None
        root_dir.mkdir(parents=True, exist_ok=True)
        for name, body in self._checkpoints.items():
            (root_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (root_dir / name).write_bytes(body)
        try:
            return load_managers(
                settings.managers,
                root_dir,
                lambda: machine,
                device_plugins=self._has_plugins,
            )
        except (ManagerStateError, OSError) as exc:
            raise RecordingError(f"CHECKPOINT: {exc}") from exc

    def notes(self, told: AgentSettings) -> Iterator[str]:
        """Yield what the replay cannot know; `told` are the recorded settings."""
        asked = told.managers
        is_static = asked.gives_cpus or asked.gives_memory or asked.topology_policy != NONE
        if (is_static or self._has_offers) and self._machine is None:
            yield _PARTIAL if self._is_partial else _NO_MACHINE
        if self._devices:
            yield f"{_DEVICES}: pods that ask for them may differ"

    async def tell(self) -> None:
        """Say when something was recorded that is not replayed."""
        for at in self._devices:
            await trio.sleep_until(at)
            self._journal.note("", "note", _DEVICES)


def _machine(entry: Entry) -> Machine:
    try:
        return msgspec.json.decode(entry.body, type=Machine)
    except ValueError as exc:
        raise RecordingError(f"MACHINE: {exc}") from exc


def _has_devices(entry: Entry) -> bool:
    """Return whether the checkpoint of device plugins has any device."""
    try:
        body = read_body(entry.body)
    except ValueError as exc:
        raise RecordingError(f"CHECKPOINT {entry.key}: {exc}") from exc
    data: Any = body.get("Data") if isinstance(body, dict) else None
    return isinstance(data, dict) and any(
        data.get(name) for name in ("PodDeviceEntries", "RegisteredDevices")
    )
