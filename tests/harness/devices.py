"""A device plugin in a process of its own, as a test drives it: start, kill, faults, calls."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from kubelet_trio.testing.devices import DeviceFaultKind, FakeDevice
from tests.harness.machine import PATIENCE
from tests.harness.pods import eventually

Json = dict[str, Any]
RESOURCE = "example.org/node"
# Misc devices (major 10) that nobody is given by default, by their names in /proc/misc. To open
# one does nothing.
_HARMLESS = ("fuse", "loop-control", "autofs", "hpet", "cpu_dma_latency")
_MISC = 10


def harmless_device() -> int | None:
    """Return a device number that a process may open only if it was given to it; None: none is."""
    numbers = dict(line.split()[::-1] for line in Path("/proc/misc").read_text().splitlines())
    found = next((numbers[name] for name in _HARMLESS if name in numbers), None)
    return None if found is None else os.makedev(_MISC, int(found))


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """How a plugin is."""

    resource: str = RESOURCE
    devices: Iterable[FakeDevice | str] = ("a", "b")
    # What the device nodes are copies of; of others: /dev/null.
    numbers: Mapping[str, int] = field(default_factory=dict)
    permissions: str = "rw"
    prefers: bool = False  # those that come last by their names
    needs_pre_start: bool = False
    is_exclusive: bool = True
    is_grpcio: bool = False  # serve with grpcio instead of our own server
    in_registry: bool = False  # be found in plugins_registry instead of registering


class DevicePlugin:
    """A plugin with real device nodes at an agent's root directory."""

    def __init__(self, base: Path, root: Path, config: PluginConfig | None = None) -> None:
        """Create a plugin with its device nodes; `start` starts its process.

        Args:
            base: for its device nodes, data and state.
            root: the agent's root directory.
            config: how it is.
        """
        self.base, self.config = base, config or PluginConfig()
        self.resource = self.config.resource
        self.plugins = root / "device-plugins"
        self._registry = root / "plugins_registry" / f"{self.resource.replace('/', '_')}.sock"
        self._process: subprocess.Popen[bytes] | None = None
        for directory in (base / "nodes", base / "data"):
            directory.mkdir(parents=True)
        (base / "data" / "firmware").write_text("of the plugin")
        self.list_first(self.config.devices)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def list_first(self, devices: Iterable[FakeDevice | str]) -> None:
        """Choose what the next process lists, and make the nodes of it."""
        listed = [_device(device) for device in devices]
        for device in listed:
            self._make_node(device.id)
        options = ("resource", "permissions", "prefers", "needs_pre_start")
        values = {name: getattr(self.config, name) for name in options}
        (self.base / "plugin.json").write_text(
            json.dumps(
                {
                    **values,
                    "is_exclusive": self.config.is_exclusive,
                    "is_grpcio": self.config.is_grpcio,
                    "devices": [asdict(device) for device in listed],
                    "plugins": str(self.plugins),
                    "registry": str(self._registry) if self.config.in_registry else "",
                }
            )
        )

    def _make_node(self, device: str) -> None:
        path = self.base / "nodes" / device
        if not path.exists():
            number = self.config.numbers.get(device, os.makedev(1, 3))
            os.mknod(path, stat.S_IFCHR | 0o666, number)
            path.chmod(0o666)  # mknod(2) obeys the umask

    def start(self) -> None:
        """Start the process, and return when it looks for the kubelet."""
        assert not self.is_running
        ready = self.base / "ready"
        ready.unlink(missing_ok=True)
        self._registry.parent.mkdir(parents=True, exist_ok=True)
        with (self.base / "plugin.log").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.device_plugin", str(self.base)],
                stdout=out,
                stderr=out,
                cwd=Path(__file__).resolve().parents[2],
            )
        eventually(lambda: not self.is_running or ready.exists(), 60, "the plugin serves")
        assert self.is_running, (self.base / "plugin.log").read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL, wherever its calls are."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def wait_dead(self, within: float = 60) -> None:
        """Wait until a fault has killed it."""
        eventually(lambda: not self.is_running, within, "the plugin died")

    def close(self) -> None:
        """End the process, and remove its sockets and device nodes."""
        if self.is_running:
            self.kill()
        self._registry.unlink(missing_ok=True)
        for node in (self.base / "nodes").iterdir():
            node.unlink()

    # What it is told

    def fault(self, kind: DeviceFaultKind, method: str = "", device: str = "", **more: Any) -> None:
        """Add a fault, as `DeviceFaults.add`; `status` is a name."""
        self._ask({"do": "fault", "kind": kind.value, "method": method, "device": device, **more})

    def clear_faults(self) -> None:
        self._ask({"do": "clear"})

    def list_now(self, *devices: FakeDevice | str) -> None:
        """List other devices."""
        listed = [_device(device) for device in devices]
        for device in listed:
            self._make_node(device.id)
        self._ask({"do": "devices", "devices": [asdict(device) for device in listed]})

    def end_streams(self) -> None:
        """End ListAndWatch."""
        self._ask({"do": "end"})

    def register_again(self) -> None:
        """Register a second time in the same life."""
        self._ask({"do": "register"})

    def give_back(self, *devices: str) -> None:
        """Note that no container has these devices any more; without any: all devices."""
        self._ask({"do": "give_back", "devices": devices})

    # What it tells

    def state(self) -> Json:
        """Return allocated, held, violations, calls, registrations and devices."""
        return self._ask({"do": "state"})

    def calls(self, method: str) -> list[list[str]]:
        """Return the devices of each call of a method that this life of the process got."""
        found = (call for call in self.state()["calls"] if call["method"] == method)
        return [[d for asked in call["containers"] for d in asked["ids"]] for call in found]

    def wait_registered(self, times: int = 1) -> None:
        """Wait until this life of the process has been registered so often."""
        eventually(
            lambda: self.state()["registrations"].count("") >= times, what="the plugin registered"
        )

    def wait_called(self, method: str) -> None:
        """Wait until this life of the process got a call."""
        eventually(lambda: self.calls(method), what=f"the plugin is asked to {method}")

    def check(self) -> None:
        """Raise AssertionError if the kubelet broke a rule."""
        assert not (broken := self.state()["violations"]), "\n".join(broken)

    def _ask(self, command: Json) -> Json:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10 * PATIENCE)
            control.connect(os.fspath(self.base / "control"))
            control.sendall(json.dumps(command).encode() + b"\n")
            text = b""
            while not text.endswith(b"\n"):
                chunk = control.recv(1 << 20)
                assert chunk, "the plugin died"
                text += chunk
        answer: Json = json.loads(text)
        return answer


def _device(device: FakeDevice | str) -> FakeDevice:
    return FakeDevice(device) if isinstance(device, str) else device
