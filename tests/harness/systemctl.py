"""A stand-in for systemctl, for a machine of namespaces without systemd: one service at a time.

It reads unit and drop-ins below /etc/systemd/system as systemd does, as far as a kubelet's need:
`Environment=`, `EnvironmentFile=` (`-`: it may be missing), `ExecStart=` (the last one) with
`$VARIABLE` as words of their own. A service that ends is started again until it is stopped.

As a program: systemctl COMMAND [NAME]; links of that name point here.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

UNITS = Path("/etc/systemd/system")
STATE = Path("/etc/systemd/stand-in")
_AGAIN = 0.5  # seconds, instead of RestartSec


def command_line(name: str) -> tuple[list[str], dict[str, str]]:
    """Return what a service runs, and with which variables. Raises OSError without its unit."""
    variables: dict[str, str] = {}
    command = ""
    for key, value in _settings(name):
        if key == "Environment":
            for word in shlex.split(value):
                variable, _, text = word.partition("=")
                variables[variable] = text
        elif key == "EnvironmentFile":
            variables.update(_read_variables(value))
        elif key == "ExecStart":
            command = value
    words: list[str] = []
    for word in command.split():
        # An unset variable is no word at all.
        words += variables.get(word[1:], "").split() if word.startswith("$") else [word]
    return words, variables


def _settings(name: str) -> Iterator[tuple[str, str]]:
    files = [UNITS / f"{name}.service", *sorted((UNITS / f"{name}.service.d").glob("*.conf"))]
    for file in files:
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
    while not stopping:
        words, variables = command_line(name)
        with (STATE / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(words, env={**os.environ, **variables}, stdout=log, stderr=log)
        if stopping:  # between the look at it and the start
            child.terminate()
        child.wait()
        if not stopping:
            time.sleep(_AGAIN)


def _is_active(name: str) -> bool:
    file = STATE / f"{name}.pid"
    if not file.exists():
        return False
    try:
        stat = Path(f"/proc/{file.read_text()}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _start(name: str) -> None:
    STATE.mkdir(exist_ok=True)
    command_line(name)
    guard = subprocess.Popen(
        [sys.executable, __file__, "guard", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(STATE / f"{name}.log").open("ab"),
        start_new_session=True,
    )
    (STATE / f"{name}.pid").write_text(str(guard.pid))


def _stop(name: str) -> None:
    if not _is_active(name):
        return
    os.kill(int((STATE / f"{name}.pid").read_text()), signal.SIGTERM)
    while _is_active(name):
        time.sleep(0.05)


def main(command: str, name: str = "") -> int:
    """Do one command and return systemctl's exit code."""
    name = name.removesuffix(".service")
    if command == "daemon-reload":
        return 0
    if not (UNITS / f"{name}.service").exists():
        print("Loaded: not-found")
        return 4
    if command in ("stop", "restart"):
        _stop(name)
    if command in ("start", "restart"):
        _start(name)
    if command == "guard":
        _guard(name)
    if command == "is-active":
        return 0 if _is_active(name) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
