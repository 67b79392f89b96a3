"""A CSI driver in a process of its own, as a test drives it: start, kill, faults, what it has."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from kubelet_trio.testing.csi import CsiFaultKind, NodeFeature
from tests.harness.csi_storage import RealStorage, mount_points, unmount_all
from tests.harness.machine import PATIENCE
from tests.harness.pods import WaitTimeoutError, eventually

Json = dict[str, Any]
DRIVER = "disk.csi.example.org"


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """How a driver is."""

    name: str = DRIVER
    features: Iterable[str] = tuple(NodeFeature)
    volumes: Iterable[Json] = ()  # of `StoredVolume`
    creates: bool = True  # whether it has every other volume, too
    is_grpcio: bool = False  # serve with grpcio instead of our own server
    node_id: str = "node"
    max_volumes: int = 0
    topology: Mapping[str, str] = field(default_factory=dict)


class CsiDriver:
    """A driver with its registrar at an agent's root directory."""

    def __init__(self, base: Path, root: Path, config: DriverConfig | None = None) -> None:
        """Create a driver; `start` starts its process.

        Args:
            base: for its data and state.
            root: the agent's root directory, where it registers.
            config: how it is.
        """
        self.base, self.root, self.config = base, root, config or DriverConfig()
        self.name = self.config.name
        self.registration = root / "plugins_registry" / f"{self.name}-reg.sock"
        self.endpoint = root / "plugins" / self.name / "csi.sock"
        self._process: subprocess.Popen[bytes] | None = None
        base.mkdir(parents=True, exist_ok=True)
        facts = ("name", "node_id", "max_volumes", "topology")
        values = asdict(self.config)
        (base / "driver.json").write_text(
            json.dumps(
                {
                    "facts": {key: values[key] for key in facts},
                    "features": list(self.config.features),
                    "volumes": list(self.config.volumes),
                    "creates": self.config.creates,
                    "is_grpcio": self.config.is_grpcio,
                    "endpoint": str(self.endpoint),
                    "registration": str(self.registration),
                }
            )
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the process, and return when it serves."""
        assert not self.is_running
        ready = self.base / "ready"
        ready.unlink(missing_ok=True)
        with (self.base / "driver.log").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.csi_driver", str(self.base)],
                stdout=out,
                stderr=out,
                cwd=Path(__file__).resolve().parents[2],
            )
        eventually(lambda: not self.is_running or ready.exists(), 60, "the driver serves")
        assert self.is_running, (self.base / "driver.log").read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL, wherever its calls are; its mounts stay."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def reboot(self) -> None:
        """End it as a reboot of the machine does: it forgets what is mounted; the data stays."""
        self.check()
        self.kill()
        (self.base / "state.json").unlink(missing_ok=True)

    def wait_dead(self, within: float = 60) -> None:
        """Wait until a fault has killed it."""
        eventually(lambda: not self.is_running, within, "the driver died")

    def remove_sockets(self) -> None:
        """Remove what a driver that is uninstalled removes."""
        for path in (self.registration, self.endpoint):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """End the process, and undo every mount and loop device that is left of it."""
        if self.is_running:
            self.kill()
        self.remove_sockets()
        saved = self.base / "state.json"
        volumes = json.loads(saved.read_text())["volumes"] if saved.exists() else {}
        for places in ("published", "staged"):
            for volume in volumes.values():
                for path in volume[places]:
                    unmount_all(Path(path))
        RealStorage(self.base / "data").close()

    # What it is told

    def fault(self, kind: CsiFaultKind, method: str = "", target: str = "", **more: Any) -> None:
        """Add a fault, as `CsiFaults.add`; `status` is a name."""
        self._ask({"do": "fault", "kind": kind.value, "method": method, "target": target, **more})

    def clear_faults(self) -> None:
        self._ask({"do": "clear"})

    def set_features(self, features: Iterable[str]) -> None:
        """Change what the node service says that it can do."""
        self._ask({"do": "features", "features": list(features)})

    def register_again(self) -> None:
        """Replace the registration's socket, as a restarted registrar does."""
        self._ask({"do": "register"})

    # What it tells

    def state(self) -> Json:
        """Return staged, published, pending, violations, calls and registrations."""
        return self._ask({"do": "state"})

    def calls(self, method: str, volume_id: str = "") -> list[Json]:
        """Return the calls of a method that this life of the process got."""
        found = (call for call in self.state()["calls"] if call["method"] == method)
        return [call for call in found if call["volume_id"] == volume_id or not volume_id]

    def wait(self, what: str, within: float = 60) -> Json:
        """Wait until a list or table of the state is not empty; return the state."""
        found: list[Json] = []

        def check() -> bool:
            found[:] = [self.state()]
            return bool(found[0][what])

        eventually(check, within, f"the driver has {what}")
        return found[0]

    def wait_idle(self, within: float = 60) -> None:
        """Wait until no call is in progress."""
        eventually(lambda: not self.state()["pending"], within, "the driver is idle")

    def check(self) -> None:
        """Raise AssertionError if a caller broke a rule."""
        assert not (broken := self.state()["violations"]), "\n".join(broken)

    def wait_clean(self, within: float = 60) -> None:
        """Wait until nothing is staged or published, by the driver's and the kernel's word."""
        deadline = time.monotonic() + within * PATIENCE
        while left := self._left():
            if time.monotonic() > deadline:
                raise WaitTimeoutError(f"not clean within {within} s: {left}")
            time.sleep(0.05)
        self.check()

    def _left(self) -> list[str]:
        state = self.state()
        named = [f"{kind} {state[kind]}" for kind in ("staged", "published") if state[kind]]
        ours = [path for path in mount_points() if path.startswith(f"{self.root}/")]
        return named + [path for path in ours if "/csi/" in path or "~csi/" in path]

    def _ask(self, command: Json) -> Json:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10 * PATIENCE)
            control.connect(os.fspath(self.base / "control"))
            control.sendall(json.dumps(command).encode() + b"\n")
            text = b""
            while not text.endswith(b"\n"):
                chunk = control.recv(1 << 20)
                assert chunk, "the driver died"
                text += chunk
        answer: Json = json.loads(text)
        return answer
