"""`scripts/first-run` as a person runs it: in a terminal, until Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "first-run"


class FirstRun:
    """The script, running. `marker` is in the environment of all that it starts on this host."""

    def __init__(
        self, base: Path, *flags: str, options: Sequence[str] = (), enter: Sequence[str] = ()
    ) -> None:
        self.base, self.output, self._flags = base, base / "output", flags
        self._enter = enter
        self.marker = f"FIRST_RUN_TEST={base.name}-{os.getpid()}"
        self.start(*options)

    def start(self, *options: str) -> None:
        """Run the script with these options: once more, after it has ended."""
        name, _, value = self.marker.partition("=")
        environment = {
            **os.environ,
            name: value,
            "VENV": sys.prefix,
            "TMPDIR": str(self.base),
            "FIRST_RUN_FLAGS": " ".join(self._flags),
        }
        with self.output.open("wb") as out:
            self._process = subprocess.Popen(
                # Started in the background, a shell hands on SIGINT as ignored.
                [*self._enter, "env", "--default-signal=INT", "bash", str(SCRIPT), *options],
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )

    def page(self) -> str:
        """Return what the example's web server says; empty while it does not answer."""
        found = re.search(r"curl (localhost:\d+)", self.printed())
        try:
            if found is None:
                raise ConnectionError("the address is not printed yet")
            with urllib.request.urlopen(f"http://{found[1]}", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert self._process.poll() is None, self.printed()
            return ""

    def printed(self) -> str:
        return self.output.read_text()

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(90)

    def processes(self) -> list[str]:
        """Return the command lines of what it started and still runs."""
        return [command for _, command in self._running()]

    def _running(self) -> Iterator[tuple[int, str]]:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended
            if self.marker.encode() in environment.split(b"\0") and command:
                yield int(entry.name), command

    def close(self) -> None:
        """End all of it: in order if it can, since its pods do not end with it."""
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.interrupt()
        for pid, _ in self._running():
            os.kill(pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def first_run(
    *flags: str, options: Sequence[str] = (), enter: Sequence[str] = ()
) -> Iterator[FirstRun]:
    """Run the script for as long as the block lasts; nothing that it started outlives that.

    `enter` is a program, with its options, that runs it.
    """
    with tempfile.TemporaryDirectory(prefix="first-run-") as base:
        run = FirstRun(Path(base), *flags, options=options, enter=enter)
        try:
            yield run
        finally:
            run.close()
