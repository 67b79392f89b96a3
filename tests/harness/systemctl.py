"""A stand-in for systemctl, for a machine of namespaces without systemd.

It reads units and their drop-ins as systemd does, as far as a node's need: `Environment=`,
`EnvironmentFile=` (`-`: it may be missing), `ExecStartPre=` (`-`: it may fail), `ExecStart=` (the
last one) with `$VARIABLE` as words of their own, and `Type=notify`: started is then who said so. A
service that ends is started again until it is stopped. It is in the network of process 1,
whoever starts it.

As a program: systemctl COMMAND [--now] [NAME...]; links of that name point here.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

UNITS = Path("/etc/systemd/system")
PACKAGED = Path("/lib/systemd/system")
STATE = Path("/etc/systemd/stand-in")
_AGAIN = 0.5  # seconds, instead of RestartSec
_PATIENCE = 90.0  # seconds, as DefaultTimeoutStartSec
_NETWORK = "/proc/{}/ns/net"


@dataclass
class Service:
    """What a unit and its drop-ins say."""

    commands: list[str] = field(default_factory=list)  # of ExecStart; the last one counts
    before: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    notifies: bool = False

    def words(self, command: str) -> list[str]:
        """Return a command as words; an unset variable is no word at all."""
        found: list[str] = []
        for word in command.split():
            is_variable = word.startswith("$")
            found += self.variables.get(word[1:], "").split() if is_variable else [word]
        return found


def unit_file(name: str) -> Path | None:
    """Return the file of a service, the administrator's before the package's."""
    files = (directory / f"{name}.service" for directory in (UNITS, PACKAGED))
    return next((file for file in files if file.exists()), None)


def read_service(name: str) -> Service:
    """Return what a service runs, and with which variables. Raises OSError without its unit."""
    service = Service()
    for key, value in _settings(name):
        if key == "Environment":
            pairs = (word.partition("=") for word in shlex.split(value))
            service.variables.update({variable: text for variable, _, text in pairs})
        elif key == "EnvironmentFile":
            service.variables.update(_read_variables(value))
        elif key == "ExecStart":
            service.commands.append(value)
        elif key == "ExecStartPre":
            service.before.append(value)
        elif key == "Type":
            service.notifies = value == "notify"
    return service


def _settings(name: str) -> Iterator[tuple[str, str]]:
    unit = unit_file(name)
    if unit is None:
        raise FileNotFoundError(f"{name}.service")
    for file in (unit, *sorted((UNITS / f"{name}.service.d").glob("*.conf"))):
        for line in file.read_text().splitlines():
            key, sign, value = line.partition("=")
            if sign and not line.startswith(("#", ";")):
                yield key, value


def _read_variables(value: str) -> dict[str, str]:
    file = Path(value.removeprefix("-"))
    if value.startswith("-") and not file.exists():
        return {}
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return {key: " ".join(shlex.split(text)) for key, _, text in (x.partition("=") for x in lines)}


def _guard(name: str) -> None:
    """Run a service until SIGTERM, and start it again whenever it ends."""
    stopping = False
    child: subprocess.Popen[bytes] | None = None

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        if child is not None:
            child.terminate()

    signal.signal(signal.SIGTERM, stop)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        place = STATE / f"{name}.notify"
        place.unlink(missing_ok=True)
        notices.bind(str(place))
        while not stopping:
            child = _run_once(name, {**os.environ, "NOTIFY_SOCKET": str(place)})
            if stopping:  # between the look at it and the start
                child.terminate()
            _note_ready(name, child, notices)
            child.wait()
            _ready_file(name).unlink(missing_ok=True)
            if not stopping:
                time.sleep(_AGAIN)


def _run_once(name: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    service = read_service(name)
    environment |= service.variables
    with (STATE / f"{name}.log").open("ab") as log:
        for command in service.before:
            words = service.words(command.removeprefix("-"))
            subprocess.run(
                words, env=environment, stdout=log, stderr=log, check=not command.startswith("-")
            )
        words = service.words(service.commands[-1])
        return subprocess.Popen(words, env=environment, stdout=log, stderr=log)


def _note_ready(name: str, child: subprocess.Popen[bytes], notices: socket.socket) -> None:
    """Wait until a service has said that it is ready, or has ended; one that says nothing is."""
    if read_service(name).notifies:
        notices.settimeout(0.1)
        while child.poll() is None:
            try:
                if b"READY=1" in notices.recv(4096).split(b"\n"):
                    break
            except TimeoutError:
                continue
        else:
            return
    _ready_file(name).touch()
    notices.setblocking(False)


def _ready_file(name: str) -> Path:
    return STATE / f"{name}.ready"


def _is_active(name: str) -> bool:
    file = STATE / f"{name}.pid"
    if not file.exists():
        return False
    try:
        stat = Path(f"/proc/{file.read_text()}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _start(name: str) -> int:
    """Start a service; return once it is ready, with 1 if it is not within the time."""
    STATE.mkdir(exist_ok=True)
    read_service(name)
    _ready_file(name).unlink(missing_ok=True)
    # Who installs may be in another network than the machine's services.
    is_inside = os.readlink(_NETWORK.format("self")) == os.readlink(_NETWORK.format(1))
    enter = [] if is_inside else ["nsenter", "--target", "1", "--net"]
    with (STATE / f"{name}.log").open("ab") as log:
        guard = subprocess.Popen(
            [*enter, sys.executable, __file__, "guard", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    (STATE / f"{name}.pid").write_text(str(guard.pid))
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if _ready_file(name).exists():
            return 0
        if not _is_active(name):
            break
        time.sleep(0.05)
    print(f"Job for {name}.service failed: see {STATE}/{name}.log", file=sys.stderr)
    return 1


def _stop(name: str) -> None:
    if not _is_active(name):
        return
    os.kill(int((STATE / f"{name}.pid").read_text()), signal.SIGTERM)
    while _is_active(name):
        time.sleep(0.05)


def _link(name: str) -> Path:
    return UNITS / "multi-user.target.wants" / f"{name}.service"


def _enable(name: str, unit: Path) -> None:
    _link(name).parent.mkdir(parents=True, exist_ok=True)
    _link(name).unlink(missing_ok=True)
    _link(name).symlink_to(unit)


def _tell(is_so: bool, yes: str, no: str, code: int) -> int:
    print(yes if is_so else no)
    return 0 if is_so else code


def _do(command: str, name: str, *, now: bool) -> int:
    unit = unit_file(name)
    if unit is None:
        print("Loaded: not-found")
        print(f"Failed to {command} {name}: Unit {name} not loaded.", file=sys.stderr)
        return 4
    if command == "is-active":
        return _tell(_is_active(name), "active", "inactive", 3)
    if command == "is-enabled":
        return _tell(_link(name).is_symlink(), "enabled", "disabled", 1)
    if command == "guard":
        _guard(name)
    if command == "enable":
        _enable(name, unit)
    if command == "disable":
        _link(name).unlink(missing_ok=True)
    was_active = _is_active(name)
    if command in ("stop", "restart", "try-restart") or (command == "disable" and now):
        _stop(name)
    if command == "restart" or (command == "try-restart" and was_active):
        return _start(name)
    is_start = command == "start" or (command == "enable" and now)
    return _start(name) if is_start and not was_active else 0


def main(arguments: Sequence[str]) -> int:
    """Do one command and return systemctl's exit code."""
    command, *names = [word for word in arguments if not word.startswith("-")]
    if command in ("daemon-reload", "daemon-reexec"):
        return 0
    now = "--now" in arguments
    return max(_do(command, name.removesuffix(".service"), now=now) for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
