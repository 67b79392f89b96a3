"""A device plugin as a process: `python -m tests.harness.device_plugin DIR`.

DIR has `plugin.json` (`PluginConfig` of tests.harness.devices), and device nodes in `nodes`. The
process keeps what it has allocated and the violations in `state.json`, so a plugin that was killed
continues. Its socket `control` takes one line of JSON a command and answers one: see `_Control`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from kubelet_trio.grpc import Status
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.devices import (
    AskedDevices,
    DeviceFaultKind,
    DeviceGrant,
    DeviceRules,
    FakeDevice,
    FakeDevicePlugin,
    GrantedMount,
    GrantedNode,
)
from tests.harness.device_services import (
    OURS,
    PluginTransport,
    endpoint_of,
    run_device_plugin,
)

Json = dict[str, Any]
ENV = "TEST_DEVICES"
ANNOTATION = "devices.example.org/given"
MOUNTED = "/opt/devices"


def node_in_container(device: str) -> str:
    """Return where a container has the node of a device."""
    return f"/dev/test-{device}"


class _Grants:
    """What containers get of a directory with device nodes and data."""

    def __init__(self, base: Path, permissions: str) -> None:
        self._base, self._permissions = base, permissions

    def __call__(self, ids: Sequence[str]) -> DeviceGrant:
        named = ",".join(sorted(ids))
        return DeviceGrant(
            {ENV: named},
            (GrantedMount(MOUNTED, str(self._base / "data"), is_read_only=True),),
            tuple(
                GrantedNode(
                    node_in_container(device), str(self._base / "nodes" / device), self._permissions
                )
                for device in sorted(ids)
            ),
            {ANNOTATION: named},
        )


def _prefer_last(asked: AskedDevices) -> Sequence[str]:
    """Prefer what a kubelet would not choose by itself."""
    rest = sorted(set(asked.available) - set(asked.must_include), reverse=True)
    return (*asked.must_include, *rest)[: asked.size]


class _Control:
    """Commands of the test, by their field `do`:

    fault      add a fault; further fields are those of `DeviceFault`, enums by their values
    clear      end all faults
    devices    list other `devices`
    end        end the streams of ListAndWatch
    register   register once more, as a plugin does that has lost count
    give_back  note that no container has `devices` any more
    state      answer allocations, violations, calls, registrations
    """

    def __init__(self, plugin: FakeDevicePlugin, transport: PluginTransport, kubelet: Path) -> None:
        self._plugin, self._transport, self._kubelet = plugin, transport, kubelet

    async def serve(self, stream: trio.abc.Stream) -> None:
        text = b""
        async for chunk in stream:
            text += chunk
            while b"\n" in text:
                line, _, text = text.partition(b"\n")
                answer = json.dumps(await self._do(json.loads(line)))
                await stream.send_all(answer.encode() + b"\n")

    async def _do(self, command: Json) -> Json:
        what, plugin = command.pop("do"), self._plugin
        if what == "fault":
            command["kind"] = DeviceFaultKind(command["kind"])
            command["status"] = Status[command.get("status", "UNAVAILABLE")]
            plugin.faults.add(**command)
        elif what == "clear":
            plugin.faults.clear()
        elif what == "devices":
            plugin.set_devices(loaded_devices(command["devices"]))
        elif what == "end":
            plugin.end_streams()
        elif what == "register":
            own = endpoint_of(plugin.resource)
            await self._transport.register(plugin, str(self._kubelet), own)
        elif what == "give_back":
            plugin.rules.give_back(*command["devices"])
        return self._state()

    def _state(self) -> Json:
        rules = self._plugin.rules
        return {
            **rules.to_json(),
            "calls": [asdict(call) for call in rules.log],
            "registrations": self._plugin.registrations,
            "devices": [asdict(device) for device in self._plugin.devices],
        }


def loaded_devices(listed: Sequence[Json]) -> list[FakeDevice]:
    """Return the devices that JSON tells of."""
    return [FakeDevice(**{**device, "nodes": tuple(device["nodes"])}) for device in listed]


async def run_plugin(base: Path, config: Json) -> None:
    """Serve a plugin until a fault or a signal kills the process."""
    rules = DeviceRules(
        prefers=config["prefers"],
        needs_pre_start=config["needs_pre_start"],
        is_exclusive=config["is_exclusive"],
    )
    state = base / "state.json"
    if state.exists():
        rules.from_json(json.loads(state.read_text()))

    def save(rules: DeviceRules) -> None:
        aside = state.with_suffix(".new")
        aside.write_text(json.dumps(rules.to_json()))
        aside.rename(state)

    plugin = FakeDevicePlugin(
        config["resource"],
        loaded_devices(config["devices"]),
        rules,
        grant=_Grants(base, config["permissions"]),
        prefer=_prefer_last,
        save=save,
        die=lambda: os._exit(9),
    )
    transport = OURS
    if config["is_grpcio"]:
        from tests.harness.device_grpcio import grpcio_transport

        transport = grpcio_transport(base / "stubs")
    plugins = Path(config["plugins"])
    control = _Control(plugin, transport, plugins / "kubelet.sock")
    async with trio.open_nursery() as nursery:
        listener = open_unix(base / "control")
        await nursery.start(trio.serve_listeners, control.serve, [listener])
        if config["registry"]:  # the kubelet looks for it
            await nursery.start(plugin.run)
            await nursery.start(transport.serve, plugin, Path(config["registry"]))
        else:
            await nursery.start(run_device_plugin, plugin, plugins, "", transport)
        (base / "ready").touch()


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    trio.run(run_plugin, directory, json.loads((directory / "plugin.json").read_text()))
