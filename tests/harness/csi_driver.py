"""A CSI driver as a process, with its registrar: `python -m tests.harness.csi_driver DIR`.

DIR has `driver.json` (`DriverConfig` of tests.harness.csi). The process keeps its places and the
violations in `state.json`, so a driver that was killed continues. Its socket `control` takes one
line of JSON a command and answers one: see `_Control`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from kubelet_trio.grpc import Status
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.csi import (
    CsiDriverFacts,
    CsiFaultKind,
    CsiRules,
    FakeCsiDriver,
    StoredVolume,
)
from tests.harness.csi_services import serve_csi, serve_registration
from tests.harness.csi_storage import RealStorage

Json = dict[str, Any]


class _Kept:
    """State on disk: places, and the violations of all lives."""

    def __init__(self, path: Path, rules: CsiRules) -> None:
        self._path = path
        self.earlier: list[str] = []
        self.rules = rules
        if path.exists():
            saved = json.loads(path.read_text())
            self.earlier = saved["violations"]
            rules.from_json(saved)

    def violations(self) -> list[str]:
        return [*self.earlier, *map(str, self.rules.violations)]

    def save(self, rules: CsiRules) -> None:
        aside = self._path.with_suffix(".new")
        aside.write_text(json.dumps({**rules.to_json(), "violations": self.violations()}))
        aside.rename(self._path)


class _Control:
    """Commands of the test, by their field `do`:

    fault     add a fault; further fields are those of `CsiFault`, enums by their values
    clear     end all faults
    features  replace the node service's capabilities by `features`
    register  replace the registration's socket, as a restarted registrar does
    state     answer places, violations, calls, registrations
    """

    def __init__(self, driver: FakeCsiDriver, kept: _Kept, register: Callable[[], None]) -> None:
        self._driver, self._kept, self._register = driver, kept, register

    async def serve(self, stream: trio.abc.Stream) -> None:
        text = b""
        async for chunk in stream:
            text += chunk
            while b"\n" in text:
                line, _, text = text.partition(b"\n")
                answer = json.dumps(await self._do(json.loads(line)))
                await stream.send_all(answer.encode() + b"\n")

    async def _do(self, command: Json) -> Json:
        what = command.pop("do")
        if what == "fault":
            command["kind"] = CsiFaultKind(command["kind"])
            command["status"] = Status[command.get("status", "UNAVAILABLE")]
            self._driver.faults.add(**command)
        elif what == "clear":
            self._driver.faults.clear()
        elif what == "features":
            self._driver.rules.features = frozenset(command["features"])
        elif what == "register":
            self._register()
        return self._state()

    def _state(self) -> Json:
        rules = self._driver.rules
        return {
            "staged": rules.staged(),
            "published": rules.published(),
            "pending": [operation.call.method for operation in rules.pending()],
            "violations": self._kept.violations(),
            "calls": [asdict(call) for call in rules.log],
            "registrations": self._driver.registrations,
            "pid": os.getpid(),
        }


async def run_driver(base: Path, config: Json) -> None:
    """Serve a driver until cancelled."""
    rules = CsiRules(
        config["features"],
        [StoredVolume(**volume) for volume in config["volumes"]],
        creates=config["creates"],
    )
    kept = _Kept(base / "state.json", rules)
    sockets = {name: Path(config[name]) for name in ("endpoint", "registration")}
    facts = CsiDriverFacts(endpoint=str(sockets["endpoint"]), **config["facts"])
    driver = FakeCsiDriver(
        rules, RealStorage(base / "data"), facts, save=kept.save, die=lambda: os._exit(9)
    )
    async with trio.open_nursery() as nursery:
        if config["is_grpcio"]:
            from tests.harness.csi_grpcio import serve_grpcio

            await nursery.start(serve_grpcio, driver, sockets["endpoint"])
        else:
            await nursery.start(serve_csi, driver, [_listen(sockets["endpoint"])])
        registrar = _Registrar(nursery, driver, sockets["registration"])
        control = _Control(driver, kept, registrar.replace)
        await nursery.start(trio.serve_listeners, control.serve, [_listen(base / "control")])
        registrar.replace()
        (base / "ready").touch()


class _Registrar:
    """The socket in the plugins' directory; a new one replaces the old."""

    def __init__(self, nursery: trio.Nursery, driver: FakeCsiDriver, socket: Path) -> None:
        self._nursery, self._driver, self._socket = nursery, driver, socket
        self._scope = trio.CancelScope()

    def replace(self) -> None:
        self._scope.cancel()
        self._scope = trio.CancelScope()
        self._nursery.start_soon(self._serve, self._scope, _listen(self._socket))

    async def _serve(self, scope: trio.CancelScope, listener: trio.SocketListener) -> None:
        with scope:
            await serve_registration(self._driver, [listener])


def _listen(path: Path) -> trio.SocketListener:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open_unix(path)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    trio.run(run_driver, directory, json.loads((directory / "driver.json").read_text()))
