"""What is under way in the agent, as commands show it: pulls, and the grace of pods that end.

On a terminal it is one line that is kept up to date; elsewhere a line for each change, without the
seconds, since a countdown would be a line a second.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import click

from kubelet_trio.cli.podstate import Json, grace_left, items, part
from kubelet_trio.cli.tables import printable

_PERIOD = 1.0  # s between two states of a line that a thread keeps up to date


def pull_texts(status: Json, uid: str, now: float, *, timed: bool = True) -> dict[str, str]:
    """Return what the agent pulls for a pod, by container; `now` is in Unix seconds. Pure."""
    found: dict[str, str] = {}
    for pull in items(status, "pulls"):
        if pull.get("uid") != uid:
            continue
        what = "Waiting for other pulls to pull" if pull.get("is_queued") else "Pulling"
        took = f" for {max(0.0, now - float(pull.get('since', now))):.0f} s" if timed else ""
        found[str(pull.get("container"))] = f'{what} image "{pull.get("image")}"{took}'
    return found


def under_way(status: Json, pods: Iterable[Json], now: float) -> str:
    """Return what is under way for some pods, in one line; "" if nothing is. Pure."""
    found: list[str] = []
    for pod in pods:
        name = part(pod, "metadata").get("name")
        left = grace_left(pod, now)
        if left is not None:
            found.append(
                f"{name}: {f'{left:.0f} s of grace left' if left else 'its grace is over'}"
            )
        pulls = pull_texts(status, str(part(pod, "metadata").get("uid")), now)
        found += [f"{name}: {text}" for text in pulls.values()]
    return "; ".join(found)


class Progress:
    """Shows on stderr what a command waits for."""

    def __init__(self) -> None:
        self.is_live = sys.stderr.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        """Show a text instead of the last one; "" shows nothing."""
        text = printable(text)  # messages of runtimes and registries are in it
        if text == self._shown:
            return
        if self.is_live:
            click.echo(f"\r\033[K{_cut(text)}", nl=False, err=True)
        elif text:
            click.echo(text, err=True)
        self._shown = text

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self.is_live and self._shown:
            click.echo("\r\033[K", nl=False, err=True)
        self._shown = ""


class Footer:
    """A line below the output of a command on a terminal, which a thread keeps up to date."""

    def __init__(self, text: Callable[[], str]) -> None:
        """`text` returns the line; the thread calls it."""
        self._text = text
        self._progress = Progress()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the line during a block, if both streams are terminals."""
        if not (self._progress.is_live and sys.stdout.isatty()):
            yield
            return
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(_PERIOD)
            self._progress.clear()

    @contextmanager
    def above(self) -> Iterator[None]:
        """Print in a block: the line makes room, and comes back later."""
        with self._lock:
            self._progress.clear()
            yield

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD):
            text = self._text()
            with self._lock:
                if not self._ended.is_set():
                    self._progress.show(text)


def _cut(text: str) -> str:
    # A line that wraps could not be taken back.
    width = shutil.get_terminal_size().columns - 1
    return text if len(text) <= width else f"{text[: width - 3]}..."
